"""The ops of a run, ready to be called one after the other by the calling thread."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter

from ..graph.step_graph import StepGraph
from .context import Memory
from .frontier import Frontier
from .instructions import ActorStatus, Perform, interpret
from .report import RunReport
from .run_arguments import RunArguments


@dataclass(frozen=True)
class OneThread:
    """`performs` runs each op for a step. `status` says which op raised, if one did."""

    frontier: Frontier
    memory: Memory
    status: ActorStatus
    performs: Mapping[str, Perform]
    origin: float

    @staticmethod
    def of(graph: StepGraph, sizes: Mapping[str, int], tail: int, given: RunArguments) -> OneThread:
        """`sizes`: cells of each value; `tail`: iterations that follow the last step."""
        frontier = Frontier(given.steps, tail=tail)
        memory = Memory.of(graph, sizes, given.states, given.keep, frontier)
        status, origin = ActorStatus(), perf_counter()
        times = None if given.trace is None else given.trace.begin()
        performs = {
            name: interpret(
                context,
                memory,
                frontier,
                status,
                run=context.vertex.op.run
                if times is None
                else times.timed(context.vertex, context.vertex.op.run),
            )
            for name, context in memory.contexts.items()
        }
        return OneThread(frontier, memory, status, performs, origin)

    def report(self) -> RunReport:
        """What the run returns, once it is over."""
        return RunReport(
            steps=self.frontier.steps,
            kept=self.memory.histories(self.frontier.steps),
            seconds=perf_counter() - self.origin,
        )
