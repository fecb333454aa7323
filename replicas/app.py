"""The API over a front: the routes of one engine's service, and metrics of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fastapi import APIRouter, FastAPI
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from ..server.app import app_over
from ..server.metrics.figures import Figure, families
from ..server.metrics.histograms import Latencies
from ..server.metrics.route import labels, metrics_router
from ..server.observers import Observer
from ..server.open_engine import OpenEngine
from ..server.settings import Settings
from .front import ManyEngines


def create_app(
    front: ManyEngines, settings: Settings, *, observers: Sequence[Observer] = ()
) -> FastAPI:
    """The API over a front and its metrics. The replicas have no page and no metrics here."""
    registry = CollectorRegistry()

    def looks(engine: OpenEngine) -> Sequence[APIRouter]:
        registry.register(Read(Counted(engine, front)))
        return [metrics_router(registry, asyncio.Lock())]

    latencies = Latencies(registry, labels(settings.models[0]))
    return app_over(front, settings, latencies, looks=looks, observers=observers)


@dataclass(frozen=True)
class Counted:
    """A front while it serves."""

    engine: OpenEngine
    front: ManyEngines


class Read(Collector):
    """The figures of a front, read when somebody asks."""

    def __init__(self, of: Counted) -> None:
        self._of = of

    def collect(self) -> Iterator[Metric]:
        """As they are now; Prometheus's library calls this."""
        yield from families(FIGURES, self._of, labels(self._of.engine.settings.models[0]))


FIGURES: tuple[Figure[Counted], ...] = (
    Figure(
        "vllm:num_requests_running",
        "gauge",
        "Completions that a replica has taken in.",
        lambda of: of.front.running,
    ),
    Figure(
        "vllm:num_requests_waiting",
        "gauge",
        "Completions that no replica has taken in yet.",
        lambda of: of.front.queued,
    ),
    Figure(
        "stepweave:replicas",
        "gauge",
        "Replicas that take requests.",
        lambda of: of.front.fleet.live,
    ),
    Figure(
        "stepweave:moved_requests_total",
        "counter",
        "How often a completion has gone on at another replica, because its own was lost.",
        lambda of: of.front.moves,
    ),
    Figure(
        "stepweave:up",
        "gauge",
        "1 while at least one replica takes requests.",
        lambda of: int(of.front.alive),
    ),
    Figure(
        "stepweave:draining",
        "gauge",
        "1 while the service finishes what runs and takes nothing in.",
        lambda of: int(of.engine.draining),
    ),
)
