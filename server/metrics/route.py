"""The route /metrics, and what is read when somebody asks for it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from fastapi import APIRouter
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector
from starlette.responses import Response

from ..documents import documented
from ..insight import Insight
from .engine_figures import ENGINE, Counted
from .figures import families
from .plan_figures import PLAN

if TYPE_CHECKING:
    from ..open_engine import OpenEngine


def labels(model: str) -> Sequence[tuple[str, str]]:
    """Those of every metric, for a model that is served by this name."""
    return (("model_name", model), ("engine", "0"))


class Read(Collector):
    """The figures that nobody counts for Prometheus: the engine's, and those of its last steps."""

    def __init__(self, engine: OpenEngine, insight: Insight) -> None:
        self._engine, self._insight = engine, insight

    def collect(self) -> Iterator[Metric]:
        """As they are now; Prometheus's library calls this."""
        common = labels(self._engine.settings.models[0])
        yield from families(ENGINE, Counted(self._engine, self._insight.llm), common)
        if (seen := self._insight.latest()) is not None:
            yield from families(PLAN, seen, common)


def metrics_router(registry: CollectorRegistry, turn: asyncio.Lock) -> APIRouter:
    """GET /metrics: what is in `registry`, and what is known of the process; one at a time."""
    ProcessCollector(registry=registry)
    router = APIRouter()

    async def metrics() -> Response:
        # Whoever prefers another form takes this too, and in others names lose their colons.
        async with turn:
            text = await asyncio.to_thread(generate_latest, registry)
        return Response(text, headers={"content-type": CONTENT_TYPE_PLAIN_0_0_4})

    router.add_api_route(
        "/metrics",
        metrics,
        methods=["GET"],
        summary="Metrics in the form of Prometheus.",
        **documented(text="text/plain", statuses=(401, 431)),
    )
    return router
