"""The reference: one thread, the reference order, no overlap.

It takes nothing from the plan's actors and waits, so it is what every other executor is compared
with: ops run by (step + declared offset, listing position), and every version of a value has a
cell of its own for as long as the reference order needs it. A graph whose listing reads a version
before it is written is no serial program, though it may have a plan: it is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter

from ..graph.errors import StepweaveError
from ..graph.plan import Plan
from ..graph.step_graph import StepGraph, Vertex
from .asked import Asked
from .context import Memory
from .frontier import Frontier
from .instructions import Desk, interpret
from .report import OpEvent, RunReport
from .trace import timed


def run_serial(plan: Plan, asked: Asked) -> RunReport:
    """Run in the reference order on the calling thread. Nothing waits, so nothing is watched."""
    graph = plan.graph
    _refuse_reads_before_writes(graph)
    offsets = [vertex.offset for vertex in graph.vertices.values()] or [0]
    frontier = Frontier(asked.steps, tail=max(offsets), ahead=1 << 60)
    sizes = {name: _cells_needed(graph, name, plan.slots.get(name)) for name in graph.values}
    memory = Memory.of(graph, sizes, asked.states, asked.keep, frontier)
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
                run=timed(context.vertex, origin, events) if asked.trace else context.vertex.op.run,
            ),
            context.vertex.offset,
        )
        for context in memory.contexts.values()
    ]
    iteration = min(offsets)  # no earlier one has a step ≥ 0
    try:
        while iteration <= frontier.end and program:
            for perform, offset in program:
                perform(iteration - offset)
            iteration += 1
    except Exception as cause:
        raise desk.failure(cause) from cause
    return RunReport(
        steps=frontier.steps,
        kept=memory.histories(frontier.steps),
        events=tuple(sorted(events, key=lambda event: event.start_s)),
        seconds=perf_counter() - origin,
    )


def _writers_and_readers(graph: StepGraph) -> Iterator[tuple[str, Vertex, Vertex, int]]:
    """(value, its writer, a reader, carry)."""
    vertices = graph.vertices.values()
    writers = {name: v for v in vertices for name in v.op.writes if name in graph.values}
    for reader in vertices:
        for read in reader.op.reads:
            if read.name in writers:
                yield read.name, writers[read.name], reader, read.carry


def _refuse_reads_before_writes(graph: StepGraph) -> None:
    for name, writer, reader, carry in _writers_and_readers(graph):
        if (writer.offset, writer.position) >= (reader.offset + carry, reader.position):
            raise StepweaveError(
                f"{graph.name}: in the listing order, op {reader.name!r} reads {name!r} of "
                f"{f'step i - {carry}' if carry else 'its own step'} before {writer.name!r} has "
                f"written it. List node {writer.node.name!r} before {reader.node.name!r}, or read "
                f"an earlier version.",
                code="SW-LISTING-ORDER",
                line=reader.node.line,
            )


def _cells_needed(graph: StepGraph, name: str, slots: int | None) -> int:
    """Cells for as many versions as the reference order has alive at once, at least K.

    Version i lives until each reader, at step i + carry, has come up in the reference order.
    At least the carry, too: so no cell is used again after a reader was skipped that was past
    the last step, and every reader of a cell's earlier versions has been counted.
    """
    alive = [
        max(carry, carry + reader.offset - writer.offset + (reader.position >= writer.position))
        for value, writer, reader, carry in _writers_and_readers(graph)
        if value == name
    ]
    return max(slots or 1, max(alive, default=0))
