"""A body that is sent piece by piece, as it comes about.

A piece per step and answer is what a service does most. So it is sent where it comes about, on the
event loop, and by the connection itself: a task's turn, and a way through every layer around the
routes, would cost more than the piece. A task sends only what the client is not ready for.
"""

from __future__ import annotations

import asyncio
from asyncio import sleep
from collections.abc import Coroutine, Generator, Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from types import coroutine
from typing import Any

from starlette.types import Message, Send

KEEP_ALIVE = b": keep-alive\n\n"
"""A comment of server-sent events: a connection that is silent for long is cut by many proxies."""


class StreamedBody:
    """Status 200 and these headers, with the first piece; then each piece, in order.

    `send` is that of the route, for the start. `connection` is the outermost one, for the pieces.
    In a block of `kept_alive`, `KEEP_ALIVE` is written where nothing else is for `keep_alive_s`
    seconds, or for less than twice as many.
    """

    def __init__(
        self,
        send: Send,
        connection: Send,
        headers: Sequence[tuple[bytes, bytes]],
        keep_alive_s: float | None = None,
    ) -> None:
        self._send, self._connection = send, connection
        self._headers = headers
        self._context = copy_context()
        self._kept: list[bytes] = []  # pieces that the task will send
        self._task: asyncio.Task[None] | None = None
        self._keep_alive_s = keep_alive_s
        self._wrote = False  # since the latest look whether anything was written
        self.begun = False

    @contextmanager
    def kept_alive(self) -> Iterator[None]:
        """In the block something is sent now and then, whatever comes about."""
        if self._keep_alive_s is None:
            yield
            return
        speaking = asyncio.create_task(self._speak(self._keep_alive_s))
        try:
            yield
        finally:
            speaking.cancel()

    async def _speak(self, seconds: float) -> None:
        while True:
            await sleep(seconds)
            if not self._wrote:
                self.write(KEEP_ALIVE)
            self._wrote = False

    def write(self, piece: bytes) -> None:
        """Send this, or have it sent; on the event loop. An empty piece changes nothing."""
        if not piece:
            return
        self._wrote = True
        if self._task is not None:
            self._kept.append(piece)
            return
        if not self.begun:
            self.begun = True
            self._have_sent(self._start(piece))
            return
        sending: Coroutine[Any, Any, None] = self._connection(_message(piece))  # type: ignore[assignment]
        try:
            waits_for = sending.send(None)
        except StopIteration:
            return
        self._have_sent(_rest_of(sending, waits_for))

    async def end(self, piece: bytes) -> None:
        """Send the last piece. Raises what the connection raised of any of them."""
        if self._task is not None:
            await self._task
        if self.begun:
            await self._connection(_message(piece, more=False))
        else:
            self.begun = True
            await self._start(piece, more=False)

    def _have_sent(self, first: Coroutine[Any, Any, None]) -> None:
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._send_kept(first), context=self._context)

    async def _send_kept(self, first: Coroutine[Any, Any, None]) -> None:
        await first
        while self._kept:
            piece = b"".join(self._kept)
            self._kept.clear()
            await self._connection(_message(piece))
        self._task = None

    async def _start(self, piece: bytes, *, more: bool = True) -> None:
        await self._send(
            {"type": "http.response.start", "status": 200, "headers": [*self._headers]}
        )
        await self._connection(_message(piece, more=more))


def _message(piece: bytes, *, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": piece, "more_body": more}


@coroutine
def _rest_of(begun: Coroutine[Any, Any, None], waits_for: object) -> Generator[object, Any, None]:
    """What is left of a coroutine that was begun outside of a task, and waits for this."""
    try:
        yield waits_for
        yield from begun.__await__()
    finally:
        begun.close()
