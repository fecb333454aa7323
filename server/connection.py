"""One connection: uvicorn's, with limits on what a client may leave unsaid, or unread.

An ASGI application sees a request when all its headers are there, and no sooner; and it waits
without end for a client that reads nothing. So both limits are here. So is what the application
cannot see: that a client has left while another request of its waits, and that it offers HTTP/2.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import deque
from typing import Any

from httptools import HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from .errors import ApiError
from .settings import Limits

_MOST_WAITING = 8
"""Requests of a connection, unanswered, of which another is read."""


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
        self.parser = _Parser(self)
        self._in_headers = False
        self._offered = False  # of the request that is being read: it offers an upgrade
        self._unfinished = 0  # bytes of headers that are not complete, or behind the body
        self._unanswered: deque[RequestResponseCycle] = deque()  # requests, in order
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
        for cycle in self._unanswered:  # uvicorn tells the latest alone
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return  # it was refused
        self._unfinished += len(data)
        super().data_received(data)
        if self._unfinished > self.limits.header_bytes:
            self._refuse(431, "the headers are too large")
        elif not (self._unanswered or self._headers_due or self.transport.is_closing()):
            self._await_headers()  # uvicorn takes a connection for idle until a byte comes

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_headers = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """What comes behind the body, as a header of its own, is for nobody here."""
        if self._in_headers:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_headers = False
        self._unfinished = 0
        # CONNECT is an upgrade without a header, and refused as any other method.
        self._offered = self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"
        if self._offered:
            return
        self._clear("_headers_due")
        super().on_headers_complete()
        self._unanswered.append(self.cycle)
        if len(self._unanswered) <= _MOST_WAITING:
            self.flow.resume_reading()  # or nobody would notice that the client has left

    def on_body(self, body: bytes) -> None:
        self._unfinished = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unfinished = 0
        if not self._offered:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        self._unanswered.popleft()
        super().on_response_complete()
        if self._in_headers and not (self._unanswered or self.transport.is_closing()):
            self._await_headers()

    def head_without_upgrade(self) -> bytes:
        """The head of the request whose headers have come, if its upgrade was not taken."""
        version = self.parser.get_http_version().encode()
        said = [self.parser.get_method() + b" " + self.url + b" HTTP/" + version]
        said += [name + b": " + value for name, value in self.headers if name != b"upgrade"]
        return b"\r\n".join([*said, b"", b""]) if self._offered else b""

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
        """End the connection, with this answer unless another is due first, or has begun."""
        if self.transport.is_closing():
            return
        if not self._unanswered or _not_read_yet(self._unanswered[0]):
            body = ApiError(status, message).body()
            head = (
                f"HTTP/1.1 {status} Refused\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode("ascii") + body)
        self.transport.close()


def _not_read_yet(cycle: RequestResponseCycle) -> bool:
    """Whether its body is not complete, and its answer has not begun."""
    return cycle.more_body and not cycle.response_started


class _Parser(HttpRequestParser):
    """Reads a request that offers an upgrade, as to HTTP/2, as if it offered none.

    A server may do so, and clients such as Java's offer it with each request. httptools takes what
    follows the headers for the other protocol, so another parser reads the request again.
    """

    def __init__(self, connection: _Connection) -> None:
        super().__init__(connection)
        # As uvicorn has it: a client may send another request behind its last.
        self.set_dangerous_leniencies(lenient_data_after_close=True)
        self._connection = connection

    def feed_data(self, data: bytes | bytearray | memoryview | array[int]) -> None:
        parser, rest = self, memoryview(data)
        while True:
            try:
                HttpRequestParser.feed_data(parser, rest)
                return
            except HttpParserUpgrade as upgrade:
                head = self._connection.head_without_upgrade()
                if not head:
                    raise
                parser = self._connection.parser = _Parser(self._connection)
                HttpRequestParser.feed_data(parser, head)
                rest = rest[upgrade.args[0] :]
