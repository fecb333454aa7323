"""Server-sent events, written as bytes: what a chunk says beside its text is made once per choice.

A chunk per step and request is the service's own cost per token, so no object is built for it:
pieces of JSON are put together. The JSON is ASCII. So no event can end within a character, and no
client takes a character for the end of a line.
"""

from __future__ import annotations

import json
from json.encoder import encode_basestring_ascii as _quoted

from .usage import Usage

DONE = b"data: [DONE]\n\n"


def quoted(text: str) -> bytes:
    """A text as JSON, in ASCII."""
    return _quoted(text).encode("ascii")


class Chunks:
    """The chunks of one choice.

    `shared`: the keys before `choices`. `usage`: chunks have it, as null but where it is asked for.
    """

    def __init__(self, shared: dict[str, object], index: int, *, with_usage: bool) -> None:
        head = json.dumps(shared, separators=(",", ":"))[:-1]
        self._head = f'data: {head},"choices":[{{"index":{index},'.encode("ascii")
        self._no_usage = b"}]" + (b',"usage":null' if with_usage else b"") + b"}\n\n"

    def chunk(
        self,
        said: bytes,
        *,
        logprobs: bytes = b"null",
        finish: bytes = b"null",
        token_ids: tuple[int, ...] | None = None,
        usage: Usage | None = None,
    ) -> bytes:
        """One event. `said`: the key of the text or of the delta, and its value; JSON all."""
        ids = b"" if token_ids is None else b',"token_ids":' + _ids(token_ids)
        end = self._no_usage if usage is None else b'}],"usage":' + _usage_so_far(usage) + b"}\n\n"
        return b"".join(
            (self._head, said, b',"logprobs":', logprobs, ids, b',"finish_reason":', finish, end)
        )


def usage_chunk(shared: dict[str, object], usage: Usage) -> bytes:
    """The last chunk of a stream that was asked for its usage: no choices."""
    return event({**shared, "choices": [], "usage": usage.to_json()})


def event(data: object) -> bytes:
    """Any object as an event."""
    return b"data: " + json.dumps(data, separators=(",", ":")).encode("ascii") + b"\n\n"


def error_event(body: bytes) -> bytes:
    """An error after the answer has begun: its body as an event."""
    return b"data: " + body + b"\n\n"


def _ids(token_ids: tuple[int, ...]) -> bytes:
    return b"[" + ",".join(map(str, token_ids)).encode("ascii") + b"]"


def _usage_so_far(usage: Usage) -> bytes:
    return json.dumps(usage.so_far(), separators=(",", ":")).encode("ascii")
