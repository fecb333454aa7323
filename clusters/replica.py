"""One replica serving its requests: the plan on a virtual clock, the scheduler in its first op.

Of several stages, the first one schedules, and the others what the first one has; rows are settled
when the first one has settled them.

Orders, waits and launches are those of the plan (`timelines/simulated.py`). The op that chooses
rows sees the requests that have come when it starts; the last op of `commit` makes tokens known
when it ends. Steps without a request take no time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from ..graph.plan import Plan
from ..graph.step_graph import StepGraph
from ..timelines.simulated import Clock, Turn, program_of
from ..timelines.timeline import Span
from .jobs import Job
from .spent import Spent
from .step_costs import StepCosts
from .step_rows import Step, StepScheduler

_ENDLESS = 1 << 62
_REMEMBERED = 1 << 10  # steps: no op is so far behind the commit of its step


@dataclass(frozen=True)
class Roles:
    """Which nodes of a decode step stand for what, by their kinds."""

    schedule: str  # the op that chooses rows
    settle: str  # the last op with which tokens become known

    @staticmethod
    def of(graph: StepGraph) -> Roles:
        found = {node.kind: node for node in reversed(graph.nodes)}  # of the first rank
        return Roles(found["schedule"].op_names("host")[-1], found["commit"].op_names("host")[-1])


class _AllServed(Exception):
    """Every request has ended."""


@dataclass
class Replica:
    """Serves `jobs`, which must be in the order in which they are due.

    `on_step` is told how many requests have ended. Over the run: `steps` with rows, all their
    `rows` together, and what the time was `spent` on.
    """

    plan: Plan
    costs: StepCosts
    scheduler: StepScheduler
    jobs: Sequence[Job]
    on_step: Callable[[int], None] = lambda ended: None
    steps: int = 0
    rows: int = 0
    ended: int = 0
    end_us: float = 0.0
    least_free_blocks: int = 0
    _steps: dict[int, Step] = field(default_factory=dict)
    _next: int = 0

    def __post_init__(self) -> None:
        graph = self.plan.graph
        self.roles = Roles.of(graph)
        self.spent = Spent([graph.vertices[op].actor for op in self.costs.stages])
        self._side = {op: vertex.side for op, vertex in graph.vertices.items()}
        self._rank = {op: vertex.node.rank or 0 for op, vertex in graph.vertices.items()}
        self._stages = frozenset(self.costs.stages)
        self._idle_us: dict[int, float] = {}
        self.least_free_blocks = self.scheduler.free_blocks

    def run(self) -> None:
        """Until every request has ended. Raises `PolicyError`."""
        clock = Clock(
            self.plan,
            program_of(self.plan, serial=False),
            _ENDLESS,
            dict.fromkeys(self.plan.graph.vertices, 0.0),
            Random(0),
            0.0,
            self._takes,
            seen=self._seen,
        )
        try:
            clock.run()
        except _AllServed:
            self.spent.end(self.end_us)

    def _takes(self, turn: Turn) -> float:
        if turn.op == self.roles.schedule:
            return self._schedule(turn)
        step = self._steps.get(turn.step)
        if step is None:  # another stage is there before the first one has scheduled
            return 0.0
        us = self.costs.us(turn.op, step.work)
        if turn.op == self.roles.settle:
            self._settle(turn.step, step, turn.start_us + us)
        return us

    def _schedule(self, turn: Turn) -> float:
        """Admit who has come, and choose rows; with nobody there, wait until somebody comes."""
        now_us = turn.start_us
        self._arrive(now_us)
        step = self.scheduler.next_step(now_us)
        if not step.rows and not self.scheduler.flying:
            if self._next == len(self.jobs):
                raise _AllServed
            now_us = self.jobs[self._next].due_us
            self._idle_us[turn.step] = now_us - turn.start_us
            self._arrive(now_us)
            step = self.scheduler.next_step(now_us)
        self._steps[turn.step] = step
        if step.rows:
            self.steps += 1
            self.rows += len(step.rows)
            self.least_free_blocks = min(self.least_free_blocks, self.scheduler.free_blocks)
        return now_us - turn.start_us + self.costs.us(turn.op, step.work)

    def _arrive(self, now_us: float) -> None:
        while self._next < len(self.jobs) and self.jobs[self._next].due_us <= now_us:
            job = self.jobs[self._next]
            self.scheduler.add(job)
            self.ended += job.refused is not None
            self._next += 1

    def _settle(self, number: int, step: Step, now_us: float) -> None:
        if step.rows:
            before = self.scheduler.inside
            self.scheduler.settle(step, now_us)
            self.ended += before - self.scheduler.inside
            self.end_us = now_us
            self.on_step(self.ended)

    def _seen(self, span: Span) -> None:
        """Note where the time of the span went; the steps long past are forgotten."""
        step = self._steps.get(span.step)
        if self._side[span.op] == "host":
            idle_us = self._idle_us.pop(span.step, 0.0) if span.op == self.roles.schedule else 0.0
            rank = self._rank[span.op]
            self.spent.host(span.start_us, span.end_us, rank=rank, idle_us=idle_us)
            if span.op == self.roles.settle:
                self._steps.pop(span.step - _REMEMBERED, None)
        elif span.actor in self.spent.us and step is not None and step.rows:
            stage = span.op in self._stages
            self.spent.device(span, self.costs.parts(span.op, step.work) if stage else None)
