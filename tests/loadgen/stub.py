"""A small server of the OpenAI API on loopback, whose models behave well or badly by name."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web

GOOD = "good"  # counts tokens in every chunk
PLAIN = "plain"  # refuses every stream option, and counts nothing
LATE = "late"  # counts at the end only, and refuses continuous_usage_stats
FIRST = 2  # requests that a benchmark sends before its load
BAD = {
    "busy": (429, {"error": {"message": "the queue is full", "type": "overloaded"}}),
    "down": (503, {"detail": "draining"}),
    "odd": (418, ["teapot"]),
}


class Stub:
    """`bodies` has what came; a prompt is two tokens a word and seven more."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.url = ""
        self.models = [GOOD]
        self.key: str | None = None  # that a list of the models needs
        self.quiet: asyncio.Event | None = None  # set when the server ends
        self.came = threading.Condition()  # notified of every request

    def wait_for(self, requests: int) -> None:
        """Until so many requests have come."""
        with self.came:
            assert self.came.wait_for(lambda: len(self.bodies) >= requests, timeout=300)

    def _behaviour(self, model: str) -> str:
        """`good-then-busy` answers the first requests, which every benchmark begins with."""
        first, _, then = model.partition("-then-")
        return then if then and len(self.bodies) > FIRST else first

    async def answer(self, request: web.Request) -> web.StreamResponse:
        asked = json.loads(await request.text())
        self.bodies.append(asked)
        self.headers.append(dict(request.headers))
        with self.came:
            self.came.notify_all()
        model = self._behaviour(asked["model"])
        if refused := self._refused(asked, model):
            return web.json_response(refused[1], status=refused[0])
        if model == "page":
            return web.Response(text="<html>hello</html>", content_type="text/html")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        if model == "silent":
            assert self.quiet is not None
            await self.quiet.wait()
        for event in self._events(asked, model):
            await response.write(f"data: {event}\n\n".encode())
        if model == "cut" and request.transport is not None:
            request.transport.close()
        return response

    def _refused(self, asked: dict[str, Any], model: str) -> tuple[int, Any] | None:
        options = asked.get("stream_options", {})
        if (options and model == PLAIN) or ("continuous_usage_stats" in options and model == LATE):
            return 422, {"detail": "unknown stream option"}
        if model in BAD:
            return BAD[model]
        if model not in (GOOD, PLAIN, LATE, "page", "silent", "cut", "breaks"):
            return 404, {"error": {"message": f"no model {model}"}}
        return None

    def _events(self, asked: dict[str, Any], model: str) -> Iterator[str]:
        text = asked["messages"][0]["content"] if "messages" in asked else asked["prompt"]
        count = asked.get("max_tokens", 4)

        def chunk(said: str, so_far: int, finish: str | None = None) -> str:
            usage = {"prompt_tokens": 2 * len(text.split()) + 7, "completion_tokens": so_far}
            choice = {"delta": {"content": said}, "text": said, "finish_reason": finish}
            return json.dumps({"choices": [choice]} | ({"usage": usage} if counted else {}))

        counted = model == GOOD
        yield chunk("", 0)
        for number in range(count):
            yield chunk("x", number + 1)
        if model == "cut":
            return
        if model == "breaks":
            yield json.dumps({"error": {"message": "the engine failed"}})
            return
        counted = model in (GOOD, LATE)
        yield chunk("", count, "length")
        yield "[DONE]"

    async def list_models(self, request: web.Request) -> web.Response:
        if self.key is not None and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.json_response({"error": {"message": "a key is needed"}}, status=401)
        return web.json_response({"data": [{"id": name} for name in self.models]})

    async def metrics(self, request: web.Request) -> web.Response:
        """Each request drafts twice three tokens, of which two and one are accepted."""
        asked = len(self.bodies)
        lines = [
            f"stepweave:spec_decode_num_drafts_total {2 * asked}",
            f"stepweave:spec_decode_num_draft_tokens_total {6 * asked}",
            f"stepweave:spec_decode_num_accepted_tokens_total {3 * asked}",
        ]
        return web.Response(text="\n".join(lines))

    async def run(self, ready: threading.Event, end: threading.Event) -> None:
        self.quiet = asyncio.Event()
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self.answer)
        app.router.add_post("/v1/completions", self.answer)
        app.router.add_get("/v1/models", self.list_models)
        app.router.add_get("/metrics", self.metrics)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        ready.set()
        await asyncio.to_thread(end.wait)
        self.quiet.set()
        await runner.cleanup()


@contextmanager
def served() -> Iterator[Stub]:
    """The server in a thread of its own, with a loop of its own."""
    stub, ready, end = Stub(), threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(stub.run(ready, end)))
    thread.start()
    ready.wait()
    try:
        yield stub
    finally:
        end.set()
        thread.join()
