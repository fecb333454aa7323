"""Answers while the engine works: a stream of events, or one object at the end.

Both are ASGI responses of their own. While they wait for the engine they also wait for the client
to leave, and cancel then; its rows and blocks are free at the next step.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .calls import Batch, Call
from .errors import ApiError
from .forms import Form
from .gate import CLIENT_LEFT
from .observers import Exchange
from .streamed_body import StreamedBody

_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # a proxy would gather events otherwise
]


class _Answer(Response):
    """Base: a call, the form in which it is told, and the exchange that it is part of."""

    def __init__(self, call: Call, form: Form, exchange: Exchange) -> None:
        # Without the base class's: it would render a body.
        self.background = None
        self._call, self._form, self._exchange = call, form, exchange
        self._left = False

    @asynccontextmanager
    async def _watched(self, receive: Receive) -> AsyncIterator[None]:
        """In the block a client that leaves cancels the call."""
        watcher = asyncio.create_task(self._cancel_when_left(receive))
        try:
            yield
        finally:
            watcher.cancel()
            self._note()

    async def _cancel_when_left(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._left = True
        self._call.cancel()

    def _note(self) -> None:
        """What the log says of it."""
        usage, outputs = self._call.usage, self._call.outputs
        timings = [each.timings for each in outputs.values() if each.timings is not None]
        first = [each.first_token_s for each in timings if each.first_token_s is not None]
        self._exchange.notes |= {
            "prompt_tokens": usage.prompt,
            "completion_tokens": usage.completion,
            "cached_tokens": usage.cached,
            "finish_reasons": [each.finish_reason for _, each in sorted(outputs.items())],
            "first_token_ms": round(min(first) * 1e3, 3) if first else None,
        }
        if self._left:
            self._exchange.status = CLIENT_LEFT


class WholeAnswer(_Answer):
    """One object, when every choice has ended."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._watched(receive):
            try:
                await self._call.told(lambda batch: None)
            except ApiError as error:
                await error.response()(scope, receive, send)
                return
            if self._left:
                return
            ended = [self._call.outputs[each] for each in range(self._call.served.choices)]
            body = await asyncio.to_thread(self._form.whole, ended)  # megabytes, for some calls
            await Response(body, media_type="application/json")(scope, receive, send)


class StreamedAnswer(_Answer):
    """Server-sent events as the engine settles tokens.

    All increments that are there at the same time are one write. The status is sent with the first
    of them, or with the first sign of life: a call that fails before has the status of its error.
    """

    def __init__(
        self, call: Call, form: Form, exchange: Exchange, keep_alive_s: float | None
    ) -> None:
        super().__init__(call, form, exchange)
        self._keep_alive_s = keep_alive_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._watched(receive):
            connection = scope["state"]["send"]
            out = StreamedBody(send, connection, _STREAM_HEADERS, self._keep_alive_s)
            events = self._form.events

            def heard(batch: Batch) -> None:
                out.write(b"".join([events(choice, increment) for choice, increment in batch]))

            try:
                with out.kept_alive():
                    await self._call.told(heard)
            except ApiError as error:
                if out.begun:
                    await out.end(self._form.failed(error))
                else:
                    await error.response()(scope, receive, send)
            else:
                await out.end(self._form.ending())
