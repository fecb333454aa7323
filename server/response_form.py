"""Answers of /v1/responses: items, and the events in which they come about."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ..requests.increment import Increment
from ..requests.request import RequestOutput
from .errors import ApiError
from .forms import Form
from .sections import Content, Piece, Section
from .token_texts import TokenTexts
from .usage import Usage

Kind = Literal["message", "reasoning", "function_call"]

_IDS: Mapping[Kind, str] = {"message": "msg", "reasoning": "rs", "function_call": "fc"}
_DELTAS: Mapping[Kind, str] = {
    "message": "response.output_text",
    "reasoning": "response.reasoning_text",
    "function_call": "response.function_call_arguments",
}


@dataclass
class _Item:
    """An item of the output. `text`: of a call, its arguments. `index`: which item it is.

    `whole`: the end of the response may complete it. A call is not until its last piece is there.
    """

    kind: Kind
    index: int
    name: str = ""
    text: str = ""
    logprobs: list[dict[str, object]] = field(default_factory=list)
    status: str = "in_progress"
    whole: bool = field(init=False)

    def __post_init__(self) -> None:
        self.whole = self.kind != "function_call"
        token = secrets.token_hex(16)
        self.id, self.call_id = f"{_IDS[self.kind]}_{token}", f"call_{token}"

    @property
    def place(self) -> dict[str, object]:
        """Where its text is, as events say it."""
        found: dict[str, object] = {"item_id": self.id, "output_index": self.index}
        return found if self.kind == "function_call" else {**found, "content_index": 0}

    def part(self) -> dict[str, object]:
        if self.kind == "reasoning":
            return {"type": "reasoning_text", "text": self.text}
        return {
            "type": "output_text",
            "text": self.text,
            "annotations": [],
            "logprobs": self.logprobs,
        }

    def to_json(self) -> dict[str, object]:
        """As it is now; without its part until there is something in it."""
        said: dict[str, object] = {"id": self.id, "type": self.kind, "status": self.status}
        if self.kind == "function_call":
            called = {"call_id": self.call_id, "name": self.name, "arguments": self.text}
            return {**said, **called}
        content = [] if self.status == "in_progress" else [self.part()]
        own: dict[str, object] = (
            {"role": "assistant"} if self.kind == "message" else {"summary": []}
        )
        return {**said, **own, "content": content}


class ResponseForm(Form):
    """`about`: what the response says of its request. `sections`: makes what takes the output
    apart; None: all of it is text. `logprobs`: of how many alternatives beside each token; None:
    none. `usage` is kept up to date by whoever hands increments in.
    """

    def __init__(
        self,
        about: Mapping[str, object],
        usage: Usage,
        texts: TokenTexts,
        sections: Callable[[], Section] | None,
        logprobs: int | None,
    ) -> None:
        self._about, self._usage, self._texts = about, usage, texts
        self._section: Section = Content() if sections is None else sections()
        self._logprobs = logprobs
        self._untold: list[dict[str, object]] = []  # of tokens that have no text yet
        self._items: list[_Item] = []
        self._open: _Item | None = None
        self._sequence = 0
        self._output: RequestOutput | None = None

    def events(self, choice: int, increment: Increment) -> bytes:
        out = [*self._beginning()]
        if self._logprobs is not None and increment.logprobs is not None:
            self._untold += self._texts.told(increment.logprobs, self._logprobs)
        if increment.text:
            out += self._written(self._section.push(increment.text))
        if increment.output is not None:
            self._output = increment.output
            out += self._written(self._section.finish())
        return b"".join(out)

    def ending(self) -> bytes:
        assert self._output is not None, "the output has ended"
        reason = self._output.finish_reason
        if reason == "cancelled":
            return self.failed(ApiError(503, "the service has ended before the answer"))
        cut = reason == "length"
        status = "incomplete" if cut else "completed"
        out = [*self._beginning(), *self._closed(status)]
        if not any(item.kind != "reasoning" for item in self._items):
            out += self._written([Piece("content", "")])  # whoever looks for a message finds one
            out += self._closed(status)
        details = {"reason": "max_output_tokens"} if cut else None
        out.append(self._lifecycle(status, incomplete_details=details))
        return b"".join(out)

    def failed(self, error: ApiError) -> bytes:
        out = [*self._beginning(), *self._closed("incomplete")]
        code = "server_error" if error.status >= 500 else "invalid_prompt"
        out.append(self._lifecycle("failed", error={"code": code, "message": error.message}))
        return b"".join(out)

    def whole(self, outputs: Sequence[RequestOutput]) -> bytes:
        [output] = outputs
        logprobs = output.logprobs
        self.events(0, Increment(output.id, 0, output.text, output.token_ids, logprobs))
        self.events(0, Increment(output.id, 0, output=output))
        # The line of the last event: JSON has no line break in it, though it may have `data: `.
        last = self.ending().rpartition(b"\ndata: ")[2]
        return json.dumps(json.loads(last)["response"]).encode("ascii")

    def _written(self, pieces: Iterable[Piece]) -> Iterator[bytes]:
        """The events of these pieces, each in the item that it belongs to."""
        for piece in pieces:
            if piece.kind == "name":
                yield from self._opened(_Item("function_call", len(self._items), piece.text))
                continue
            if piece.kind != "arguments":
                kind: Kind = "message" if piece.kind == "content" else "reasoning"
                if self._open is None or self._open.kind != kind:
                    yield from self._opened(_Item(kind, len(self._items)))
            assert self._open is not None, "arguments come after the name of their call"
            self._open.whole = self._open.whole or piece.last
            if piece.text:
                yield self._delta(self._open, piece.text)

    def _delta(self, item: _Item, text: str) -> bytes:
        item.text += text
        said = {**item.place, "delta": text}
        if item.kind == "message":
            item.logprobs += self._untold
            said["logprobs"], self._untold = self._untold, []
        return self._event(f"{_DELTAS[item.kind]}.delta", **said)

    def _opened(self, item: _Item) -> Iterator[bytes]:
        yield from self._closed("completed")
        self._open = item
        self._items.append(item)
        where = {"output_index": item.index}
        yield self._event("response.output_item.added", **where, item=item.to_json())
        if item.kind != "function_call":
            yield self._event("response.content_part.added", **item.place, part=item.part())

    def _closed(self, status: str) -> Iterator[bytes]:
        """The events that end the item which is open, if one is."""
        item, self._open = self._open, None
        if item is None:
            return
        done = f"{_DELTAS[item.kind]}.done"
        item.status = status if item.whole else "incomplete"
        if item.kind == "function_call":
            yield self._event(done, **item.place, name=item.name, arguments=item.text)
        else:
            said: dict[str, object] = {**item.place, "text": item.text}
            if item.kind == "message":
                item.logprobs += self._untold
                said["logprobs"], self._untold = item.logprobs, []
            yield self._event(done, **said)
            yield self._event("response.content_part.done", **item.place, part=item.part())
        where = {"output_index": item.index}
        yield self._event("response.output_item.done", **where, item=item.to_json())

    def _beginning(self) -> Iterator[bytes]:
        if self._sequence == 0:
            yield self._lifecycle("in_progress", event="created")
            yield self._lifecycle("in_progress")

    def _lifecycle(self, status: str, *, event: str | None = None, **own: object) -> bytes:
        response = {
            **self._about,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "output": [item.to_json() for item in self._items],
            "usage": None if status == "in_progress" else self._told_usage(),
            **own,
        }
        return self._event(f"response.{event or status}", response=response)

    def _told_usage(self) -> dict[str, object]:
        usage = self._usage
        return {
            "input_tokens": usage.prompt,
            "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
            "output_tokens": usage.completion,
            "output_tokens_details": {
                "reasoning_tokens": usage.reasoning or 0,
                "accepted_prediction_tokens": usage.accepted,
                "rejected_prediction_tokens": usage.drafted - usage.accepted,
            },
            "total_tokens": usage.prompt + usage.completion,
            **usage.told_warnings(),
        }

    def _event(self, kind: str, **said: Any) -> bytes:
        data = json.dumps(
            {"type": kind, "sequence_number": self._sequence, **said},
            separators=(",", ":"),
            allow_nan=False,
        )
        self._sequence += 1
        return f"event: {kind}\ndata: {data}\n\n".encode("ascii")
