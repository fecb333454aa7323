"""The routes of the live page: the page, which tells nothing, and what it asks for."""

from __future__ import annotations

import asyncio
import json
import threading
from time import monotonic, perf_counter

from fastapi import APIRouter
from starlette.responses import HTMLResponse, Response

from ...views.live_page import live_page
from ..documents import documented
from ..insight import Insight
from ..open_engine import OpenEngine
from .snapshot import snapshot

FRESH_S = 0.4
"""So long one answer is given to all who ask: many pages cost the service what one costs."""


class Told:
    """The answer of the moment, as bytes; safe to ask from several threads."""

    def __init__(self, engine: OpenEngine, insight: Insight) -> None:
        self._engine, self._insight = engine, insight
        self._began = perf_counter()
        self._lock = threading.Lock()
        self._text = b""
        self._until = 0.0

    def text(self) -> bytes:
        """JSON, at most `FRESH_S` old, as `snapshot` says."""
        with self._lock:
            if monotonic() >= self._until:
                found = snapshot(self._engine, self._insight, self._began)
                self._text = json.dumps(found, separators=(",", ":")).encode()
                self._until = monotonic() + FRESH_S
            return self._text


def live_router(engine: OpenEngine, insight: Insight) -> APIRouter:
    """GET /, which needs no key and has nothing to tell, and GET /live."""
    page = live_page(key=bool(engine.settings.api_keys))
    headers = {
        "content-security-policy": page.policy,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-cache",
    }
    told = Told(engine, insight)
    router = APIRouter()

    async def show() -> Response:
        return HTMLResponse(page.html, headers=headers)

    async def live() -> Response:
        async with insight.turn:
            text = await asyncio.to_thread(told.text)
        return Response(text, media_type="application/json", headers={"cache-control": "no-store"})

    router.add_api_route(
        "/",
        show,
        methods=["GET"],
        summary="The live page.",
        **documented(text="text/html", statuses=(431,)),
    )
    router.add_api_route(
        "/live",
        live,
        methods=["GET"],
        summary="What the live page shows.",
        **documented(text="application/json", statuses=(401, 431)),
    )
    return router
