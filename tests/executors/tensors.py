"""Ops that record what they see in tensors, for devices that tell early data from late.

What an op makes of its inputs depends on all of them, and each op sums up all that it ever made. So
if any op of any step finds wrong data anywhere, at whatever time the device does the work, its sum
differs from that of the serial program.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from zlib import crc32

import torch
from torch import Tensor

from stepweave.executors.run import Executor, run
from stepweave.graph.node import Op, OpContext
from stepweave.graph.plan import Plan
from stepweave.graph.step_graph import StepGraph, Vertex

LONG = 40  # numbers in each tensor; all are equal, unless something is overwritten in its middle
Pinned = Callable[[], Tensor]


def plain() -> Tensor:
    return torch.empty(LONG, dtype=torch.int64)


@dataclass
class Sums:
    """What a run comes to: the sum of each op, and the states."""

    ops: dict[str, Tensor] = field(default_factory=dict)
    states: dict[str, Tensor] = field(default_factory=dict)

    @staticmethod
    def of(graph: StepGraph) -> Sums:
        return Sums(
            {name: torch.zeros(LONG, dtype=torch.int64) for name in graph.vertices},
            {name: torch.zeros(LONG, dtype=torch.int64) for name in graph.states},
        )

    def told(self) -> dict[str, list[int]]:
        return {name: datum.tolist() for name, datum in (self.ops | self.states).items()}


def summing(graph: StepGraph, sums: Sums, pinned: Pinned) -> StepGraph:
    """The same graph with such ops. `pinned` gives the memory of values in pinned memory."""

    def op(vertex: Vertex) -> Op:
        mine, declared, number = sums.ops[vertex.name], vertex.op, crc32(vertex.name.encode())

        def work(ctx: OpContext) -> None:
            total = torch.full((LONG,), number + ctx.step)
            for read in declared.reads:
                value = read.name in graph.values
                datum = ctx.read(str(read)) if value else ctx.state(read.name)
                if datum is not None:
                    total = torch.add(datum, total, alpha=31)
            mine.mul_(31).add_(total)
            for name in declared.writes:
                if name in graph.states:
                    ctx.state(name).mul_(31).add_(total)
                elif graph.values[name].place == "device":
                    ctx.write(name, total + 1)
                else:
                    ctx.write(name, pinned().copy_(total))

        return replace(declared, run=work)

    return graph.with_ops(op)


def told(plan: Plan, executor: Executor | str, pinned: Pinned = plain, steps: int = 9) -> object:
    """What the plan comes to under an executor."""
    sums = Sums.of(plan.graph)
    graph = summing(plan.graph, sums, pinned)
    run(
        replace(plan, graph=graph),
        executor=executor,
        steps=steps,
        states=sums.states,
        watchdog_s=30,
    )
    return sums.told()
