"""The real ops on one thread, in the order of a clock that runs by chance: any interleaving that a
plan permits, again from one seed.

Actors, programs, waits, launches and skipped steps are those of the threads executor. Each op of
each step takes a random time on the virtual clock; its body runs as a whole, when it begins or when
it is over. So two ops that nothing orders come in either order, sometimes far ahead of each other,
and a failure can be had again.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random
from time import perf_counter

from ...executors.asked import Asked
from ...executors.context import Memory, cells_in_flight
from ...executors.errors import StuckWait
from ...executors.frontier import Frontier
from ...executors.instructions import Desk, Perform, Program, Task, interpret
from ...executors.report import OpEvent, RunReport
from ...executors.trace import timed
from ...graph.plan import Plan

DURATIONS_US = (0.1, 1.0, 10.0, 100.0)  # far apart, so that one actor may run far ahead

Turn = tuple[Task, int]  # an op, and the step it comes to


@dataclass(frozen=True)
class Virtual:
    """An executor. Every run draws on from the same random numbers, so a seed covers several."""

    seed: int = 0
    random: Random = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "random", Random(self.seed))

    def __call__(self, plan: Plan, asked: Asked) -> RunReport:
        """Run on the calling thread. A deadlock is found at once, so nothing is watched."""
        program = Program.of(plan)
        frontier = Frontier(asked.steps, tail=program.tail, ahead=1 << 60)
        sizes = cells_in_flight(plan, program.ahead)
        memory = Memory.of(plan.graph, sizes, asked.states, asked.keep, frontier)
        events: list[OpEvent] = []
        origin = perf_counter()
        desk = Desk()
        performs = {
            name: interpret(
                memory.contexts[name],
                memory,
                frontier,
                desk,
                run=timed(vertex, origin, events) if asked.trace else vertex.op.run,
            )
            for name, vertex in plan.graph.vertices.items()
        }
        try:
            _World(program, frontier, performs, self.random).run()
        except StuckWait:
            raise
        except (Exception, SystemExit) as cause:
            raise desk.failure(cause) from cause
        return RunReport(
            steps=frontier.steps,
            kept=memory.histories(frontier.steps),
            events=tuple(sorted(events, key=lambda event: event.start_s)),
            seconds=perf_counter() - origin,
        )


@dataclass
class _World:
    """Who is at what, and which ops have ended by now."""

    program: Program
    frontier: Frontier
    performs: Mapping[str, Perform]
    random: Random

    def __post_init__(self) -> None:
        self.tasks = self.program.tasks
        # The last step that each op has completed; nothing exists before the first iteration.
        self.done = {op: self.program.first - t.offset - 1 for op, t in self.tasks.items()}
        self.ended: set[str] = set()  # actors past their last iteration
        self.launched: dict[str, deque[Turn]] = {name: deque() for name in self.program.streams}
        self.actor_of = {t.op: a for a, tasks in self.program.actors.items() for t in tasks}
        self.launcher_of = {op: t.op for t in self.tasks.values() for op in t.launches}

    def run(self) -> None:
        """From event to event: an op ends, and whoever can begin then begins, in random order."""
        programs = {
            actor: self._launches(actor) if actor in self.program.streams else self._turns(tasks)
            for actor, tasks in self.program.actors.items()
        }
        turns: dict[str, Turn | None] = dict.fromkeys(programs)
        busy: list[tuple[float, int, str, Turn, bool]] = []
        numbers, now = count(), 0.0
        running: set[str] = set()
        while True:
            idle = [actor for actor in programs if actor not in running]
            self.random.shuffle(idle)
            moved = True
            while moved:  # an actor that ends may be what another waits for
                moved = False
                for actor in idle:
                    if actor in running or actor in self.ended:
                        continue
                    turn = turns[actor] = turns[actor] or next(programs[actor], None)
                    if turn is None:
                        if self._over(actor):
                            self.ended.add(actor)
                            moved = True
                        continue
                    if self._held(turn) is not None or self._too_far(turn):
                        continue
                    early = self.random.random() < 0.5
                    if early:
                        self.performs[turn[0].op](turn[1])
                    end = now + self._duration(turn)
                    heapq.heappush(busy, (end, next(numbers), actor, turn, early))
                    running.add(actor)
            if not busy:
                break
            now, _, actor, turn, early = heapq.heappop(busy)
            task, step = turn
            if not early:
                self.performs[task.op](step)
            self.done[task.op] = step
            if task.stream is not None:
                self.launched[task.stream] += ((self.tasks[op], step) for op in task.launches)
            running.remove(actor)
            turns[actor] = None
        if len(self.ended) < len(programs):
            self._raise_stuck({actor: turn for actor, turn in turns.items() if turn is not None})

    def _turns(self, tasks: Sequence[Task]) -> Iterator[Turn]:
        iteration = self.program.first
        while iteration <= self.frontier.end:
            for task in tasks:
                yield task, iteration - task.offset
            iteration += 1

    def _launches(self, stream: str) -> Iterator[Turn | None]:
        while True:
            yield self.launched[stream].popleft() if self.launched[stream] else None

    def _over(self, actor: str) -> bool:
        """Whether an actor without a turn will never have one again."""
        if actor not in self.program.streams:
            return True
        launchers = {self.actor_of[op] for op, t in self.tasks.items() if t.stream == actor}
        return launchers <= self.ended and not self.launched[actor]

    def _held(self, turn: Turn) -> tuple[str, int] | None:
        """The op and step that a turn has to wait for, of those that are still to come."""
        task, step = turn
        for wait in task.waits:
            awaited = step - wait.distance
            if self.done[wait.source] < awaited and not self._never_comes(wait.source, awaited):
                return wait.source, awaited
        return None

    def _never_comes(self, op: str, step: int) -> bool:
        """Whether the host that runs an op, or launches it, has ended before this step.

        A stream that several hosts feed goes on after one of them has ended.
        """
        begins = self.launcher_of.get(op, op)
        return self.actor_of[begins] in self.ended and self.done[begins] < step

    def _too_far(self, turn: Turn) -> bool:
        """Whether it is further ahead of another op than the cells of fresh values reach."""
        step = turn[1]
        return 0 <= step <= self.frontier.last and step - self.program.ahead > min(
            self.done.values()
        )

    def _duration(self, turn: Turn) -> float:
        if not 0 <= turn[1] <= self.frontier.last:
            return 0.0
        return self.random.choice(DURATIONS_US) * (0.5 + self.random.random())

    def _raise_stuck(self, turns: Mapping[str, Turn]) -> None:
        held = {actor: (turn, self._held(turn)) for actor, turn in turns.items()}
        doing = {
            actor: f"waits, for {turn[0].op!r} of step {turn[1]}, for {on[0]!r} of step {on[1]}"
            for actor, (turn, on) in held.items()
            if on is not None
        }
        (task, step), on = next((turn, on) for turn, on in held.values() if on is not None)
        raise StuckWait(task.op, step, on[0], on[1], 0.0, doing)
