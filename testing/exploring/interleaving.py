"""A run of a plan, one event at a time: what may happen next is somebody else's choice.

An op happens in two events, its begin and its end, so that ops of different actors overlap. Host
threads follow their programs and block at their waits. A stream runs what was launched on it, in
the order of the launches, and a wait of it captures the record that exists *when it is
enqueued*, as on CUDA: a wait enqueued before its record does nothing. Steps out of range are
skipped, with their waits, launches and records, in a single event.

Nothing here knows a hazard or a distance rule: only programs, waits, launches, queues. What ops do
when they happen is the business of a `Store`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from ...executors.instructions import Program, Task
from ...graph.plan import Plan


class Instance(NamedTuple):
    """One op of one step."""

    op: str
    step: int

    def __str__(self) -> str:
        return f"{self.op} of step {self.step}"


class Store(Protocol):
    """What ops do to the data: called for steps in range only."""

    def begin(self, op: str, step: int) -> None: ...

    def end(self, op: str, step: int) -> None: ...


ModeOf = Callable[[int], str | None]
"""The mode of a step; None where nothing tells it, and of a step that is not one of the run."""


def no_mode(step: int) -> str | None:
    """Of a plan whose waits all take place in every step."""
    return None


class LostWait(Exception):
    """A stream's wait was enqueued before its record: it does nothing."""

    def __init__(self, waiting: Instance, awaited: Instance) -> None:
        super().__init__(f"{waiting} waits for {awaited}, which no op has recorded")
        self.waiting = waiting
        self.awaited = awaited


class Misfed(Exception):
    """A stream was given two ops in another order than its program has them."""

    def __init__(self, stream: str, early: Instance, late: Instance) -> None:
        super().__init__(f"stream {stream!r} is given {early} before {late}")
        self.stream = stream
        self.early = early
        self.late = late


class RanAway(Exception):
    """An op has come so far ahead of another that nothing can be limiting it."""

    def __init__(self, fast: Instance, slow: Instance) -> None:
        super().__init__(f"{fast} is about to begin, and {slow} is not done")
        self.fast = fast
        self.slow = slow


class Stuck(Exception):
    """Nothing can happen, and the run is not over."""


LEAD = 1000  # steps beyond all waits together: no op of a bounded plan is so far ahead of another
Awaited = tuple[tuple[str, int], ...]  # (op, step) that must be done


class Interleaving:
    """Where every actor stands. `steps` None: until `last` is set to a step."""

    __slots__ = (
        "_coming",
        "_fed",
        "_floor",
        "_given",
        "_lead",
        "_mode_of",
        "_running",
        "_turn",
        "done",
        "last",
        "program",
        "queues",
        "store",
        "strict",
        "vertices",
    )

    def __init__(
        self,
        plan: Plan,
        program: Program,
        steps: int | None,
        store: Store,
        *,
        strict: bool = True,
        mode_of: ModeOf = no_mode,
    ) -> None:
        """`program` is the plan's. `strict`: a lost wait or a misfed stream is raised; else it is
        only carried out. Waits that only some modes need take place by `mode_of`.
        """
        self._mode_of = mode_of
        self.program = program
        self.vertices = plan.graph.vertices
        self.store = store
        self.strict = strict
        self.last: int | None = None if steps is None else steps - 1
        self._turn = dict.fromkeys(program.hosts, 0)  # how many ops each host thread has done
        self._coming: dict[str, tuple[Task, int, int]] = {}
        for actor in program.hosts:
            self._come(actor)
        self._running: dict[str, tuple[Task, int] | None] = dict.fromkeys(program.actors)
        self.queues: dict[str, list[tuple[Task, int, Awaited]]] = {
            actor: [] for actor in program.actors if actor in program.streams
        }
        # The step that each op has completed, or been enqueued for, last: all start out equal.
        before = {op: program.first - t.offset - 1 for op, t in program.tasks.items()}
        self.done = dict(before)
        self._given = dict(before)
        self._fed: dict[str, tuple[int, Instance]] = {}
        self._floor = program.first - 1
        self._lead = LEAD + sum(max(0, wait.distance) for wait in plan.waits)

    @property
    def over(self) -> bool:
        return not any(self.queues.values()) and all(
            self._running[actor] is None and (actor in self.queues or self._next(actor) is None)
            for actor in self.program.actors
        )

    def upcoming(self, actor: str) -> tuple[str, int] | None:
        """The op and step that the actor is in, or comes to next; None: it has nothing to do."""
        running = self._running[actor]
        if running is not None:
            return running[0].op, running[1]
        if actor in self.queues:
            queue = self.queues[actor]
            return (queue[0][0].op, queue[0][1]) if queue else None
        following = self._next(actor)
        return None if following is None else (following[0].op, following[1])

    def running(self, actor: str) -> bool:
        return self._running[actor] is not None

    def enabled(self) -> list[str]:
        """The actors that may make their next event now."""
        found = []
        for actor, running in self._running.items():
            if running is not None:
                found.append(actor)
            elif actor in self.queues:
                queue = self.queues[actor]
                if queue and self._ready(queue[0][2]):
                    found.append(actor)
            else:
                following = self._next(actor)
                if following is not None:
                    task, step = following
                    if self._clear(task, step):
                        found.append(actor)
        return found

    def take(self, actor: str) -> None:
        """Let the next event of an enabled actor happen."""
        running = self._running[actor]
        if running is not None:
            task, step = running
            self.store.end(task.op, step)
            self._complete(actor, task, step)
            return
        if actor in self.queues:
            task, step, _ = self.queues[actor].pop(0)
        else:
            following = self._next(actor)
            assert following is not None, f"{actor} has nothing to do"
            task, step = following
            self._keep_up(task, step)
        if step < 0 or (self.last is not None and step > self.last):
            self._complete(actor, task, step)
        else:
            self._running[actor] = (task, step)
            self.store.begin(task.op, step)

    def _complete(self, actor: str, task: Task, step: int) -> None:
        self._running[actor] = None
        self.done[task.op] = step
        if actor in self.queues:
            return
        self._turn[actor] += 1
        self._come(actor)
        if task.stream is not None:
            for op in task.launches:
                self._enqueue(task.stream, self.program.tasks[op], step)

    def _enqueue(self, stream: str, task: Task, step: int) -> None:
        captured = []
        for wait in task.waits:
            source, awaited = wait.source, step - wait.distance
            if wait.modes is not None and not wait.takes_place(awaited, self._mode_of):
                continue
            if self._given[source] >= awaited:
                captured.append((source, awaited))
            elif self.strict and self._real(step) and self._real(awaited):
                raise LostWait(Instance(task.op, step), Instance(source, awaited))
        self._given[task.op] = step
        self.queues[stream].append((task, step, tuple(captured)))
        if self.strict and self._real(step):
            number = (step + task.offset) * len(self.program.ranks) + self.program.ranks[task.op]
            before, early = self._fed.get(stream, (number, Instance(task.op, step)))
            if number < before:
                raise Misfed(stream, early, Instance(task.op, step))
            self._fed[stream] = (number, Instance(task.op, step))

    def _real(self, step: int) -> bool:
        return step >= 0 and (self.last is None or step <= self.last)

    def _next(self, actor: str) -> tuple[Task, int] | None:
        coming = self._coming[actor]
        return None if self._beyond(coming[2]) else coming[:2]

    def _come(self, actor: str) -> None:
        """Set what a host thread comes to next."""
        program = self.program.hosts[actor]
        turn, rank = divmod(self._turn[actor], len(program))
        iteration = self.program.first + turn
        self._coming[actor] = (program[rank], iteration - program[rank].offset, iteration)

    def _clear(self, task: Task, step: int) -> bool:
        """Everything that an op waits for is done, but for what no iteration comes to."""
        return self._awaited(task, step) is None

    def _awaited(self, task: Task, step: int) -> tuple[str, int] | None:
        """The first of what an op of a host thread has to wait for."""
        done, tasks = self.done, self.program.tasks
        for wait in task.waits:
            source, awaited = wait.source, step - wait.distance
            if wait.modes is not None and not wait.takes_place(awaited, self._mode_of):
                continue
            if done[source] < awaited and not self._beyond(awaited + tasks[source].offset):
                return source, awaited
        return None

    def waiting(self) -> dict[str, tuple[Instance, Instance]]:
        """By actor that cannot go on: the op that it comes to, and what that waits for."""
        found = {}
        for actor in self.program.actors:
            at = None if self.running(actor) else self.upcoming(actor)
            if at is None:
                continue
            task, step = self.program.tasks[at[0]], at[1]
            if actor in self.queues:
                captured = self.queues[actor][0][2]
                awaited = next((each for each in captured if self.done[each[0]] < each[1]), None)
            else:
                awaited = self._awaited(task, step)
            if awaited is not None:
                found[actor] = (Instance(task.op, step), Instance(*awaited))
        return found

    def _beyond(self, iteration: int) -> bool:
        return self.last is not None and iteration > self.last + self.program.tail

    def _ready(self, awaited: Awaited) -> bool:
        done = self.done
        return all(done[op] >= step for op, step in awaited)

    def _keep_up(self, task: Task, step: int) -> None:
        """Raise `RanAway` where a thread is further ahead of some op than any bound allows."""
        if step - self._lead > self._floor:
            self._floor = min(self.done.values())
            if step - self._lead > self._floor:
                last = min(self.done, key=self.done.__getitem__)
                raise RanAway(Instance(task.op, step), Instance(last, self.done[last] + 1))

    # --- for a search over all interleavings ---------------------------------------------------

    def copy(self, store: Store) -> Interleaving:
        other = object.__new__(Interleaving)
        other.program, other.vertices = self.program, self.vertices
        other.store, other.strict, other._mode_of = store, self.strict, self._mode_of
        other.last, other._floor, other._lead = self.last, self._floor, self._lead
        other._turn, other._running = dict(self._turn), dict(self._running)
        other._coming = dict(self._coming)
        other.queues = {stream: list(queue) for stream, queue in self.queues.items()}
        other.done, other._given, other._fed = dict(self.done), dict(self._given), dict(self._fed)
        return other

    def key(self) -> tuple[object, ...]:
        """Equal for two runs that have come to the same point."""
        return (
            tuple(self._turn.values()),
            tuple(None if r is None else (r[0].op, r[1]) for r in self._running.values()),
            tuple(tuple((p.op, s, w) for p, s, w in queue) for queue in self.queues.values()),
            tuple(self.done.values()),
            tuple(self._given.values()),
        )
