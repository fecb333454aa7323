"""Ops whose data spell out their own history, to compare executors and to check plans.

What such an op writes depends on all it read, and so on all that those ops read before: if any
op of any step sees a wrong version of anything, every value after it differs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from zlib import crc32

from ..graph import arguments
from ..graph.node import Op, OpContext, Run
from ..graph.plan import Plan
from ..graph.step_graph import StepGraph, Vertex


@dataclass
class Recorded:
    """A state that remembers, in one number, who changed it in which order."""

    digest: int = 0

    def change(self, by: str) -> None:
        self.digest = crc32(by.encode(), self.digest)


def recording(graph: StepGraph, around: Callable[[str, Run], Run] | None = None) -> StepGraph:
    """The same graph with ops that record their history. `around(op, run)` may wrap each run.

    They write texts, so values need no buffers: a graph that was built without a model will do.
    They know no modes, so nothing tells the mode.
    Raises `GraphError` if `graph` is not a step graph.
    """
    arguments.a("recording", "graph", graph, StepGraph, "a step graph")

    def record(vertex: Vertex) -> Op:
        op_name, op = vertex.name, vertex.op

        def run(ctx: OpContext) -> None:
            seen = [
                (str(read), ctx.read(str(read)))
                if read.name in graph.values
                else (read.name, ctx.state(read.name).digest)
                for read in op.reads
            ]
            history = f"{op_name} {ctx.step} {seen}"
            for name in op.writes:
                if name in graph.values:
                    ctx.write(name, f"{name}[{ctx.step}]#{crc32(history.encode()):08x}")
                else:
                    ctx.state(name).change(history)

        return replace(op, run=around(op_name, run) if around else run)

    return replace(
        graph.with_ops(record),
        told_by=None,
        values={name: replace(value, allocate=None) for name, value in graph.values.items()},
    )


def with_graph(plan: Plan, graph: StepGraph) -> Plan:
    """The plan of the same declarations, with other functions behind the ops.

    Where nothing tells their modes, all waits take place in every mode.
    """
    return replace(plan if graph.told_by else plan.in_every_mode, graph=graph)


def recorded_states(graph: StepGraph) -> dict[str, object]:
    """A fresh object behind each state of a graph from `recording`.

    Raises `GraphError` if `graph` is not a step graph.
    """
    arguments.a("recorded_states", "graph", graph, StepGraph, "a step graph")
    return {name: Recorded() for name in graph.states}
