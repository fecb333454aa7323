"""Worker threads that stand for host threads and streams: real overlap on a CPU.

Every actor, the host threads too, runs on a worker of its own. The calling thread only watches:
so Ctrl-C, which reaches that thread alone, never lands in the middle of an op or of a hand-off.

An event is a queue of tokens per wait: the awaited op puts one for each step it completes, the
waiter takes one for each of its own. So an event is never re-armed and never lost, as one event
object reused from step to step may be, and a fast wait or record is a single call in C. A launch
puts the device ops on their stream's queue; the stream waits for events after it has taken them.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from operator import itemgetter
from queue import Empty, SimpleQueue
from time import perf_counter

from ..graph.plan import Plan, Wait
from .context import Context, Memory
from .errors import NodeFailure, StuckWait
from .frontier import Aborted, Frontier
from .instructions import Desk, Perform, Program, Task, interpret
from .report import OpEvent, RunReport
from .trace import timed

SWITCH_INTERVAL_S = 1e-4  # with the default 5 ms, one busy thread delays every hand-off by 10 ms

Launched = tuple[tuple[Perform, ...], int]


def run_threads(
    plan: Plan,
    *,
    steps: int | None,
    states: Mapping[str, object],
    keep: Sequence[str],
    trace: bool,
    watchdog_s: float | None,
) -> RunReport:
    """Run the plan on one worker thread per actor; the calling thread watches."""
    program = Program.of(plan)
    contexts: list[Context] = []
    frontier = Frontier(steps, tail=program.tail, ahead=program.ahead, ops=contexts)
    sizes = {name: _cells_needed(plan, name, program) for name in plan.graph.values}
    memory = Memory.of(plan.graph, sizes, states, keep, frontier)
    contexts.extend(memory.contexts.values())
    events: list[OpEvent] = []
    origin = perf_counter()
    runs = {
        name: timed(vertex, origin, events) if trace else vertex.op.run
        for name, vertex in plan.graph.vertices.items()
    }
    try:
        Crew(program, frontier, memory, runs).work(watchdog_s)
    finally:
        contexts.clear()  # they and the frontier refer to each other: let buffers go at once
    return RunReport(
        steps=frontier.steps,
        kept=memory.histories(frontier.steps),
        events=tuple(sorted(events, key=lambda event: event.start_s)),
        seconds=perf_counter() - origin,
    )


def _cells_needed(plan: Plan, name: str, program: Program) -> int:
    """K for a value with slots; for a fresh one, as many versions as can be in flight."""
    slots = plan.slots.get(name)
    if slots is not None and plan.graph.values[name].storage == "slots":
        return slots
    carries = [
        read.carry for v in plan.graph.vertices.values() for read in v.op.reads if read.name == name
    ]
    return program.ahead + max(carries, default=0) + 1


class Crew:
    """The workers of one run: their queues, their threads, and what went wrong."""

    def __init__(
        self,
        program: Program,
        frontier: Frontier,
        memory: Memory,
        runs: Mapping[str, Callable[[Context], None] | None],
    ) -> None:
        self.program = program
        self.frontier = frontier
        self.contexts = memory.contexts
        self.tasks = {task.op: task for tasks in program.actors.values() for task in tasks}
        self.actor_of = {task.op: a for a, tasks in program.actors.items() for task in tasks}
        self.desks = {actor: Desk() for actor in program.actors}
        self.ended: SimpleQueue[str] = SimpleQueue()
        self.failures: list[tuple[int, int, NodeFailure]] = []  # by step, then listing position
        self.launches: dict[str, SimpleQueue[Launched | None]] = {
            stream: SimpleQueue() for stream in program.streams
        }
        self.tokens: dict[Wait, SimpleQueue[int]] = {
            wait: SimpleQueue() for task in self.tasks.values() for wait in task.waits
        }
        self.signals: dict[str, list[Callable[[int], None]]] = {op: [] for op in self.tasks}
        self.owed: dict[str, list[Perform]] = {op: [] for op in self.tasks}
        for wait, tokens in self.tokens.items():
            self._align(wait, tokens)
        self.performs: dict[str, Perform] = {}
        for op in sorted(self.tasks, key=lambda op: bool(self.tasks[op].launches)):
            task = self.tasks[op]
            self.performs[op] = interpret(
                memory.contexts[op],
                memory,
                frontier,
                self.desks[self.actor_of[op]],
                run=runs[op],
                waits=[(wait, self.tokens[wait].get) for wait in task.waits],
                launch=self._launch(task),
                records=self.signals[op],
            )

    def _align(self, wait: Wait, tokens: SimpleQueue[int]) -> None:
        """Make the n-th token that is taken the one that the n-th waiting step waits for.

        All ops begin with the same iteration, so the target's first step waits for a step of
        the source that is `lead` after the source's own first. Where it is before that, there
        is nothing to wait for: those tokens are there from the start. Where it is after, nobody
        waits for the source's first `lead` steps, and the target's last `lead` steps wait for
        steps that the source never comes to: its actor puts those tokens after its last step.
        """
        source, target = self.tasks[wait.source], self.tasks[wait.target]
        lead = source.offset - target.offset - wait.distance
        for _ in range(-lead):
            tokens.put(0)
        if lead <= 0:
            self.signals[wait.source].append(tokens.put)
            return
        first = self.program.first - source.offset + lead

        def put_once_awaited(step: int) -> None:
            if step >= first:
                tokens.put(step)

        self.signals[wait.source].append(put_once_awaited)
        self.owed[wait.source] += [tokens.put] * lead

    def _launch(self, task: Task) -> Callable[[int], None] | None:
        if task.stream is None:
            return None
        put = self.launches[task.stream].put
        performs = tuple(self.performs[op] for op in task.launches)

        def launch(step: int) -> None:
            put((performs, step))

        return launch

    def work(self, watchdog_s: float | None) -> None:
        """Run all actors to their end. Whatever is raised, every worker has ended by then.

        The one exception is a worker inside an op that does not return: it gets `watchdog_s` to
        do so, and the error says that it was left behind.
        """
        workers = [
            threading.Thread(
                target=self._worker, args=(actor,), name=f"stepweave-{actor}", daemon=True
            )
            for actor in self.program.actors
        ]
        with _switch_interval(SWITCH_INTERVAL_S):
            try:
                for worker in workers:
                    worker.start()
                try:
                    self._watch(watchdog_s)
                except KeyboardInterrupt:
                    self.frontier.stop()  # what is in flight completes; a second one gives up
                    self._watch(watchdog_s)
                    raise
                if self.failures:
                    raise min(self.failures, key=itemgetter(0, 1))[2]
            except BaseException as error:
                self._abort()
                for worker in workers:
                    if worker.ident is not None:
                        worker.join(watchdog_s)
                        if worker.is_alive():
                            error.add_note(f"{worker.name} is inside an op that does not return")
                raise
            for worker in workers:
                worker.join()

    def _worker(self, actor: str) -> None:
        desk = self.desks[actor]
        try:
            if actor in self.program.streams:
                self._work_stream(actor, desk)
            else:
                self._work_host(actor)
        except Aborted:
            pass
        except BaseException as cause:
            at = desk.at
            assert at is not None, "only an op can fail"
            self.failures.append((at.step, at.vertex.position, desk.failure(cause)))
            self._abort()
        finally:
            desk.at = desk.wait = None
            desk.ended = True
            self.ended.put(actor)

    def _work_host(self, actor: str) -> None:
        tasks, frontier = self.program.actors[actor], self.frontier
        program = [(self.performs[task.op], task.offset) for task in tasks]
        iteration = self.program.first
        while iteration <= frontier.end:
            for perform, offset in program:
                perform(iteration - offset)
            iteration += 1
        for task in tasks:
            for put in self.owed[task.op]:
                put(0)
            if task.stream is not None:
                owed = [put for op in task.launches for put in self.owed[op]]
                self.launches[task.stream].put((tuple(owed), 0))
        for stream in {task.stream for task in tasks if task.stream is not None}:
            self.launches[stream].put(None)

    def _work_stream(self, stream: str, desk: Desk) -> None:
        get = self.launches[stream].get
        launchers = {self.actor_of[op] for op, task in self.tasks.items() if task.stream == stream}
        left = len(launchers)
        while True:
            desk.at = None
            launched = get()
            if launched is not None:
                performs, step = launched
                for perform in performs:
                    perform(step)
            elif left == 1 or self.frontier.aborted:
                return
            else:
                left -= 1

    def _abort(self) -> None:
        """End every worker: wake those that wait, and let none begin another op."""
        self.frontier.abort()
        for tokens in self.tokens.values():
            tokens.put(0)
        for launches in self.launches.values():
            launches.put(None)

    def _watch(self, watchdog_s: float | None) -> None:
        """Until all workers have ended. Raises `StuckWait` if nothing moves for too long."""
        patience = math.inf if watchdog_s is None else watchdog_s
        seen, since = self._positions(), perf_counter()
        while not all(desk.ended for desk in self.desks.values()):
            with suppress(Empty):
                self.ended.get(timeout=min(1.0, patience / 4))
            now = self._positions()
            if now != seen:
                seen, since = now, perf_counter()
            elif perf_counter() - since >= patience:
                if self.frontier.aborted:
                    return  # something failed, and another op does not return
                self._raise_if_stuck(patience)

    def _positions(self) -> list[object]:
        desks = [(desk.at, desk.wait, desk.ended) for desk in self.desks.values()]
        return [desks, [context.step for context in self.contexts.values()]]

    def _raise_if_stuck(self, seconds: float) -> None:
        for desk in self.desks.values():
            at, wait = desk.at, desk.wait
            if at is not None and wait is not None:
                awaited_step = at.step - wait.distance
                raise StuckWait(
                    at.vertex.name,
                    at.step,
                    wait.source,
                    awaited_step,
                    seconds,
                    {actor: self._doing(actor) for actor in self.desks},
                )

    def _doing(self, actor: str) -> str:
        desk = self.desks[actor]
        at, wait = desk.at, desk.wait
        if desk.ended:
            return "has ended"
        if at is None:
            return "has nothing launched on it"
        op = f"{at.vertex.name!r} of step {at.step}"
        if wait is None:
            return f"runs {op}"
        return f"waits, for {op}, for {wait.source!r} of step {at.step - wait.distance}"


_switching = threading.Lock()
_runs = 0
_before_s = 0.0


@contextmanager
def _switch_interval(seconds: float) -> Iterator[None]:
    """Let threads switch this often while any run goes on; restore it after the last one."""
    global _runs, _before_s
    with _switching:
        if _runs == 0:
            _before_s = sys.getswitchinterval()
            sys.setswitchinterval(min(seconds, _before_s))
        _runs += 1
    try:
        yield
    finally:
        with _switching:
            _runs -= 1
            if _runs == 0:
                sys.setswitchinterval(_before_s)
