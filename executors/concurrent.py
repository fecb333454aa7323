"""Running a plan on host threads and a device: the one concurrent executor.

Every host actor runs on a worker thread of its own. The calling thread only watches: so Ctrl-C,
which reaches that thread alone, never lands in the middle of an op or of a hand-off.

A wait is a queue of tokens: the awaited op puts one for each step, the waiter takes one for each
of its own. The token of a host op is put when the op is done; that of a device op, an event, when
it has been launched and its event recorded. So nobody can wait for an event before it is
recorded, or mistake one step's for another's. A device op is launched by the thread of its launch
op: that takes the op's tokens, has the stream wait for their events, gives it the op's body, and
has it record an event if anybody waits for one.

A launch takes tokens of device ops only, and they are there: that an awaited op is launched first
is a requirement of the plan (`launch_order`), which its waits between host ops meet. If one is not
there, the plan is wrong, and the run ends with an error that names both ops. Only where the waiting
or the awaited step is not one of the run, before the first or after the last, does a launch wait:
the plan orders what runs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import TYPE_CHECKING

from ..backends.streams import Event, Stream, Streams
from ..graph.plan import Plan, Wait
from .context import Context, Memory, cells_in_flight
from .errors import DeviceFailure, NodeFailure
from .frontier import BEFORE_ALL, Aborted, Frontier
from .hold import Copies, Holds
from .instructions import ActorStatus, Program, Task, interpret
from .modes import ToldModes
from .recorder import Recorder
from .report import RunReport
from .run_arguments import RunArguments
from .switch_interval import switching_every
from .watchdog import watch

if TYPE_CHECKING:
    from .capture import Captures  # with torch, which a graph of plain functions does without

SWITCH_INTERVAL_S = 1e-4  # with the default 5 ms, one busy thread delays every hand-off by 10 ms

Token = Event | None  # of a device op its event; None of a host op, or where nothing is awaited
Tokens = SimpleQueue[Token]
Put = Callable[[Token], None]
Run = Callable[[Context], None]


def run_on(
    device: Streams,
    plan: Plan,
    given: RunArguments,
    captures: Captures | None = None,
) -> RunReport:
    """Run the plan on one worker thread per host actor, and one stream per device actor."""
    program = Program.of(plan)
    frontier = Frontier(given.steps, tail=program.tail)
    sizes = cells_in_flight(plan)
    buffers = {} if captures is None else captures.buffers
    memory = Memory.of(plan.graph, sizes, given.states, given.keep, frontier, buffers)
    running = ConcurrentRun(plan, program, frontier, memory, device, given.trace, captures)
    try:
        running.work(given.watchdog_s)
    finally:
        running.let_go()
    for copies in running.copies.values():
        copies.finish()
    return RunReport(
        steps=frontier.steps,
        kept=memory.histories(frontier.steps),
        seconds=perf_counter() - running.origin,
    )


def urgent_streams(program: Program) -> frozenset[str]:
    """Streams with an op that a host waits for: what is late there makes the host late."""
    on = program.actor_of
    return frozenset(
        on[wait.source]
        for task in program.tasks.values()
        if on[task.op] not in program.streams
        for wait in task.waits
        if on[wait.source] in program.streams
    )


class ConcurrentRun:
    """The workers of one run: their queues, their threads, and what went wrong."""

    def __init__(
        self,
        plan: Plan,
        program: Program,
        frontier: Frontier,
        memory: Memory,
        device: Streams,
        trace: Recorder | None,
        captures: Captures | None,
    ) -> None:
        self.program = program
        self.frontier = frontier
        self.device = device
        self.contexts = memory.contexts
        self.modes = ToldModes(plan, memory)
        self.tasks = program.tasks
        self.actor_of = program.actor_of
        self.hosts = program.hosts
        self.statuses = {actor: ActorStatus() for actor in program.actors}
        self.ended: SimpleQueue[str] = SimpleQueue()
        self.failures: list[tuple[int, int, NodeFailure]] = []  # by step, then listing position
        self.origin = perf_counter()
        self.times = None if trace is None else trace.begin()
        self._recorded: dict[str, int] = {}  # the last step of a device op that has its event
        self.tokens: dict[Wait, Tokens] = {
            wait: SimpleQueue() for task in self.tasks.values() for wait in task.waits
        }
        self.signals: dict[str, list[Put]] = {op: [] for op in self.tasks}
        self.owed: dict[str, list[Put]] = {op: [] for op in self.tasks}
        for wait, tokens in self.tokens.items():
            self._align(wait, tokens)
        self.streams = device.open(
            [actor for actor in program.actors if actor in program.streams],
            urgent_streams(program),
        )
        self.captures = captures
        self.captured = {} if captures is None else captures.begin(memory, self.streams)
        self.holds = Holds(plan, memory.cells) if device.defers else None
        self.copies: dict[str, Copies] = {}
        # A replayed graph does the work of all its ops when the first of them is launched.
        begins = {op: op for op in plan.graph.vertices}
        for segment in () if captures is None else captures.segments:
            begins |= dict.fromkeys(segment.ops, segment.ops[0])
        if device.defers:
            for op, vertex in plan.graph.vertices.items():
                late = memory.keep_late(vertex) if vertex.side == "device" else None
                if late is not None:
                    self.copies[op] = Copies(plan, op, begins[op], late)
        self.performs = {
            task.op: interpret(
                memory.contexts[task.op],
                memory,
                frontier,
                self.statuses[actor],
                run=self._host_run(task),
                waits=[(wait, self._taker(wait)) for wait in task.waits],
                launch=self._launch(task, memory),
                records=self.signals[task.op],
            )
            for actor in self.hosts
            for task in program.hosts[actor]
        }

    # --- before the run: each op's calls, with all look-ups done ---

    def _align(self, wait: Wait, tokens: Tokens) -> None:
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
            tokens.put(None)
        self.signals[wait.source].append(_but_the_first(lead, self._putter(wait, tokens.put)))
        self.owed[wait.source] += [tokens.put] * max(lead, 0)

    def _putter(self, wait: Wait, put: Put) -> Put:
        """How the source of a wait tells that it is done: not in steps where nobody waits."""
        if wait.modes is None:
            return put
        at = self.contexts[self.contexts[wait.source].vertex.launch or wait.source]

        def put_if_awaited(token: Token) -> None:
            if self.modes.takes_place(wait, at.step):
                put(token)

        return put_if_awaited

    def _taker(self, wait: Wait) -> Callable[[], object]:
        """What a host op does to wait: take a token, and wait for its event if it is one."""
        take, at = self._always_taker(wait), self.contexts[wait.target]
        if wait.modes is None:
            return take

        def take_if_put() -> object:
            put = self.modes.takes_place(wait, at.step - wait.distance)
            return take() if put else None

        return take_if_put

    def _always_taker(self, wait: Wait) -> Callable[[], object]:
        get = self.tokens[wait].get
        if self.actor_of[wait.source] not in self.streams:
            return get
        status = self.statuses[self.actor_of[wait.target]]

        def take_and_synchronize() -> None:
            event = get()
            if event is None:
                return
            try:
                event.synchronize()
            except Exception as error:
                assert status.at is not None, "only an op waits"
                raise DeviceFailure(
                    wait.source, status.at.step - wait.distance, self.device.advice
                ) from error

        return take_and_synchronize

    def _host_run(self, task: Task) -> Run | None:
        vertex = self.contexts[task.op].vertex
        body, times = self.modes.telling(task.op, vertex.op.run), self.times
        run = body if times is None else times.timed(vertex, body)
        begun = [] if self.holds is None else [*self.holds.releases(task.op)]
        begun += [copies.copy for copies in self.copies.values() if copies.host == task.op]
        if not begun:
            return run

        def begin_and_run(context: Context) -> None:
            for tell in begun:
                tell(context.step)
            if run is not None:
                run(context)

        return begin_and_run

    def _device_run(self, task: Task, stream: Stream) -> Run | None:
        vertex, times = self.contexts[task.op].vertex, self.times
        run = self.captured.get(task.op, vertex.op.run)
        if self.holds is None:
            return run if times is None else times.timed(vertex, run)
        if times is not None:
            of = self.captures
            stamp = stream.stamp if of is None else of.stamps(task.op, stream)
            run = times.stamped(vertex, stamp, run)
        if run is None:
            return None
        body, keep = run, self.holds.keep(vertex)

        def run_and_keep(context: Context) -> None:
            body(context)
            keep(context.step)

        return run_and_keep

    def _launch(self, task: Task, memory: Memory) -> Callable[[int], None] | None:
        """Give the device ops of a launch to their stream, in order."""
        told: list[tuple[Put, Token]] = []
        pending = told if len(task.launches) > 1 else None
        launches = [self._launch_one(op, task.stream, memory, pending) for op in task.launches]
        if not launches:
            return None
        # Where a launch calls the bodies, it is a host op's own work, and often most of it.
        times = self.times if self.device.defers else None
        if len(launches) == 1:
            return launches[0] if times is None else times.launching(task.op, launches[0])

        def launch(step: int) -> None:
            """Nobody learns of the first phase before the last is launched: to the plan, whoever
            comes after a phase comes after the launch op, and so after all that this launches."""
            for one in launches:
                one(step)
            for put, event in told:
                put(event)
            told.clear()

        return launch if times is None else times.launching(task.op, launch)

    def _launch_one(
        self,
        op: str,
        actor: str | None,
        memory: Memory,
        pending: list[tuple[Put, Token]] | None,
    ) -> Callable[[int], None]:
        """`pending`: where to note who is to be told of the event, if not at once."""
        assert actor is not None, "what launches has a stream"
        task, stream, status = self.tasks[op], self.streams[actor], self.statuses[actor]
        launcher = self.statuses[self.actor_of[memory.contexts[op].vertex.launch or op]]
        node, signals = memory.contexts[op].vertex.node.name, self.signals[op]
        perform = interpret(
            memory.contexts[op],
            memory,
            self.frontier,
            status,
            run=self._device_run(task, stream),
            failed=partial(self._fail_on_stream, status),
        )
        copies = self.copies.get(op)
        awaited = [(wait, wait.distance, self.tokens[wait]) for wait in task.waits]
        frontier, recorded, modes = self.frontier, self._recorded, self.modes
        assert all(self.actor_of[wait.source] in self.streams for wait in task.waits), (
            f"{op!r} waits for a host op, which is its launch's to wait for"
        )

        enqueue, record = stream.run, stream.record
        if not awaited and not signals and copies is None:  # as most do: a step is microseconds
            return lambda step: enqueue(perform, step, node)

        def launch(step: int) -> None:
            for wait, distance, tokens in awaited:
                if wait.modes is not None and not modes.takes_place(wait, step - distance):
                    continue
                if distance <= step <= frontier.begun and step >= 0:
                    event = self._launched_before(tokens, wait, step)
                else:
                    launcher.wait = wait
                    event = tokens.get()
                    launcher.wait = None
                if event is not None:
                    stream.wait(event)
            enqueue(perform, step, node)
            if signals:
                event = record()
                recorded[op] = step
                for put in signals:
                    if pending is None:
                        put(event)
                    else:
                        pending.append((put, event))
            if copies is not None:
                copies.filled(step)

        return launch

    def _launched_before(self, tokens: Tokens, wait: Wait, step: int) -> Token:
        """The token of a device op that the plan has launched before `wait.target` of this step."""
        try:
            return tokens.get_nowait()
        except Empty:
            if self._recorded.get(wait.source, BEFORE_ALL) >= step - wait.distance:
                return tokens.get()  # its launcher is telling one after another
            if self.frontier.aborted:
                raise Aborted from None
            raise AssertionError(
                f"{wait.target!r} of step {step} is launched before {wait.source!r} of step "
                f"{step - wait.distance}, for whose event it waits: in this plan nothing orders "
                "their launches"
            ) from None

    # --- the run ---

    def work(self, watchdog_s: float | None) -> None:
        """Run all actors to their end. Whatever is raised, every worker has ended by then.

        The one exception is a worker inside an op that does not return: it gets `watchdog_s` to
        do so, and the error says that it was left behind.
        """
        workers = [
            threading.Thread(
                target=self._work_host, args=(actor,), name=f"stepweave-{actor}", daemon=True
            )
            for actor in self.hosts
        ]
        with switching_every(SWITCH_INTERVAL_S):
            try:
                for worker in workers:
                    worker.start()
                try:
                    self._finish(watchdog_s)
                except KeyboardInterrupt:
                    self.frontier.stop()  # what is in flight completes; a second one gives up
                    self._finish(watchdog_s)
                    raise
                if self.failures:
                    raise min(self.failures, key=itemgetter(0, 1))[2]
            except BaseException as error:
                self._abort()
                for worker in workers:
                    if worker.ident is not None:
                        worker.join(watchdog_s)
                left = [worker.name for worker in workers if worker.is_alive()]
                left += [f"stepweave-{name}" for name in self.device.close(watchdog_s)]
                for name in left:
                    error.add_note(f"{name} is inside an op that does not return")
                raise
            for worker in workers:
                worker.join()

    def _finish(self, watchdog_s: float | None) -> None:
        """Until all that was begun is done, or something failed."""
        watch(
            self.statuses, self.contexts.values(), self.hosts, self.ended, self.frontier, watchdog_s
        )
        self.device.close(watchdog_s if self.frontier.aborted else None)

    def _work_host(self, actor: str) -> None:
        status, tasks, frontier = self.statuses[actor], self.program.actors[actor], self.frontier
        program = [(self.performs[task.op], task.offset) for task in tasks]
        iteration = self.program.first
        try:
            with self.device.entered():
                while iteration <= frontier.end:
                    for perform, offset in program:
                        perform(iteration - offset)
                    iteration += 1
            for task in tasks:
                for op in (task.op, *task.launches):
                    for put in self.owed[op]:
                        put(None)
        except Aborted:
            pass
        except BaseException as cause:
            self._fail(status, cause)
        finally:
            if self.captures is not None and frontier.aborted:
                self._leave_captures(tasks)
            status.at = status.wait = None
            status.ended = True
            self.ended.put(actor)

    def _fail_on_stream(self, status: ActorStatus, cause: BaseException) -> None:
        """Of a device op on its stream: an error ends the run, and not the thread that works."""
        if not isinstance(cause, Aborted):
            self._fail(status, cause)

    def _fail(self, status: ActorStatus, cause: BaseException) -> None:
        assert status.at is not None, "only an op can fail"
        at = status.at
        self.failures.append((at.step, at.vertex.position, status.failure(cause)))
        self._abort()

    def _leave_captures(self, tasks: Sequence[Task]) -> None:
        """By the thread that launched what is being captured."""
        assert self.captures is not None, "only captures are left"
        with self.device.entered():
            for task in tasks:
                for op in task.launches:
                    self.captures.leave(op, self.streams[task.stream or ""])

    def let_go(self) -> None:
        """Let go of what the run worked on: its calls know it, and it knows its calls."""
        self.performs.clear()
        self.failures.clear()
        if self.captures is not None:
            self.captures.end()

    def _abort(self) -> None:
        """End every worker: wake those that wait, and let none begin another op."""
        self.frontier.abort()
        for tokens in self.tokens.values():
            tokens.put(None)
        self.device.abort()


def _but_the_first(count: int, put: Put) -> Put:
    """`put`, less the first `count` calls."""
    if count <= 0:
        return put
    left = count

    def put_later(token: Token) -> None:
        nonlocal left
        if left:
            left -= 1
        else:
            put(token)

    return put_later
