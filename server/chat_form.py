"""Answers of /v1/chat/completions: a message, with its reasoning and its calls."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ..requests.increment import Increment
from ..requests.request import RequestOutput
from .forms import ChunkForm, Shape
from .sections import Piece, Section
from .sse import quoted
from .token_texts import TokenTexts
from .usage import Usage

_OPENING = b'"delta":{"role":"assistant","content":""}'
_EMPTY = b'"delta":{}'


class ChatForm(ChunkForm):
    """`sections`: makes what takes an output apart; None: all of it is content.

    `reasoning`: whether the client wants to see it. `forced`: the one function that had to be
    called, so that a call does not say why the answer ended.
    """

    chunk_kind = "chat.completion.chunk"
    whole_kind = "chat.completion"

    def __init__(
        self,
        shape: Shape,
        choices: int,
        usage: Usage,
        texts: TokenTexts,
        sections: Callable[[], Section] | None = None,
        *,
        reasoning: bool = True,
        forced: bool = False,
    ) -> None:
        super().__init__(shape, choices, usage, texts)
        self._sections = sections
        self._reasoning, self._forced = reasoning, forced
        self._called = [False] * choices
        self._open = [sections() for _ in range(choices)] if sections is not None else None

    def events(self, choice: int, increment: Increment) -> bytes:
        out: list[bytes] = []
        if self._first(choice):
            out.append(self._chunks[choice].chunk(_OPENING, usage=self._usage_now()))
        out.extend(self._told(choice, increment))
        if increment.output is not None:
            finish = self._finish(increment.output, called=self._called[choice])
            last = self._chunks[choice].chunk(
                _EMPTY, finish=quoted(finish), usage=self._usage_now()
            )
            out.append(last)
        return b"".join(out)

    def choice(self, index: int, output: RequestOutput) -> dict[str, Any]:
        message, called = self._message(output.text)
        found: dict[str, Any] = {
            "index": index,
            "message": message,
            "logprobs": None,
            "finish_reason": self._finish(output, called=called),
        }
        if self.shape.logprobs is not None:
            told = self._texts.for_chat(output.logprobs or (), self.shape.logprobs)
            found["logprobs"] = json.loads(told)
        if self.shape.token_ids:
            found["token_ids"] = output.token_ids
        return found

    def _told(self, choice: int, increment: Increment) -> Iterator[bytes]:
        """The chunks of its text, the first with what goes beside it."""
        shape, chunks = self.shape, self._chunks[choice]
        deltas = list(self._deltas(choice, increment))
        beside = shape.token_ids or shape.continuous_usage or increment.logprobs is not None
        if not deltas and increment.token_ids and beside:
            deltas = [_EMPTY]
        for index, delta in enumerate(deltas):
            first = index == 0
            yield chunks.chunk(
                delta,
                logprobs=self._logprobs(increment) if first else b"null",
                token_ids=self._ids(increment.token_ids if first else ()),
                usage=self._usage_now(),
            )

    def _deltas(self, choice: int, increment: Increment) -> Iterator[bytes]:
        if self._open is None:
            if increment.text:
                yield b'"delta":{"content":' + quoted(increment.text) + b"}"
            return
        section = self._open[choice]
        pieces = [*section.push(increment.text)] if increment.text else []
        if increment.output is not None:
            pieces += section.finish()
        for piece in self._wanted(pieces):
            self._called[choice] = piece.last
            yield b'"delta":' + json.dumps(_delta(piece), separators=(",", ":")).encode("ascii")

    def _wanted(self, pieces: Iterable[Piece]) -> Iterator[Piece]:
        return (each for each in pieces if self._reasoning or each.kind != "reasoning")

    def _message(self, text: str) -> tuple[dict[str, Any], bool]:
        """The message, and whether it ends with a call that is whole."""
        if self._sections is None:
            return {"role": "assistant", "content": text, "refusal": None}, False
        section = self._sections()
        said: dict[str, str] = {}
        calls: list[dict[str, Any]] = []
        called = False
        for piece in self._wanted([*section.push(text), *section.finish()]):
            called = piece.last
            if piece.kind == "name":
                calls.append(_call(piece.text))
            elif piece.kind == "arguments":
                calls[piece.call]["function"]["arguments"] += piece.text
            else:
                said[piece.kind] = said.get(piece.kind, "") + piece.text
        empty = None if calls or "reasoning" in said else ""
        message = {"role": "assistant", "content": said.get("content", empty), "refusal": None}
        if "reasoning" in said:
            message["reasoning_content"] = said["reasoning"]
        return {**message, "tool_calls": calls} if calls else message, called

    def _logprobs(self, increment: Increment) -> bytes:
        if self.shape.logprobs is None or increment.logprobs is None:
            return b"null"
        return self._texts.for_chat(increment.logprobs, self.shape.logprobs)

    def _finish(self, output: RequestOutput, *, called: bool) -> str:
        reason = output.finish_reason
        return "tool_calls" if called and reason == "stop" and not self._forced else reason


def _delta(piece: Piece) -> dict[str, Any]:
    match piece.kind:
        case "content":
            return {"content": piece.text}
        case "reasoning":
            return {"reasoning_content": piece.text}
        case "name":
            return {"tool_calls": [{"index": piece.call, **_call(piece.text)}]}
        case "arguments":
            part = {"index": piece.call, "function": {"arguments": piece.text}}
            return {"tool_calls": [part]}


def _call(name: str) -> dict[str, Any]:
    return {
        "id": f"call_{secrets.token_hex(12)}",
        "type": "function",
        "function": {"name": name, "arguments": ""},
    }
