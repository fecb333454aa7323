"""The service as a process: it listens, takes signals, and ends in order."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from math import ceil
from time import monotonic
from typing import TYPE_CHECKING

import uvicorn

from .app import Router, create_app
from .connection import connection_with
from .logs import SERVER, fields
from .observers import Observer
from .open_engine import OpenEngine
from .settings import Limits, Settings

if TYPE_CHECKING:
    from fastapi import FastAPI

    from ..graph.errors import StepweaveError
    from ..serving.async_llm import AsyncLLM

OnEnd = Callable[[Callable[["StepweaveError"], None]], None]
"""Has a function called, on any thread, when nothing can be served any more."""

CLOSING_S = 1.0
"""After the drain limit: for connections that are still open."""

LAST_RESORT_S = 5.0
"""After the drain limit the process is ended, whatever it waits for."""

OTHER_FILES = 256
"""Files that are open beside the connections: pipes to compiling processes, for example."""

_ONE_PRESS_S = 1.0  # a shell may signal the process and its group: still one Ctrl-C


def listening(host: str, port: int) -> socket.socket:
    """A socket that is bound and will listen. Raises `OSError`."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except BaseException:
        bound.close()
        raise
    return bound


def configured(app: FastAPI, limits: Limits) -> uvicorn.Config:
    """How uvicorn runs the application: with our connections, and without its own logs."""
    return uvicorn.Config(
        app,
        http=connection_with(limits),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=int(limits.idle_s),
        timeout_graceful_shutdown=max(int(CLOSING_S), 1),
    )


def serve(
    llm: AsyncLLM,
    settings: Settings,
    bound: socket.socket,
    *,
    routers: Sequence[Router] = (),
    observers: Sequence[Observer] = (),
    on_ready: Callable[[], None] = lambda: None,
) -> bool:
    """Serve until TERM or Ctrl-C, then finish what runs within the drain limit, and return.

    For the main thread: it takes both signals. A second one ends the process at once. `on_ready`
    is called when requests are taken. The engine is closed at the end. False: it has ended since
    the group has of whose ranks this is one, so that nothing could be served any more.
    """
    if (grammars := llm.service.intake.grammars) is not None:
        grammars.start_all()
    app = create_app(llm, settings, routers=routers, observers=observers)
    return serve_app(app, bound, on_ready, on_end=llm.service.on_group_end)


def serve_app(
    app: FastAPI,
    bound: socket.socket,
    on_ready: Callable[[], None] = lambda: None,
    on_end: OnEnd = lambda tell: None,
) -> bool:
    """The same of an application that is there; `on_end` has a function called with the error
    after which nothing can be served.
    """
    limits = app.state.engine.settings.limits
    _allow_files(limits.connections + OTHER_FILES)
    config = configured(app, limits)
    service = _Service(config, app.state.engine, on_ready)
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(service.run(bound, on_end))
    return not service.failed


def _allow_files(wanted: int) -> None:
    """Raise this process's own limit on open files, as far as it may: a connection is one."""
    try:
        import resource
    except ImportError:  # not on this system
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


class _Server(uvicorn.Server):
    """Without uvicorn's handling of signals, which refuses connections while requests run."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Service:
    def __init__(
        self, config: uvicorn.Config, engine: OpenEngine, on_ready: Callable[[], None]
    ) -> None:
        self._server = _Server(config)
        self._engine = engine
        self._on_ready = on_ready
        self._first_signal: float | None = None
        self._draining: asyncio.Task[None] | None = None
        self.failed = False

    async def run(self, bound: socket.socket, on_end: OnEnd) -> None:
        loop = asyncio.get_running_loop()
        on_end(partial(_call_soon, loop, self._fail))
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._signalled, number)
        self._engine.front.start()
        announcing = asyncio.create_task(self._announce())
        try:
            await self._server.serve(sockets=[bound])
        finally:
            announcing.cancel()
            await self._engine.front.close()

    async def _announce(self) -> None:
        while not self._server.started:
            await asyncio.sleep(0.01)
        self._on_ready()

    def _signalled(self, number: int) -> None:
        now = monotonic()
        if self._first_signal is None:
            self._first_signal = now
            self._engine.draining = True
            self._draining = asyncio.create_task(self._drain())
        elif now - self._first_signal > _ONE_PRESS_S:
            SERVER.warning("ended at once, by a second signal")
            os._exit(128 + number)

    def _fail(self, error: StepweaveError) -> None:
        """End, so that whoever watches the process starts it anew. All streams have been told."""
        SERVER.error("nothing can be served any more", extra=fields(error=error.message))
        self.failed = True
        _end_after(LAST_RESORT_S)
        self._server.should_exit = True

    async def _drain(self) -> None:
        """Finish what runs, cancel what has not ended in time, and let the server end.

        What has been generated is not yet read: for that clients have what is left of the limit.
        """
        limit = self._engine.settings.drain_s
        ends_s = monotonic() + limit
        _end_after(limit + LAST_RESORT_S)
        front = self._engine.front
        SERVER.info("draining", extra=fields(running=front.running, queued=front.queued))
        if not await front.drain(limit):
            SERVER.warning("not all requests ended within the drain limit: they are cancelled")
            front.cancel_all()
        left_s = max(ends_s - monotonic(), CLOSING_S)
        self._server.config.timeout_graceful_shutdown = ceil(left_s)
        self._server.should_exit = True


def _call_soon(
    loop: asyncio.AbstractEventLoop, tell: Callable[[StepweaveError], None], error: StepweaveError
) -> None:
    with suppress(RuntimeError):  # the loop is closed: all has ended
        loop.call_soon_threadsafe(tell, error)


def _end_after(seconds: float) -> None:
    """End the process then, whatever it waits for."""
    last = threading.Timer(seconds, os._exit, (1,))
    last.daemon = True
    last.start()
