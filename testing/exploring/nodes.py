"""The explorer on real ops: the same interleavings, with the ops' own code at their events.

An op is one call and cannot be cut in two, so the schedule chooses whether its code runs at its
begin, which shows writes that come too early, or at its end, which shows reads that come too late.
In between, what it writes is an `Unreadable`. What the run returns is compared with what the serial
program returned; where they differ, the same order of events on history-recording ops says which
accesses met, or that no declared ones did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from random import Random
from typing import Any, NoReturn, TypeVar

from ...executors.context import cells_in_flight
from ...executors.errors import NodeFailure, StuckWait
from ...executors.instructions import Program
from ...executors.modes import ToldModes
from ...executors.one_thread import OneThread
from ...executors.report import RunReport
from ...executors.run_arguments import RunArguments
from ...executors.turns import Slots
from ...graph import arguments
from ...graph.errors import StepweaveError, UnsoundPlan
from ...graph.plan import Plan
from .explorer import Exploration, Explorer, Failure, InterleavingFailed, order_digest
from .interleaving import Interleaving, RanAway
from .schedules import HeldBack, Priorities, Replay, Schedule

T = TypeVar("T")
EVENTS = 100  # after so many, priorities are drawn anew
SIMPLE_STEPS = 4  # shrinking holds back ops of the first so many steps


class Unreadable:
    """Stands in a cell that an op is writing. Whatever is done with it is an error."""

    def __init__(self, name: str, op: str, step: int) -> None:
        object.__setattr__(self, "_said", f"{op} of step {step} is writing {name}")

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise InterleavingFailed(
            f"read too early or too late: {object.__getattribute__(self, '_said')}"
        )

    def __getattr__(self, name: str) -> NoReturn:
        self._refuse()

    __add__ = __radd__ = __iter__ = __len__ = __getitem__ = __bool__ = __call__ = _refuse
    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = _refuse


@dataclass
class Ran:
    """One run of a plan under a schedule: who made each event, and how many steps began.

    `word`: the modes of the steps, where a value tells them.
    """

    actors: list[str] = field(default_factory=list)
    steps: int = 0
    word: tuple[str, ...] = ()
    failure: NodeFailure | InterleavingFailed | StuckWait | None = None


@dataclass
class Interleaved:
    """An executor that runs everything on the calling thread, in one order that the plan permits.

    `schedule` chooses among the actors; None for random priorities from `seed`. `early`: whether
    ops' code runs at their begin; None for either, from the seed. `runs` tells what happened.
    """

    seed: int = 0
    schedule: Schedule | None = None
    early: bool | None = None
    runs: list[Ran] = field(default_factory=list)

    def __call__(self, plan: Plan, given: RunArguments) -> RunReport:
        """As any executor. A deadlock is found at once, so nothing is watched."""
        program = Program.of(plan)
        ran = Ran()
        self.runs.append(ran)
        sizes = cells_in_flight(plan)
        ops = OneThread.of(plan.graph, sizes, program.tail, given)
        told = ToldModes(plan, ops.memory)
        nodes = _Nodes(ops, self._moments(), told)
        run = Interleaving(plan, program, given.steps, nodes, strict=False, mode_of=told.mode_of)
        nodes.run = run
        seed = self.seed + len(self.runs) - 1
        schedule = self.schedule or Priorities(seed, list(program.actors), EVENTS)
        try:
            while enabled := run.enabled():
                actor = schedule.choose(run, enabled)
                ran.actors.append(actor)
                run.take(actor)
            if not run.over:
                raise StuckWait.of(run.waiting())
        except RanAway as away:
            ran.failure = InterleavingFailed(f"{away}: nothing in the plan bounds its lead")
            raise ran.failure from away
        except (NodeFailure, InterleavingFailed, StuckWait) as failure:
            ran.failure = failure
            raise
        finally:
            ran.steps = ops.frontier.steps
            if plan.graph.told_by is not None:
                first = plan.graph.modes[0].name  # of a step that failed before it told its mode
                ran.word = tuple(told.mode_of(step) or first for step in range(ran.steps))
        return ops.report()

    def _moments(self) -> Callable[[], bool]:
        if self.early is not None:
            early = self.early
            return lambda: early
        random = Random(self.seed)
        return lambda: random.random() < 0.5


class _Nodes:
    """The data of one run: a `Store` whose ops are the graph's own."""

    def __init__(self, ops: OneThread, early: Callable[[], bool], told: ToldModes) -> None:
        self.ops, self.early, self.told = ops, early, told
        self.writes = {  # the values that each op writes
            op: [name for name in context.vertex.op.writes if name in ops.memory.cells]
            for op, context in ops.memory.contexts.items()
        }
        self.run: Interleaving | None = None
        self.hidden: dict[str, list[tuple[Slots, int, Any]] | None] = {}

    def begin(self, op: str, step: int) -> None:
        self.ops.frontier.admit(step)
        early = self.early()
        if early:
            self._perform(op, step)
        kept = []
        for name in self.writes[op]:
            cells = self.ops.memory.cells[name].cells
            slot = step % len(cells)
            kept.append((cells, slot, cells[slot]))
            cells[slot] = Unreadable(name, op, step)
        self.hidden[op] = kept if early else None

    def end(self, op: str, step: int) -> None:
        kept = self.hidden.pop(op)
        if kept is None:
            self._perform(op, step)
        else:
            for cells, slot, datum in kept:
                cells[slot] = datum

    def _perform(self, op: str, step: int) -> None:
        try:
            self.ops.performs[op](step)
        except (Exception, SystemExit) as cause:
            raise self.ops.status.failure(cause) from cause
        self.told.done(op, step)
        assert self.run is not None, "an op runs in a run"
        if self.ops.frontier.last != float("inf"):
            self.run.last = int(self.ops.frontier.last)


def explore_nodes(
    plan: Plan,
    serve: Callable[[Interleaved], T],
    *,
    expected: T,
    seeds: Iterable[int] = range(100),
) -> Exploration:
    """Run real ops under one schedule for each seed; stop at the first that goes wrong.

    `serve` runs the plan by the executor that it is given and returns what must equal `expected`,
    what it returned by the serial executor. An op that fails is a failure too. Raises `UnsoundPlan`
    if what it serves was refused before it ran, and `GraphError` if `plan` is not a plan.
    """
    arguments.a("explore_nodes", "plan", plan, Plan, arguments.A_PLAN)
    seen: set[bytes] = set()
    tried = 0
    for seed in seeds:
        tried += 1
        executor = Interleaved(seed)
        what = _difference(serve, executor, expected)
        seen.add(order_digest(list(chain.from_iterable(ran.actors for ran in executor.runs))))
        if what is not None:
            told = f"of random priorities (seed {seed})"
            found = replace(_met(plan, executor, what, told), seed=seed)
            return Exploration(tried, len(seen), _simplest(plan, serve, expected, found))
    return Exploration(tried, len(seen))


def _difference(
    serve: Callable[[Interleaved], T], executor: Interleaved, expected: T
) -> str | None:
    try:
        result = serve(executor)
        differs = bool(result != expected)  # it may hold an `Unreadable`, which refuses to be asked
    except UnsoundPlan:
        raise  # nothing ran: to see what a refused plan does, serve it by `Unverified`
    except StepweaveError as error:
        return error.message
    failures = (ran.failure for ran in executor.runs)
    failed = next((failure for failure in failures if failure is not None), None)
    if failed is not None:
        return failed.message
    if differs:
        return f"the result is {result!r}, and {expected!r} by the serial program"
    return None


def _met(plan: Plan, executor: Interleaved, what: str, told: str) -> Failure:
    """The two accesses that met, as the same order of events on histories shows them."""
    for ran in executor.runs:
        explorer = Explorer(plan, max(1, ran.steps), ran.word)
        _, failure = explorer.attempt(Replay(ran.actors))
        if failure is not None:
            return replace(failure, what=f"{what}\n  since    {failure.what}", schedule=told)
    actors = tuple(chain.from_iterable(ran.actors for ran in executor.runs))
    said = f"{what}\n  since    an op touches what it does not declare: all declared accesses agree"
    steps = max((ran.steps for ran in executor.runs), default=0)
    return Failure("UNDECLARED", said, None, None, steps, actors, schedule=told)


def _simplest(
    plan: Plan, serve: Callable[[Interleaved], T], expected: T, failure: Failure
) -> Failure:
    """The reference order with one op held back, if that fails too in the same way."""
    for held in _holds(plan, failure):
        for early in (True, False):
            executor = Interleaved(schedule=held, early=early)
            what = _difference(serve, executor, expected)
            if what is not None:
                found = _met(plan, executor, what, str(held))
                if found.hazard == failure.hazard:
                    return replace(found, seed=failure.seed)
    return failure


def _holds(plan: Plan, failure: Failure) -> Iterator[HeldBack]:
    ops = list(plan.graph.vertices)
    if failure.first is not None:  # what should have come first is what to hold back
        late = failure.first.op
        ops.sort(key=lambda op: op != late)
    for step in range(SIMPLE_STEPS):
        for op in ops:
            yield HeldBack(op, step)
