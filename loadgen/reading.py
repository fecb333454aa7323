"""One streamed answer, as its chunks come in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .outcome import Outcome

DONE = "[DONE]"
_TEXTS = ("content", "reasoning_content", "reasoning", "refusal", "text")


class Reading:
    """Notes when new tokens came, and how many; `outcome` says what it came to.

    A chunk has new tokens if it has text, a part of a tool call, or, where the server counts
    tokens in each chunk (`continuous_usage_stats`), a larger count: a server may hold back the
    text of a token, until a character is whole.
    """

    def __init__(self, name: str, due_s: float, sent_s: float) -> None:
        self._name, self._due_s, self._sent_s = name, due_s, sent_s
        self._ended_s = sent_s
        self._arrivals: list[float] = []
        self._chunks = 0
        self._counted: int | None = None  # output tokens so far, by the server
        self._continuous = False
        self._usage: Mapping[str, Any] = {}
        self._finish_reason: str | None = None
        self._done = False
        self._error: str | None = None

    def event(self, data: str, at_s: float) -> None:
        """Take the data of one event, which was read at `at_s`."""
        if data == DONE:
            self._done = True
            return
        try:
            chunk = json.loads(data)
        except (ValueError, RecursionError):
            self.fail(f"an event is not JSON: {data[:200]!r}", at_s)
            return
        if not isinstance(chunk, dict):
            self.fail(f"an event is no JSON object: {data[:200]!r}", at_s)
        elif not isinstance(chunk.get("choices") or [], list):
            self.fail(f"an event is no chunk of an answer: {data[:200]!r}", at_s)
        elif chunk.get("error"):
            self.fail(error_message(chunk) or data[:200], at_s)
        else:
            self._chunk(chunk, at_s)

    def _chunk(self, chunk: Mapping[str, Any], at_s: float) -> None:
        choices = [each for each in chunk.get("choices") or () if isinstance(each, dict)]
        counted = self._count(chunk.get("usage"))
        if not choices:
            return
        reasons = [reason for each in choices if (reason := each.get("finish_reason"))]
        self._finish_reason = str(reasons[-1]) if reasons else self._finish_reason
        if counted is not None and not reasons:
            self._continuous = True
        grown = self._continuous and counted is not None and counted > (self._counted or 0)
        if grown or any(map(_has_text, choices)):
            self.tokens(1, at_s)
        if counted is not None:
            self._counted = counted
        self._ended_s = at_s

    def _count(self, usage: Any) -> int | None:
        """The output tokens that a chunk's usage tells of; None if it has none."""
        if not isinstance(usage, dict):
            return None
        self._usage = usage
        return _number(usage.get("completion_tokens"))

    def tokens(self, count: int, at_s: float) -> None:
        """New tokens came at `at_s`: so many, as far as one can tell without the usage."""
        self._arrivals.append(at_s)
        self._chunks += count
        self._ended_s = at_s

    def end(self, reason: str | None, prompt_tokens: int | None, cached: int | None) -> None:
        """The answer ended as it should; of a source that sends no events."""
        self._done, self._finish_reason = True, reason
        self._usage = {
            "prompt_tokens": prompt_tokens,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    def fail(self, reason: str, at_s: float) -> None:
        """It failed; the first reason is the one that is told."""
        self._error = self._error or " ".join(reason.split()) or "failed, with an empty message"
        self._ended_s = at_s

    def outcome(self) -> Outcome:
        """What it came to. A stream that just stopped is a failure."""
        error = self._error
        if error is None and not self._done and self._finish_reason is None:
            error = "the stream ended early: no finish_reason, and no [DONE]"
        counted = _number(self._usage.get("completion_tokens"))
        details = self._usage.get("prompt_tokens_details")
        return Outcome(
            name=self._name,
            due_s=self._due_s,
            sent_s=self._sent_s,
            ended_s=self._ended_s,
            arrivals=tuple(self._arrivals),
            tokens=self._chunks if counted is None else counted,
            prompt_tokens=_number(self._usage.get("prompt_tokens")),
            cached_tokens=_number(
                details.get("cached_tokens") if isinstance(details, dict) else None
            ),
            finish_reason=self._finish_reason,
            error=error,
        )


def error_message(answer: Any) -> str:
    """What a JSON error object says, in any of the common forms; "" for anything else."""
    for key in ("error", "message", "detail"):
        if isinstance(answer, dict) and answer.get(key):
            answer = answer[key]
    return answer if isinstance(answer, str) else json.dumps(answer) if answer else ""


def _has_text(choice: Mapping[str, Any]) -> bool:
    """Whether a choice of a chunk brings something that a token wrote."""
    delta = choice.get("delta", choice)
    if not isinstance(delta, dict):
        return False
    return any(delta.get(key) for key in _TEXTS) or bool(delta.get("tool_calls"))


def _number(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None
