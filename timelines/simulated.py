"""A discrete-event run of a plan over a cost model: no tensors, no threads, exact times.

The same programs, waits, launches and skipped steps as the threads executor, with a duration for
each op. With constant durations the timeline becomes periodic, and its period is the plan's.

A stream takes an op when it is launched: when the launch op is done, or, where the node gives
`launch_latency_us`, that long after the launch op began. The device op cannot end before its
launch does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import NamedTuple

from ..executors.errors import StuckWait
from ..executors.instructions import Program, Task
from ..executors.serial_program import SerialProgram
from ..graph import arguments
from ..graph.errors import StepweaveError, did_you_mean
from ..graph.plan import Plan
from ..graph.planner.events import comm_edges
from .timeline import Predecessor, Span, Timeline, steady_steps

_REMEMBERED = 1 << 12  # steps, where spans are not kept: no op runs so far ahead of another


class Turn(NamedTuple):
    """An op whose turn has come: all that it has to come after is over."""

    op: str
    step: int
    free_us: float  # when its actor had ended the op before
    start_us: float  # when it starts: the time since `free_us` its waits took
    cost_us: float  # how long it takes, with jitter


def simulate(
    plan: Plan,
    *,
    steps: int,
    costs: Mapping[str, float] | None = None,
    seed: int | None = None,
    jitter: float = 0.0,
    takes: Callable[[Turn], float] | None = None,
    serial: bool = False,
    mode_of: Callable[[int], str | None] | None = None,
) -> Timeline:
    """Simulate `steps` steps on a virtual clock. `costs` (µs per op) replace the plan's.

    With `jitter` each op takes its cost times a factor drawn evenly from 1 - jitter … 1 + jitter,
    by `seed`. `takes` may say otherwise, turn by turn: it is asked for the ops of each actor in
    their order and for each op after all that it waits for, so it may keep a state as real ops
    do. `mode_of`: the mode of each step, by which waits take place; None: all do. With `serial` the
    plan's orders and waits do not count: one op after another, as the
    serial executor does. Raises `StuckWait` where the plan deadlocks, `GraphError` for a wrong
    argument, and `StepweaveError` for an op that is none.
    """
    arguments.a("simulate", "plan", plan, Plan, arguments.A_PLAN)
    arguments.whole("simulate", "steps", steps, 0, 1 << 31)
    arguments.number("simulate", "jitter", jitter, most=1, code="SW-ARGUMENT")
    arguments.mapping("simulate", "costs", costs or {}, "op names to µs", "SW-COST")
    vertices = plan.graph.vertices
    for name, us in (costs or {}).items():
        arguments.number("simulate", f"costs[{name!r}]", us)
        if name not in vertices:
            raise StepweaveError(f"there is no op {name!r}{did_you_mean(name, vertices)}")
    named = {**plan.costs, **(costs or {})}
    durations = {op: named.get(op, vertices[op].op.cost_us or 0.0) for op in vertices}
    clock = Clock(plan, program_of(plan, serial), steps, durations, Random(seed), jitter, takes)
    if mode_of is not None:
        clock.mode_of = mode_of
    clock.run()
    return clock.timeline(_period(clock, exact=jitter == 0 and takes is None))


def program_of(plan: Plan, serial: bool) -> Program:
    """What the threads executor runs, or as one actor what the serial executor does."""
    program = Program.of(plan)
    if not serial:
        return program
    order = SerialProgram.of(plan.graph).order()
    tasks = tuple(Task(op, offset, (), (), None, False) for op, offset in order)
    offsets = [task.offset for task in tasks] or [0]
    return replace(
        program, actors={"": tasks}, padding=0, first=min(offsets), tail=max(offsets) + 1
    )


Blocked = tuple[Task, int, Predecessor]  # an op of a step, and what it has to come after


@dataclass
class Clock:
    """The state of a simulation: when each op of each step began and ended, and who is where.

    With `recorded` it does not say when ops run, but follows a run that has been: only what held
    them is found out. With `seen` each span goes there and is not kept, nor are the times of steps
    that no op looks back to: so a run may have any number of steps.
    """

    plan: Plan
    program: Program
    steps: int
    durations: Mapping[str, float]
    random: Random
    jitter: float
    takes: Callable[[Turn], float] | None
    recorded: Mapping[tuple[str, int], tuple[float, float]] | None = None
    seen: Callable[[Span], None] | None = None
    mode_of: Callable[[int], str | None] = field(default=lambda step: None)
    spans: list[Span] = field(default_factory=list)
    performed: int = 0

    def __post_init__(self) -> None:
        tasks = self.program.tasks
        self.starts: dict[str, dict[int, float]] = {op: {} for op in tasks}
        self.ends: dict[str, dict[int, float]] = {op: {} for op in tasks}
        self.free: dict[str, tuple[float, Predecessor | None]] = dict.fromkeys(
            self.program.actors, (0.0, None)
        )
        self.final = self.steps - 1 + self.program.tail  # the last iteration
        self.exists = {
            op: range(self.program.first - task.offset, self.final - task.offset + 1)
            for op, task in tasks.items()
        }
        self.launch = {op: v.launch for op, v in self.plan.graph.vertices.items()}
        self.meets: dict[str, list[tuple[str, int]]] = {}
        for enters, leaves, steps, _ in comm_edges(self.plan.graph):
            self.meets.setdefault(leaves, []).append((enters, steps))
        # The stream orders the other device ops of a launch after the first.
        self.first_launched = {task.launches[0]: op for op, task in tasks.items() if task.launches}

    def run(self) -> None:
        """Let each actor go as far as it can, in turn, until all have ended or none can move."""
        todo = {actor: self._work(actor, tasks) for actor, tasks in self.program.actors.items()}
        while todo:
            before, blocked = self.performed, {}
            for actor, work in list(todo.items()):
                if (at := next(work, None)) is None:
                    del todo[actor]
                else:
                    blocked[actor] = at
            if todo and self.performed == before:
                raise StuckWait.of(
                    {
                        actor: ((task.op, step), (held.op, held.step))
                        for actor, (task, step, held) in blocked.items()
                    }
                )

    def timeline(self, period_us: float) -> Timeline:
        lead = self.program.tail - self.program.first + 1
        vertices = self.plan.graph.vertices.values()
        return Timeline(
            events=tuple(sorted(self.spans, key=lambda span: (span.start_us, span.end_us))),
            actors=tuple(self.plan.actors),
            steps=self.steps,
            period_us=period_us,
            streams=frozenset(v.actor for v in vertices if v.side == "device"),
            steady=steady_steps(self.steps, lead),
        )

    def _work(self, actor: str, tasks: Sequence[Task]) -> Iterator[Blocked]:
        """Run an actor's program; yield whenever the next op has to wait for another actor."""
        for iteration in range(self.program.first, self.final + 1):
            for task in tasks:
                step = iteration - task.offset
                awaited = self._awaited(task, step)
                for held in awaited:
                    while held.step not in self.ends[held.op]:
                        yield task, step, held
                self._perform(actor, task, step, awaited)

    def _awaited(self, task: Task, step: int) -> list[Predecessor]:
        awaited = []
        if task.op in self.first_launched:
            awaited.append(Predecessor(self.first_launched[task.op], step, "launch"))
        for enters, steps in self.meets.get(task.op, ()):
            if step - steps in self.exists[enters]:
                awaited.append(Predecessor(enters, step - steps, "comm"))
        for wait in task.waits:
            there = step - wait.distance in self.exists[wait.source]
            if there and wait.takes_place(step - wait.distance, self._mode_of_run):
                awaited.append(Predecessor(wait.source, step - wait.distance, "wait"))
        return awaited

    def _mode_of_run(self, step: int) -> str | None:
        return self.mode_of(step) if 0 <= step < self.steps else None

    def _perform(self, actor: str, task: Task, step: int, awaited: Sequence[Predecessor]) -> None:
        runs = 0 <= step < self.steps
        noted = self.recorded.get((task.op, step)) if self.recorded is not None else None
        latest = math.inf if noted is None else noted[0]
        free, held = self.free[actor]
        ready = min(free, latest)
        for before in awaited:
            over = min(self._over(task.op, before, latest, runs), latest)
            if over > ready:
                ready, held = over, before
        start, end = (ready, ready) if noted is None else noted
        launch = self.launch[task.op]
        if noted is None:
            if runs and self.recorded is None:
                cost = self._duration(task.op)
                if self.takes is not None:
                    cost = self.takes(Turn(task.op, step, free, start, cost))
                end += cost
            if launch is not None and self.ends[launch][step] > end:
                end, held = self.ends[launch][step], Predecessor(launch, step, "launch")
        self.starts[task.op][step], self.ends[task.op][step] = start, end
        self.free[actor] = (end, Predecessor(task.op, step, "order"))
        self.performed += 1
        if runs and (self.recorded is None or noted is not None):
            lane = self.plan.graph.vertices[task.op].actor
            (self.seen or self.spans.append)(Span(task.op, step, lane, start, end, held, ready))
        if self.seen is not None and (old := step - _REMEMBERED) in self.ends[task.op]:
            del self.starts[task.op][old], self.ends[task.op][old]

    def _over(self, op: str, before: Predecessor, latest: float, runs: bool) -> float:
        """When what an op awaits is out of its way; `latest` is when it started, where known."""
        end = self.ends[before.op][before.step]
        if before.by != "launch":
            return end
        start = self.starts[before.op][before.step]
        latency = self.plan.graph.vertices[op].node.launch_latency_us
        if latency is not None:
            return start + latency * runs
        return end if end <= latest else start  # a real device may begin while it is launched

    def _duration(self, op: str) -> float:
        if not self.jitter:
            return self.durations[op]
        return self.durations[op] * (1 + self.random.uniform(-self.jitter, self.jitter))


def _period(clock: Clock, *, exact: bool) -> float:
    """Time per step of the slowest op, once the starts of all ops repeat.

    They repeat every c steps for some c, the cyclicity of the plan's critical cycles; the steps
    at the very end are left out, since what follows them is skipped and takes no time.
    """
    starts = list(clock.starts.values())
    last = clock.steps - 1 - (clock.program.tail - clock.program.first)
    if last < 1:
        return max((span.end_us for span in clock.spans), default=0.0) / max(1, clock.steps)
    if exact:
        for c in range(1, last // 3 + 1):
            gained = [start[last] - start[last - c] for start in starts]
            earlier = [start[last - c] - start[last - 2 * c] for start in starts]
            before = [start[last - 2 * c] - start[last - 3 * c] for start in starts]
            if all(
                abs(a - b) <= 1e-9 * (1 + a) and abs(b - d) <= 1e-9 * (1 + a)
                for a, b, d in zip(gained, earlier, before, strict=True)
            ):
                return max(gained) / c
    half = last // 2
    return max(start[last] - start[half] for start in starts) / (last - half)
