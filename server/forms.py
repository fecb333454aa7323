"""The forms in which completions are told: here that of /v1/completions, and what it shares.

A form takes increments of its call's choices one by one, and makes of them the events of a stream;
or outputs, and makes of them one object. It knows nothing of connections.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..requests.increment import Increment
from ..requests.request import RequestOutput
from .echo import Echo
from .errors import ApiError
from .sse import DONE, Chunks, error_event, quoted, usage_chunk
from .token_texts import Offsets, TokenTexts
from .usage import Usage


@dataclass(frozen=True, slots=True)
class Shape:
    """What a client asked its answer to have.

    `logprobs`: of how many alternatives beside each token; None: no log-probabilities.
    """

    id: str
    created: int  # seconds since 1970
    model: str
    fingerprint: str
    logprobs: int | None = None
    token_ids: bool = False
    include_usage: bool = False
    continuous_usage: bool = False

    def shared(self, kind: str) -> dict[str, object]:
        """The keys that an answer and each of its chunks begin with."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }


class Form(ABC):
    """How one call is answered."""

    @abstractmethod
    def events(self, choice: int, increment: Increment) -> bytes:
        """What an increment adds to a stream: no event, or several."""

    @abstractmethod
    def ending(self) -> bytes:
        """What a stream has after the end of its last choice."""

    @abstractmethod
    def failed(self, error: ApiError) -> bytes:
        """What ends a stream that has begun, where the call fails."""

    @abstractmethod
    def whole(self, outputs: Sequence[RequestOutput]) -> bytes:
        """The answer in one object."""


class ChunkForm(Form):
    """Chunks that add to choices. `usage` is kept up to date by whoever hands increments in."""

    chunk_kind: str
    whole_kind: str

    def __init__(self, shape: Shape, choices: int, usage: Usage, texts: TokenTexts) -> None:
        self.shape = shape
        self.usage = usage
        self._texts = texts
        with_usage = shape.include_usage or shape.continuous_usage
        shared = shape.shared(self.chunk_kind)
        self._chunks = [Chunks(shared, each, with_usage=with_usage) for each in range(choices)]
        self._opened = [False] * choices

    @abstractmethod
    def choice(self, index: int, output: RequestOutput) -> dict[str, Any]:
        """One choice of a whole answer."""

    def ending(self) -> bytes:
        if not self.shape.include_usage:
            return DONE
        return usage_chunk(self.shape.shared(self.chunk_kind), self.usage) + DONE

    def failed(self, error: ApiError) -> bytes:
        return error_event(error.body()) + DONE

    def whole(self, outputs: Sequence[RequestOutput]) -> bytes:
        choices = [self.choice(index, output) for index, output in enumerate(outputs)]
        said = {
            **self.shape.shared(self.whole_kind),
            "choices": choices,
            "usage": self.usage.to_json(),
        }
        return json.dumps(said).encode("ascii")

    def _first(self, choice: int) -> bool:
        """Whether nothing was told of a choice yet, as it is now."""
        first = not self._opened[choice]
        self._opened[choice] = True
        return first

    def _usage_now(self) -> Usage | None:
        return self.usage if self.shape.continuous_usage else None

    def _ids(self, token_ids: tuple[int, ...]) -> tuple[int, ...] | None:
        return token_ids if self.shape.token_ids else None


class CompletionForm(ChunkForm):
    """Answers of /v1/completions: the text as it is. `echoes`: the prompts, if answers begin with
    them; each has as many choices.
    """

    chunk_kind = whole_kind = "text_completion"

    def __init__(
        self,
        shape: Shape,
        choices: int,
        usage: Usage,
        texts: TokenTexts,
        echoes: Sequence[Echo] = (),
    ) -> None:
        super().__init__(shape, choices, usage, texts)
        self._offsets = [Offsets() for _ in range(choices)]  # of what logprobs were told of
        self._echoes = [each for each in echoes for _ in range(choices // len(echoes))]

    def events(self, choice: int, increment: Increment) -> bytes:
        chunks, out = self._chunks[choice], b""
        if self._echoes and self._first(choice):
            text = quoted(self._echoes[choice].text)
            out = chunks.chunk(b'"text":' + text, usage=self._usage_now())
        shape = self.shape
        beside = shape.token_ids or shape.continuous_usage or increment.logprobs is not None
        if increment.text or (increment.token_ids and beside):
            out += chunks.chunk(
                b'"text":' + quoted(increment.text),
                logprobs=self._logprobs(choice, increment),
                token_ids=self._ids(increment.token_ids),
                usage=self._usage_now(),
            )
        if increment.output is not None:
            out += chunks.chunk(
                b'"text":""',
                finish=quoted(increment.output.finish_reason),
                usage=self._usage_now(),
            )
        return out

    def choice(self, index: int, output: RequestOutput) -> dict[str, Any]:
        echo = self._echoes[index] if self._echoes else None
        found: dict[str, Any] = {
            "index": index,
            "text": output.text if echo is None else echo.text + output.text,
            "logprobs": None,
            "finish_reason": output.finish_reason,
        }
        if (top := self.shape.logprobs) is not None:
            first = 0 if echo is None else len(echo.text)
            told = self._texts.listed(output.logprobs or (), top, Offsets(first))
            if echo is not None and output.prompt_logprobs is not None:
                before = echo.logprobs(output.prompt_logprobs, top, self._texts)
                told = {key: before[key] + each for key, each in told.items()}
            found["logprobs"] = told
        if self.shape.token_ids:
            found["token_ids"] = output.token_ids
        return found

    def _logprobs(self, choice: int, increment: Increment) -> bytes:
        if self.shape.logprobs is None or increment.logprobs is None:
            return b"null"
        offsets = self._offsets[choice]
        return json.dumps(
            self._texts.listed(increment.logprobs, self.shape.logprobs, offsets)
        ).encode()
