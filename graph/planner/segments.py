"""Runs of device ops that the host may hand over as one: what a device can capture and replay.

Two device ops that follow each other on a stream belong together if nothing can come between:
the second waits for no event and nobody waits for the first's, and the second's launch comes right
after the first's on the same host thread and has nothing to do there but launch. Then launching
both at the first's launch is the same plan, and the whole run can be a captured graph: recorded
once, launched by a single call. The segments are the longest such runs.

Where a grammar's mask has to come from the host, a step falls into the part before the mask and the
part from it on; without one it is a single segment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..plan import Plan


@dataclass(frozen=True, slots=True)
class Segment:
    """Device ops of one stream, in order; `states` and `values` are what they touch."""

    stream: str
    ops: tuple[str, ...]
    reads: frozenset[str]  # values of earlier segments, or of the host
    writes: frozenset[str]
    states: frozenset[str]
    inner: frozenset[str] = frozenset()  # written, and read by its own ops of that step alone

    def __str__(self) -> str:
        return f"{self.stream}: {' → '.join(op.removesuffix('.device') for op in self.ops)}"


def segments(plan: Plan) -> tuple[Segment, ...]:
    """All segments, by stream and in the order in which the stream runs them in an iteration."""
    found: list[Segment] = []
    for actor, program in plan.actors.items():
        run: list[str] = []
        for (op, _), follower in zip(program, [*program[1:], None], strict=True):
            if plan.graph.vertices[op].side != "device":
                break
            run.append(op)
            if follower is None or not _together(plan, op, follower[0]):
                found.append(_segment(plan, actor, run))
                run = []
    return tuple(found)


def in_order(plan: Plan, order: Sequence[tuple[str, int]]) -> tuple[Segment, ...]:
    """Those of one thread that runs all ops in the `order` of an iteration, each with its offset.

    Nothing else orders them, so device ops that follow each other there belong together whatever
    their streams are.
    """
    vertices = plan.graph.vertices
    runs: list[list[tuple[str, int]]] = [[]]
    for op, offset in order:
        vertex = vertices[op]
        if vertex.side == "host" and vertex.op.run is None:
            continue  # it only launches
        if vertex.side == "host" or (runs[-1] and offset != runs[-1][-1][1]):
            runs.append([])
        if vertex.side == "device":
            runs[-1].append((op, offset))
    return tuple(
        _segment(plan, vertices[run[0][0]].actor, [op for op, _ in run]) for run in runs if run
    )


def _together(plan: Plan, first: str, second: str) -> bool:
    if first in plan.records or any(wait.target == second for wait in plan.waits):
        return False
    launch, then = (plan.graph.vertices[op].launch for op in (first, second))
    if launch == then:
        return True  # phases of one device op
    assert launch is not None, "a device op has a launch"
    assert then is not None, "a device op has a launch"
    if then in {wait.target for wait in plan.waits} or launch in plan.records:
        return False
    launching = plan.graph.vertices[then].op
    if launching.reads or launching.writes:
        return False
    program = plan.actors[plan.graph.vertices[launch].actor]
    return any(
        one == launch and other == then and at == later
        for (one, at), (other, later) in pairwise(program)
    )


def _segment(plan: Plan, stream: str, ops: list[str]) -> Segment:
    graph = plan.graph
    written = {name for op in ops for name in graph.vertices[op].op.writes}
    reads = {
        read.name
        for op in ops
        for read in graph.vertices[op].op.reads
        if read.name not in graph.states and (read.name not in written or read.carry)
    }
    touched = written | {read.name for op in ops for read in graph.vertices[op].op.reads}
    read_outside = {
        read.name
        for name, vertex in graph.vertices.items()
        for read in vertex.op.reads
        if name not in ops or read.carry
    }
    return Segment(
        stream=stream,
        ops=tuple(ops),
        reads=frozenset(reads),
        writes=frozenset(written - set(graph.states)),
        states=frozenset(touched & set(graph.states)),
        inner=frozenset(written - set(graph.states) - read_outside),
    )
