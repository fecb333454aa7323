"""The ops of a run, ready to be called one after the other by the calling thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ..backends.streams import Stream
from ..graph.step_graph import StepGraph
from .context import Context, Earlier, Memory
from .course import known
from .frontier import Frontier
from .instructions import ActorStatus, Perform, interpret
from .recorder import RunTimes
from .report import RunReport
from .run_arguments import RunArguments

if TYPE_CHECKING:
    from .captured_plan import CapturedPlan  # with torch, which plain functions do without


@dataclass(frozen=True)
class OneThread:
    """`performs` runs each op for a step. `status` says which op raised, if one did."""

    frontier: Frontier
    memory: Memory
    status: ActorStatus
    performs: Mapping[str, Perform]
    origin: float
    times: RunTimes | None

    @staticmethod
    def of(
        graph: StepGraph,
        sizes: Mapping[str, int],
        tail: int,
        given: RunArguments,
        after: OneThread | None = None,
        first: int = 0,
        captures: CapturedPlan | None = None,
        streams: Mapping[str, Stream] = MappingProxyType({}),
    ) -> OneThread:
        """`sizes`: cells of each value; `tail`: iterations that follow the last step.

        `after`: the ops of the plan that run all steps before `first`. `captures` of segments, on
        what stands for the `streams`.
        """
        frontier = Frontier(given.steps, tail=tail, first=first)
        states, keep, earlier = given.states, given.keep, None
        held: Sequence[str] = ()
        if given.course is not None:
            sizes, held = given.course.cells(sizes), given.course.held(graph)
            states, keep = known(states, graph), [name for name in keep if name in graph.values]
        if after is not None:
            earlier = Earlier(after.memory.cells, after.frontier.first)
        buffers = {} if captures is None else captures.buffers
        memory = Memory.of(graph, sizes, states, keep, frontier, buffers, earlier, held)
        captured = {} if captures is None else captures.begin(memory, streams)
        if after is None:
            status, origin = ActorStatus(), perf_counter()
            times = None if given.trace is None else given.trace.begin(given.course)
        else:
            status, origin, times = after.status, after.origin, after.times

        def run_of(context: Context) -> Callable[[Context], None] | None:
            body = captured.get(context.vertex.name, context.vertex.op.run)
            return body if times is None else times.timed(context.vertex, body)

        performs = {
            name: interpret(context, memory, frontier, status, run=run_of(context))
            for name, context in memory.contexts.items()
        }
        return OneThread(frontier, memory, status, performs, origin, times)

    def kept(self) -> dict[str, list[Any]]:
        """The versions of its own steps that are to be returned."""
        return self.memory.histories(self.frontier.steps - self.frontier.first)

    def report(self) -> RunReport:
        """What the run returns, once it is over."""
        ended = perf_counter()
        return RunReport(
            steps=self.frontier.steps,
            kept=self.kept(),
            seconds=ended - self.origin,
            ended_s=ended,
        )
