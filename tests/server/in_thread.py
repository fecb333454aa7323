"""A service in a thread of the test's own process: real sockets, and the embedded model."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI

from stepweave.server.app import Router, create_app
from stepweave.server.observers import Observer
from stepweave.server.open_engine import OpenEngine
from stepweave.server.run import configured, listening
from stepweave.server.settings import Settings
from stepweave.serving.async_llm import AsyncLLM


@dataclass
class Running:
    """A service that answers at `url`; its `engine` is what the routes share."""

    url: str
    port: int
    app: FastAPI
    loop: asyncio.AbstractEventLoop
    llm: AsyncLLM

    @property
    def engine(self) -> OpenEngine:
        found = self.app.state.engine
        assert isinstance(found, OpenEngine)
        return found

    @property
    def paths(self) -> set[str]:
        """Every path that the application answers, by its document and beside it."""
        return {*self.app.openapi()["paths"], "/openapi.json"}

    def client(self, **options: Any) -> httpx.Client:
        # Without `verify` each would read the certificates of the machine, for plain HTTP.
        return httpx.Client(
            base_url=self.url, timeout=120, trust_env=False, verify=False, **options
        )


@contextmanager
def running(
    settings: Settings | None = None,
    overrides: Mapping[str, Any] | None = None,
    *,
    pipeline: str = "quickstart",
    model: Any = None,
    routers: Sequence[Router] = (),
    observers: Sequence[Observer] = (),
    prepare: Callable[[AsyncLLM], object] = lambda _: None,
    send_bytes: int | None = None,
) -> Iterator[Running]:
    """In the block a service answers; its engine is closed at the end.

    `prepare` may change the engine before it runs. `send_bytes`: of what it has sent and a client
    has not read, the machine keeps about so much; None: some megabytes.
    """
    settings = settings or Settings(models=("embedded",))
    llm = AsyncLLM(model, pipeline=pipeline, overrides=overrides)
    prepare(llm)
    app = create_app(llm, settings, routers=routers, observers=observers)
    bound = listening("127.0.0.1", 0)
    if send_bytes is not None:  # each connection has it from here
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_bytes)
    bound.listen()  # so that whoever connects early waits
    server = uvicorn.Server(configured(app, settings.limits))
    started: list[asyncio.AbstractEventLoop] = []
    begun = threading.Event()

    async def main() -> None:
        started.append(asyncio.get_running_loop())
        llm.start()
        begun.set()
        try:
            await server.serve(sockets=[bound])
        finally:
            await llm.close()

    def work() -> None:
        with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
            runner.run(main())

    thread = threading.Thread(target=work, name="test-service")
    thread.start()
    try:
        assert begun.wait(60), "the service did not start"
        port = bound.getsockname()[1]
        yield Running(f"http://127.0.0.1:{port}", port, app, started[0], llm)
    finally:
        server.should_exit = True
        thread.join(60)
    assert not thread.is_alive(), "the service did not end"
