"""Timing of single ops, for runs that ask for it."""

from __future__ import annotations

import math
from collections.abc import Callable
from time import perf_counter

from ..graph.node import Node, Op
from ..graph.step_graph import Vertex
from .context import Context
from .frontier import Frontier
from .homes import Homes
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


def overhead_us() -> float:
    """What noting one op costs here, in µs: two readings of the clock, and an entry."""
    vertex = Vertex("op", Node("node"), Op(), "host", "driver", 0, 0, None)
    events: list[OpEvent] = []
    noted = timed(vertex, 0.0, events)
    context = Context(vertex, {}, {}, Frontier(1, tail=0), Homes())
    best = math.inf  # of some, since other programs may get in between
    for _ in range(5):
        start = perf_counter()
        for _ in range(400):
            noted(context)
        best = min(best, (perf_counter() - start) / 400)
    return best * 1e6
