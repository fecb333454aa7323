"""The explorer: does every interleaving that a plan permits give what the serial program gives?

An oracle that shares nothing with planner and verifier: it knows programs, launches, waits and
physical cells (`explore_interleaving.py`), and the serial program by definition
(`explore_history.py`). It runs a plan event by event, on one thread, under

- *every* schedule, for small graphs (`explore_exhaustively`), each state of the run once;
- *directed* schedules: for each op, one in which it is held back as long as anything else can run;
- *random* schedules from seeds, by probabilistic concurrency testing.

Where a value tells the modes of steps, a run has a word of them: ops touch what their mode has, and
waits that only some modes need take place in these. Every mode is tried in all steps, and drawn
words. A failure names the two accesses that met, and is shrunk to the schedule that is simplest to
tell.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from random import Random

from ...executors.instructions import Program
from ...graph import arguments
from ...graph.errors import GraphError, StepweaveError
from ...graph.plan import Plan
from .history import Diverged, History, Meaning, StepAccess
from .interleaving import Instance, Interleaving, LostWait, Misfed, RanAway, Store, Stuck
from .keys import with_keys
from .schedules import Boundary, HeldBack, Overrides, Priorities, Schedule, reference


class _Nothing:
    """A store in which nothing is stored, for runs that never end."""

    def begin(self, op: str, step: int) -> None: ...

    def end(self, op: str, step: int) -> None: ...


MOST_STEPS = 1 << 20
MOMENTS: tuple[Boundary, ...] = ("begin", "end")


class InterleavingFailed(StepweaveError):
    """The explorer found an interleaving that a plan permits and that goes wrong."""

    code = "SW-INTERLEAVING"


@dataclass(frozen=True)
class Failure:
    """One interleaving that goes wrong, and the two accesses that met in it.

    `hazard`: RAW, WAR or WAW; PHASE (of one node, out of order); LAUNCH (a stream fed in another
    order than its program's); LOST (a wait enqueued before its record, so that it does nothing);
    STUCK. `first` should have come before `second`. `actors` replays it: who made each event.
    `word`: the modes of the steps, where a value tells them.
    """

    hazard: str
    what: str
    first: StepAccess | None
    second: StepAccess | None
    steps: int
    actors: tuple[str, ...]
    seed: int | None = None
    schedule: str = ""
    word: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.hazard}: {self.what}"]
        if self.first is not None and self.second is not None:
            lines += [f"  first    {self.first}", f"  second   {self.second}"]
        lines.append(f"  schedule {self.schedule}: {self.steps} steps, {len(self.actors)} events")
        if self.word:
            lines.append(f"  modes    {' '.join(self.word)}")
        if self.seed is not None:
            lines.append(f"  found by seed {self.seed}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Exploration:
    """What was tried: schedules run, and how many orders of events these were.

    `complete`: every interleaving was visited. `states`: how many, in an exhaustive search.
    """

    schedules: int
    distinct: int
    failure: Failure | None = None
    complete: bool = False
    states: int = 0

    def check(self) -> None:
        """Raises `InterleavingFailed` if there is a failure."""
        if self.failure is not None:
            raise InterleavingFailed(str(self.failure))


def refuse_ranks(where: str, plan: Plan) -> None:
    """Raises `GraphError` for a plan of several ranks: that ranks meet is in no schedule here."""
    if len(plan.graph.ranks) > 1:
        raise GraphError(
            f"{where}: {plan.graph.name} is of {len(plan.graph.ranks)} ranks, which wait for each "
            "other where they meet. Schedules know one process only: `verify` proves such a plan.",
            code="SW-ARGUMENT",
        )


def _require_steps(where: str, steps: int) -> None:
    """Raises `GraphError` for a run without steps: it would show nothing, whatever the plan is."""
    arguments.whole(where, "steps", steps, 1, MOST_STEPS)


def explore(
    plan: Plan,
    *,
    steps: int | None = None,
    seeds: Iterable[int] = range(20),
    directed: bool = True,
    shrink: bool = True,
) -> Exploration:
    """Run the plan on history-recording ops, under directed schedules and one for each seed.

    `steps`: None for as many as show every access of the plan in a steady state. Ends with the
    first failure, which it returns. Raises `GraphError` if `plan` is not a plan, or of several
    ranks, or if `steps` is less than 1.
    """
    arguments.a("explore", "plan", plan, Plan, arguments.A_PLAN)
    refuse_ranks("explore", plan)
    if steps is not None:
        _require_steps("explore", steps)
    seen: set[bytes] = set()
    tried = 0
    for explorer, seed, schedule in _attempts(plan, steps, seeds, directed=directed):
        tried += 1
        actors, failure = explorer.attempt(schedule)
        seen.add(order_digest([*explorer.word, *actors]))
        if failure is not None:
            told = f"of random priorities (seed {seed})" if seed is not None else str(schedule)
            failure = replace(failure, seed=seed, schedule=told)
            if shrink:
                failure = explorer.shrunk(failure)
            return Exploration(tried, len(seen), failure)
    return Exploration(tried, len(seen), Explorer(plan, steps).runaway())


def _attempts(
    plan: Plan, steps: int | None, seeds: Iterable[int], *, directed: bool
) -> Iterator[tuple[Explorer, int | None, Schedule]]:
    """The directed schedules, with each mode in all steps; then one for each seed, and its word."""
    names = [mode.name for mode in plan.graph.modes] if plan.graph.told_by is not None else []
    same = [Explorer(plan, steps, name) for name in names] or [Explorer(plan, steps)]
    if directed:
        for each in same:
            yield from ((each, None, schedule) for schedule in each.directed())
    for seed in seeds:
        drawn = Explorer(plan, steps, Random(seed)) if names else same[0]
        yield drawn, seed, drawn.random(seed)


def replay(plan: Plan, seed: int, *, steps: int | None = None) -> Failure | None:
    """The failure that `explore` found with this seed, as it came; None if there is none.

    Raises `GraphError` as `explore` does.
    """
    arguments.a("replay", "plan", plan, Plan, arguments.A_PLAN)
    refuse_ranks("replay", plan)
    if steps is not None:
        _require_steps("replay", steps)
    drawn = Random(seed) if plan.graph.told_by is not None else None
    explorer = Explorer(plan, steps, drawn)
    _, failure = explorer.attempt(explorer.random(seed))
    if failure is None:
        return None
    return replace(failure, seed=seed, schedule=f"of random priorities (seed {seed})")


def explore_exhaustively(plan: Plan, *, steps: int = 2, limit: int = 200_000) -> Exploration:
    """Every interleaving of a small plan, each state of the run once; at most `limit` states.

    An event of an op that touches no data and launches nothing commutes with all others: where
    there is one, it is taken first, and no other is tried in its place (a persistent set of one:
    Godefroid 1996, "Partial-order methods for the verification of concurrent systems"). Ends with
    the first failure, which it returns. Where a value tells the modes of steps, that is done for
    every word of them. That ops may run ahead without end no run of so few steps shows: it is
    looked for last. Raises `GraphError` as `explore` does.
    """
    arguments.a("explore_exhaustively", "plan", plan, Plan, arguments.A_PLAN)
    refuse_ranks("explore_exhaustively", plan)
    _require_steps("explore_exhaustively", steps)
    told = plan.graph.told_by is not None
    names = [mode.name for mode in plan.graph.modes]
    found = Exploration(0, 0, complete=True)
    for word in product(names, repeat=steps) if told else [()]:
        one = _every_interleaving(Explorer(plan, steps, word), limit - found.states)
        found = Exploration(
            found.schedules + one.schedules,
            found.distinct + one.distinct,
            one.failure,
            one.complete,
            found.states + one.states,
        )
        if not one.complete:
            return found
    runaway = Explorer(plan, steps).runaway()
    return found if runaway is None else replace(found, failure=runaway, complete=False)


def _every_interleaving(explorer: Explorer, limit: int) -> Exploration:
    plan, steps = explorer.plan, explorer.steps
    history = History(explorer.meaning, plan.slots)
    start = explorer.begun(steps, history)
    pending: list[tuple[Interleaving, History, _Trail | None]] = [(start, history, None)]
    visited = {(start.key(), history.key())}
    ends = 0
    while pending:
        run, history, trail = pending.pop()
        enabled = run.enabled()
        if not enabled:
            ends += 1
            failure = explorer.closed(run, history)
            if failure is not None:
                return Exploration(ends, ends, _along(failure, trail), states=len(visited))
        for actor in explorer.persistent(run, enabled):
            after = history.copy()
            then = run.copy(after)
            failure = explorer.step(then, actor)
            if failure is not None:
                found = _along(failure, _Trail(actor, trail))
                return Exploration(ends + 1, ends + 1, found, states=len(visited))
            key = (then.key(), after.key())
            if key not in visited:
                if len(visited) >= limit:
                    return Exploration(ends, ends, states=len(visited))
                visited.add(key)
                pending.append((then, after, _Trail(actor, trail)))
    return Exploration(ends, ends, complete=True, states=len(visited))


def order_digest(actors: Sequence[str]) -> bytes:
    """Equal for equal orders of events: who made each event determines the events."""
    return hashlib.blake2b("\n".join(actors).encode(), digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class _Trail:
    actor: str
    before: _Trail | None


def _along(failure: Failure, trail: _Trail | None) -> Failure:
    actors: list[str] = []
    while trail is not None:
        actors.append(trail.actor)
        trail = trail.before
    return replace(failure, actors=tuple(reversed(actors)), schedule="found by exhaustive search")


class Explorer:
    """One plan, ready to be run under many schedules.

    `word`: the modes of the steps, where a value tells them: one for all, one for each, or drawn at
    random.
    """

    def __init__(
        self,
        plan: Plan,
        steps: int | None = None,
        word: str | Sequence[str] | Random | None = None,
    ) -> None:
        self.plan = with_keys(plan)
        self.program = Program.of(plan)
        self.middle, enough = _window(self.plan)
        self.steps = enough if steps is None else steps
        if isinstance(word, Random):
            word = word.choices([mode.name for mode in plan.graph.modes], k=self.steps)
        elif isinstance(word, str):
            word = (word,) * self.steps
        self.word = tuple(word or ())

    @cached_property
    def meaning(self) -> Meaning:
        return Meaning(self.plan.graph, self.steps, self.word)

    def begun(
        self, steps: int | None, store: Store, word: Sequence[str] | None = None
    ) -> Interleaving:
        """A run at its begin. `word`: other modes, of a run that never ends over and over."""
        modes = self.word if word is None else word

        def mode_of(step: int) -> str | None:
            inside = 0 <= step < len(modes) or (steps is None and step >= 0)
            return modes[step % len(modes)] if modes and inside else None

        return Interleaving(self.plan, self.program, steps, store, mode_of=mode_of)

    @property
    def events(self) -> int:
        """About how many events a run has."""
        ops = len(self.program.tasks)
        return ops * (2 * self.steps + self.program.tail - self.program.first)

    def directed(self) -> Iterator[HeldBack]:
        """For each op the schedule that holds it back, from the middle of the run."""
        for op in self.program.tasks:
            yield HeldBack(op, min(self.middle, self.steps - 1))

    def runaway(self) -> Failure | None:
        """An op that goes on without end while one of another actor is held back, if there is one.

        In a bounded plan everybody comes to rest after a while.
        """
        told = self.plan.graph.told_by is not None
        words = [(mode.name,) for mode in self.plan.graph.modes] if told else [()]
        for tasks, word in product(self.program.actors.values(), words):
            held = HeldBack(tasks[0].op, 0)
            run = self.begun(None, _Nothing(), word)
            actors: list[str] = []
            while enabled := run.enabled():
                actor = held.choose(run, enabled)
                if run.upcoming(actor) == (held.op, held.step):
                    break  # nothing else can go on
                actors.append(actor)
                failure = self.step(run, actor)
                if failure is not None:
                    return replace(failure, actors=tuple(actors), schedule=str(held))
        return None

    def random(self, seed: int) -> Priorities:
        return Priorities(seed, list(self.program.actors), self.events)

    def attempt(self, schedule: Schedule) -> tuple[list[str], Failure | None]:
        """One run: who made each event, and what went wrong, if anything did."""
        history = History(self.meaning, self.plan.slots)
        run = self.begun(self.steps, history)
        actors: list[str] = []
        while enabled := run.enabled():
            actor = schedule.choose(run, enabled)
            actors.append(actor)
            failure = self.step(run, actor)
            if failure is not None:
                return actors, replace(failure, actors=tuple(actors))
        failure = self.closed(run, history)
        return actors, failure and replace(failure, actors=tuple(actors))

    def step(self, run: Interleaving, actor: str) -> Failure | None:
        """Let one event happen; what it shows to be wrong."""
        try:
            run.take(actor)
        except (Diverged, LostWait, Misfed, RanAway) as wrong:
            return self._failure(wrong)
        return None

    def closed(self, run: Interleaving, history: History) -> Failure | None:
        """What is wrong with a run in which nothing can happen any more."""
        try:
            if not run.over:
                raise Stuck(_stuck(run))
            history.finish()
        except (Diverged, Stuck) as wrong:
            return self._failure(wrong)
        return None

    def persistent(self, run: Interleaving, enabled: Sequence[str]) -> Sequence[str]:
        """A single event that commutes with all others, if there is one; else all."""
        for actor in enabled:
            upcoming = run.upcoming(actor)
            assert upcoming is not None, "an enabled actor has an event to make"
            op = upcoming[0]
            looks = self.meaning.looks[op] or self.plan.graph.vertices[op].op.writes
            idle = not looks and op not in self.meaning.phases
            if idle and not self.program.tasks[op].launches:
                return [actor]
        return enabled

    def _failure(self, wrong: Diverged | LostWait | Misfed | RanAway | Stuck) -> Failure:
        if isinstance(wrong, Diverged):
            return Failure(
                wrong.hazard, wrong.what, wrong.first, wrong.second, self.steps, (), word=self.word
            )
        if isinstance(wrong, LostWait):
            first = self._touch(wrong.awaited, "records", "its event")
            second = self._touch(wrong.waiting, "waits for", f"the event of {wrong.awaited.op}")
            said = f"{wrong}: the wait does nothing"
            return Failure("LOST", said, first, second, self.steps, (), word=self.word)
        if isinstance(wrong, Misfed):
            first = self._touch(wrong.late, "is launched on", wrong.stream)
            second = self._touch(wrong.early, "is launched on", wrong.stream)
            return Failure("LAUNCH", str(wrong), first, second, self.steps, (), word=self.word)
        if isinstance(wrong, RanAway):
            first = self._touch(wrong.slow, "is not", "done")
            second = self._touch(wrong.fast, "is about to", "begin")
            return Failure("BOUND", str(wrong), first, second, self.steps, (), word=self.word)
        return Failure("STUCK", str(wrong), None, None, self.steps, (), word=self.word)

    def _touch(self, at: Instance, verb: str, what: str) -> StepAccess:
        node = self.plan.graph.vertices[at.op].node.name
        return StepAccess(node, at.op, at.step, verb, what, None)

    # --- shrinking -----------------------------------------------------------------------------

    def shrunk(self, failure: Failure) -> Failure:
        """The same kind of failure under the simplest schedule found.

        First the reference order with a single op held back, in as few steps as will do, and
        only until the other access is over. Where no one op is enough: the reference order with
        as few other choices as will do (delta debugging: Zeller and Hildebrandt 2002).
        """
        ops = list(self.program.tasks)
        if failure.first is not None:  # what should have come first is what to hold back
            late = failure.first.op
            ops.sort(key=lambda op: op != late)
        for steps in range(1, self.steps + 1):
            small = Explorer(self.plan, steps, self.word[:steps])
            for op in ops:
                for moment in MOMENTS:
                    for step in range(steps):
                        held = HeldBack(op, step, moment)
                        found = small._as(held, failure.seed)
                        if found is not None and found.hazard == failure.hazard:
                            return small._released(held, found)
        return self._with_fewest_choices(failure)

    def _as(self, schedule: HeldBack, seed: int | None) -> Failure | None:
        _, failure = self.attempt(schedule)
        return failure and replace(failure, seed=seed, schedule=str(schedule))

    def _released(self, held: HeldBack, failure: Failure) -> Failure:
        """Hold back only until the other of the two accesses is done, where that will do."""
        if failure.first is None or failure.second is None:
            return failure
        others = [
            (touch.op, touch.step)
            for touch in (failure.second, failure.first)
            if (touch.op, touch.step) != (held.op, held.step)
        ]
        for until in others:
            found = self._as(replace(held, until=until), failure.seed)
            if found is not None and found.hazard == failure.hazard:
                return found
        return failure

    def _with_fewest_choices(self, failure: Failure) -> Failure:
        choices = self._choices(failure.actors)
        if choices is None:
            return failure

        def fails(kept: dict[int, str]) -> Failure | None:
            _, found = self.attempt(Overrides(kept))
            return found if found is not None and found.hazard == failure.hazard else None

        best = fails(choices)
        if best is None:
            return failure
        size = max(1, len(choices) // 2)
        while True:
            numbers = list(choices)
            for start in range(0, len(numbers), size):
                gone = set(numbers[start : start + size])
                fewer = {number: a for number, a in choices.items() if number not in gone}
                found = fails(fewer)
                if found is not None:
                    best, choices = found, fewer
                    break
            else:
                if size == 1:
                    break
                size //= 2
        told = ", ".join(f"{actor} at event {number}" for number, actor in choices.items())
        return replace(
            best, seed=failure.seed, schedule=f"the reference order, but for {told or 'nothing'}"
        )

    def _choices(self, actors: Sequence[str]) -> dict[int, str] | None:
        """Where a run left the reference order."""
        history = History(self.meaning, self.plan.slots)
        run = self.begun(self.steps, history)
        left: dict[int, str] = {}
        for number, actor in enumerate(actors):
            enabled = run.enabled()
            if actor not in enabled:
                return None
            if actor != reference(run, enabled):
                left[number] = actor
            if self.step(run, actor) is not None:
                break
        return left


def _window(plan: Plan) -> tuple[int, int]:
    """The step to hold back, and the number of steps: room for every access on either side."""
    reach = [1, *(count for count in plan.slots.values() if count is not None)]
    for vertex in plan.graph.vertices.values():
        reach += [read.carry for read in vertex.op.reads]
    offsets = [offset for program in plan.actors.values() for _, offset in program]
    declared = [vertex.offset for vertex in plan.graph.vertices.values()]
    spread = max(max(offsets) - min(offsets), max(declared) - min(declared))
    far = max(reach) + spread + 1
    return far, 2 * far + 1


def _stuck(run: Interleaving) -> str:
    waiting = [
        f"{actor} before {op} of step {step}"
        for actor in run.program.actors
        if (upcoming := run.upcoming(actor)) is not None
        for op, step in [upcoming]
    ]
    return "nothing can go on: " + ", ".join(waiting)
