"""What every HTTP request passes: its id, the limits on headers, the key, and its line in the log.

A plain ASGI application around the routes, so that bytes of a stream go through it unchanged.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Mapping, Sequence
from time import perf_counter

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import ApiError
from .keys import Keys
from .logs import ACCESS, SERVER, fields
from .observers import Exchange, Observer, tell
from .settings import Settings

OPEN_PATHS = frozenset({"/health", "/ready", "/"})
"""What answers without a key: whoever restarts a service that hangs has none, and a browser has
no header for it; the page asks for the key, and has nothing to tell without."""

ASKED_OFTEN = frozenset({"/health", "/ready", "/live", "/metrics"})
"""What programs ask every few seconds: as long as all is well, the log has it on debug only."""

CLIENT_LEFT = 499

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")


class Gate:
    """Lets requests through to `app`, and answers for it where it fails."""

    def __init__(self, app: ASGIApp, settings: Settings, observers: Sequence[Observer]) -> None:
        self._app = app
        self._keys = Keys(settings.api_keys)
        self._limits = settings.limits
        self._hosts = settings.hosts
        self._observers = tuple(observers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers: Sequence[tuple[bytes, bytes]] = scope["headers"]
        exchange = Exchange(
            request_id(headers), scope["method"], scope["path"], trace=_trace(headers)
        )
        scope["state"]["exchange"] = exchange
        scope["state"]["send"] = send
        echoed = (b"x-request-id", exchange.id.encode())

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                message["headers"] = [*message.get("headers", ()), echoed]
            await send(message)

        try:
            try:
                exchange.key = self._check(scope, headers)
                await self._app(scope, receive, sending)
            except ClientDisconnect:
                exchange.status = CLIENT_LEFT
            except ApiError as error:
                await error.response()(scope, receive, sending)
            except Exception:
                SERVER.exception("a request has failed", extra=fields(request_id=exchange.id))
                if exchange.status:
                    raise  # the answer has begun: only the connection's end can tell of it
                await ApiError(500, "the service has failed").response()(scope, receive, sending)
        finally:
            self._tell(exchange)

    def _check(self, scope: Scope, headers: Sequence[tuple[bytes, bytes]]) -> bytes:
        """The digest of the key that was given, where one is needed."""
        limits = self._limits
        size = sum(len(name) + len(value) for name, value in headers)
        size += len(scope.get("raw_path") or b"") + len(scope["query_string"])
        if len(headers) > limits.headers or size > limits.header_bytes:
            raise ApiError(
                431,
                f"more than {limits.headers} headers, or {limits.header_bytes} bytes of them",
                headers={"connection": "close"},
            )
        self._check_host(headers)
        if scope["path"] in OPEN_PATHS:
            return b""
        return self._keys.check(_header(headers, b"authorization"))

    def _check_host(self, headers: Sequence[tuple[bytes, bytes]]) -> None:
        if self._hosts is None:
            return
        said = (_header(headers, b"host") or b"").decode("latin-1")
        name = said.partition("]")[0].lstrip("[") if said.startswith("[") else said.split(":")[0]
        if name.lower() not in self._hosts:
            raise ApiError(
                421,
                f"this host is not {name[:80]!r}: call it {' or '.join(sorted(self._hosts))}, or "
                "start the service with an API key",
            )

    def _tell(self, exchange: Exchange) -> None:
        often = exchange.path in ASKED_OFTEN and exchange.status == 200
        ACCESS.log(
            logging.DEBUG if often else logging.INFO,
            "request",
            extra=fields(
                request_id=exchange.id,
                method=exchange.method,
                path=exchange.path[:200],
                status=exchange.status,
                duration_ms=round((perf_counter() - exchange.began_s) * 1e3, 3),
                **exchange.notes,
            ),
        )
        tell(self._observers, "answered", exchange)


def request_id(headers: Sequence[tuple[bytes, bytes]]) -> str:
    """The client's `X-Request-Id`, if it is a short name; else a new one.

    It is written into logs and headers, and never read for anything else.
    """
    given = _header(headers, b"x-request-id")
    if given is not None and _REQUEST_ID.fullmatch(given):
        return given.decode("ascii")
    return secrets.token_hex(12)


def _trace(headers: Sequence[tuple[bytes, bytes]]) -> Mapping[str, str]:
    """Of which trace of the client's the request is a part, by W3C Trace Context."""
    found = {name: _header(headers, name.encode()) for name in ("traceparent", "tracestate")}
    return {name: value.decode("latin-1") for name, value in found.items() if value is not None}


def _header(headers: Sequence[tuple[bytes, bytes]], name: bytes) -> bytes | None:
    return next((value for key, value in headers if key == name), None)
