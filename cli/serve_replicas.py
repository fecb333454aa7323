"""`stepweave serve --replicas`, and `--fleet`: a front of engines of which Ray takes care."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..graph.errors import StepweaveError
from ..replicas.scale import Scale
from .reporting import say

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..configs.schema import PipelineConfig
    from ..replicas.on_ray import RayFleet
    from ..server.otel import Spans
    from ..server.settings import Settings

FLEET = "stepweave"
"""The name of the replicas, unless somebody gives another."""

Configured = Callable[[Mapping[str, Any]], "Settings"]
"""The settings of a service, for what the model's authors advise."""


def serve_many(
    config: PipelineConfig,
    scale: Scale | None,
    name: str,
    bound: socket.socket,
    *,
    configured: Configured,
    spans: Sequence[Spans],
    ready: Callable[[Settings], Callable[[], None]],
) -> None:
    """Serve with replicas: those that are started here, or without a scale those of that name.

    Raises `RayUnavailable`, and what `configured` raises.
    """
    from ..replicas.app import create_app
    from ..replicas.front import ManyEngines
    from ..replicas.on_ray import RayFleet
    from ..server.run import serve_app

    if scale is None:
        fleet = RayFleet.of_another(config, name)
    else:
        say(f"starting {scale} replicas on Ray …")
        fleet = RayFleet(config, scale, name)
    try:
        about = fleet.about()
        settings = configured(about.sampling)
        front = ManyEngines(config, fleet, about)
        app = create_app(front, settings, observers=spans)
        with _restarted_by_hangup(fleet):
            serve_app(app, bound, ready(settings))
    finally:
        fleet.close()


@contextmanager
def _restarted_by_hangup(fleet: RayFleet) -> Iterator[None]:
    """In the block HUP replaces the replicas one by one; that waits for Ray, on another thread."""
    from ..server.logs import SERVER

    def restart() -> None:
        SERVER.info("the replicas are being replaced")
        try:
            fleet.restart()
        except StepweaveError as error:
            SERVER.error("the replicas could not be replaced: %s", error)
        else:
            SERVER.info("the replicas have been replaced")

    with ThreadPoolExecutor(1, thread_name_prefix="stepweave-restart") as turn:
        if hasattr(signal, "SIGHUP"):
            signal.signal(signal.SIGHUP, lambda *_: turn.submit(restart))
        yield
