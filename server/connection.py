"""One connection: uvicorn's, with limits on what a client may leave unsaid, or unread.

An ASGI application sees a request when all its headers are there, and no sooner; and it waits
without end for a client that reads nothing. So both limits are here.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .errors import ApiError
from .settings import Limits


def connection_with(limits: Limits) -> type[asyncio.Protocol]:
    """The class of connections that obey these limits, as `uvicorn.Config` takes it."""

    class Connection(_Connection):
        pass

    Connection.limits, Connection.open = limits, set()
    return Connection


class _Connection(HttpToolsProtocol):
    limits: Limits
    open: set[_Connection]  # of the same class

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_headers = False
        self._unfinished = 0  # bytes of headers that are not complete
        self._headers_due: asyncio.TimerHandle | None = None
        self._read_due: asyncio.TimerHandle | None = None
        self._unread = 0  # bytes that were to be read when that timer began

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self.open.add(self)
        if len(self.open) > self.limits.connections:
            self._refuse(503, f"more than {self.limits.connections} connections are open")
            return
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self.open.discard(self)
        self._clear("_headers_due")
        self._clear("_read_due")
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return  # it was refused
        was_in_headers = self._in_headers
        super().data_received(data)
        if not self._in_headers:
            self._unfinished = 0
        elif was_in_headers:
            self._unfinished += len(data)
            if self._unfinished > self.limits.header_bytes:
                self._refuse(431, "the headers are too large")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_headers = True
        if self._headers_due is None:
            self._await_headers()

    def on_headers_complete(self) -> None:
        self._in_headers = False
        self._clear("_headers_due")
        super().on_headers_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._await_reader()

    def resume_writing(self) -> None:
        self._clear("_read_due")
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP is told in the same form as any other error."""
        self._refuse(400, "this is not an HTTP request")

    def _await_headers(self) -> None:
        self._headers_due = self.loop.call_later(self.limits.header_s, self._abort)

    def _await_reader(self) -> None:
        self._unread = self.transport.get_write_buffer_size()
        self._read_due = self.loop.call_later(self.limits.write_s, self._unless_read)

    def _unless_read(self) -> None:
        """Let a client go that has read nothing all the time; a slow one may go on."""
        if self.transport.get_write_buffer_size() < self._unread:
            self._await_reader()
        else:
            self._abort()

    def _abort(self) -> None:
        if not self.transport.is_closing():
            self.transport.abort()

    def _clear(self, timer: str) -> None:
        handle: asyncio.TimerHandle | None = getattr(self, timer)
        if handle is not None:
            handle.cancel()
            setattr(self, timer, None)

    def _refuse(self, status: int, message: str) -> None:
        if self.transport.is_closing():
            return
        body = ApiError(status, message).body()
        head = (
            f"HTTP/1.1 {status} Refused\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode("ascii") + body)
        self.transport.close()
