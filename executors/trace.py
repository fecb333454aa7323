"""Timing of single ops, for runs that ask for it."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from ..graph.step_graph import Vertex
from .context import Context
from .report import OpEvent


def timed(vertex: Vertex, origin: float, events: list[OpEvent]) -> Callable[[Context], None]:
    """The op's run, which notes when it began and ended. `list.append` is atomic."""
    run, op, actor = vertex.op.run, vertex.name, vertex.actor

    def timed_run(context: Context) -> None:
        start = perf_counter()
        if run is not None:
            run(context)
        events.append(OpEvent(op, context.step, actor, start - origin, perf_counter() - origin))

    return timed_run
