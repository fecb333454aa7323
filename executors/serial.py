"""The reference: one thread, the reference order, no overlap.

It takes nothing from the plan's actors and waits, so it is what every other executor is compared
with: ops run by (step + declared offset, listing position), and every version of a value has a
cell of its own for as long as the reference order needs it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter

from ..graph.plan import Plan
from ..graph.step_graph import StepGraph
from .context import Memory
from .errors import NodeFailure
from .frontier import Frontier
from .instructions import Desk, interpret
from .report import OpEvent, RunReport
from .trace import timed


def run_serial(
    plan: Plan,
    *,
    steps: int | None,
    states: Mapping[str, object],
    keep: Sequence[str],
    trace: bool,
    watchdog_s: float | None,
) -> RunReport:
    """Run in the reference order on the calling thread. Nothing waits, so nothing is watched."""
    graph = plan.graph
    offsets = [vertex.offset for vertex in graph.vertices.values()] or [0]
    spread = max(offsets) - min(offsets)
    frontier = Frontier(steps, tail=max(offsets), ahead=1 << 60)
    sizes = {name: _cells_needed(graph, name, spread, plan.slots.get(name)) for name in graph.values}
    memory = Memory.of(graph, sizes, states, keep, frontier)
    events: list[OpEvent] = []
    desk = Desk()
    origin = perf_counter()
    program = [
        (
            interpret(
                context,
                memory,
                frontier,
                desk,
                run=timed(context.vertex, origin, events) if trace else context.vertex.op.run,
            ),
            context.vertex.offset,
        )
        for context in memory.contexts.values()
    ]
    iteration = min(offsets)
    try:
        while iteration <= frontier.end and program:
            for perform, offset in program:
                perform(iteration - offset)
            iteration += 1
    except Exception as cause:
        at = desk.at
        assert at is not None, "only an op can fail"
        raise NodeFailure(at.vertex.node.name, at.vertex.name, at.step, cause) from cause
    return RunReport(
        steps=frontier.steps,
        kept=memory.histories(frontier.steps),
        events=tuple(sorted(events, key=lambda event: event.start_s)),
        seconds=perf_counter() - origin,
    )


def _cells_needed(graph: StepGraph, name: str, spread: int, slots: int | None) -> int:
    """Cells for as many versions as the reference order has alive at once, at least K."""
    carries = [
        read.carry for v in graph.vertices.values() for read in v.op.reads if read.name == name
    ]
    return max(slots or 1, max(carries, default=0) + spread + 1)
