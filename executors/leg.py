"""One plan's part of a concurrent run: what each op of it calls, with all look-ups done.

A wait is a queue of tokens: the awaited op puts one for each step, the waiter takes one for each
of its own. The token of a host op is put when the op is done; that of a device op, an event, when
it has been launched and its event recorded. So nobody can wait for an event before it is
recorded, or mistake one step's for another's. A device op is launched by the thread of its launch
op: that takes the op's tokens, has the stream wait for their events, gives it the op's body, and
has it record an event if anybody waits for one.

A launch takes tokens of device ops only, and they are there: that an awaited op is launched first
is a requirement of the plan (`launch_order`), which its waits between host ops meet. If one is not
there, the plan is wrong, and the run ends with an error that names both ops. Only where the waiting
or the awaited step is not one of the leg, before its first or after its last, does a launch wait:
the plan orders what runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from ..backends.streams import Event, Stream, Streams
from ..graph.plan import Placed, Plan, Wait
from .context import Context, Memory
from .errors import DeviceFailure
from .frontier import BEFORE_ALL, Aborted, Frontier
from .hold import Copies, Holds
from .instructions import ActorStatus, Perform, Program, Task, interpret
from .modes import ToldModes
from .recorder import RunTimes

if TYPE_CHECKING:
    from .captured_plan import CapturedPlan  # with torch, which plain functions do without

Token = Event | None  # of a device op its event; None of a host op, or where nothing is awaited
Tokens = SimpleQueue[Token]
Put = Callable[[Token], None]
Run = Callable[[Context], None]


@dataclass(frozen=True)
class Crew:
    """What all legs of a run share: the device, its streams, what each actor is at, the times."""

    device: Streams
    streams: Mapping[str, Stream]
    statuses: Mapping[str, ActorStatus]
    times: RunTimes | None
    fail_on_stream: Callable[[ActorStatus, BaseException], None]


@dataclass
class Once:
    """What ops do in one step only, at a switch: take tokens (of events, or not), put tokens."""

    takes: dict[str, list[tuple[Wait, Tokens, bool]]] = field(default_factory=dict)
    puts: dict[str, list[Put]] = field(default_factory=dict)


class Leg:
    """The ops of one plan, from its first step to its last."""

    def __init__(
        self,
        plan: Plan,
        program: Program,
        frontier: Frontier,
        memory: Memory,
        crew: Crew,
        captures: CapturedPlan | None,
    ) -> None:
        self.program = program
        self.frontier = frontier
        self.memory = memory
        self.crew = crew
        self.captures = captures
        self.contexts = memory.contexts
        self.modes = ToldModes(plan, memory)
        self.tasks = program.tasks
        self.actor_of = program.actor_of
        self._recorded: dict[str, int] = {}  # the last step of a device op that has its event
        self.tokens: dict[Wait, Tokens] = {
            wait: SimpleQueue() for task in self.tasks.values() for wait in task.waits
        }
        self.signals: dict[str, list[Put]] = {op: [] for op in self.tasks}
        self.owed: dict[str, list[Put]] = {op: [] for op in self.tasks}
        for wait, tokens in self.tokens.items():
            self._align(wait, tokens)
        self.captured = {} if captures is None else captures.begin(memory, crew.streams)
        self.holds = Holds(plan, memory.cells) if crew.device.defers else None
        self.copies: dict[str, Copies] = {}
        # A replayed graph does the work of all its ops when the first of them is launched.
        begins = {op: op for op in plan.graph.vertices}
        for segment in () if captures is None else captures.segments:
            begins |= dict.fromkeys(segment.ops, segment.ops[0])
        if crew.device.defers:
            for op, vertex in plan.graph.vertices.items():
                late = memory.keep_late(vertex) if vertex.side == "device" else None
                if late is not None:
                    self.copies[op] = Copies(plan, op, begins[op], late)
        self.performs = {
            task.op: self.perform(task) for tasks in program.hosts.values() for task in tasks
        }

    def program_of(self, actor: str) -> list[tuple[Perform, int]]:
        """What a host thread runs in each iteration, and at which offsets."""
        tasks = self.program.hosts.get(actor, ())
        return self.performed((task.op, task.offset) for task in tasks)

    def performed(self, order: Iterable[Placed]) -> list[tuple[Perform, int]]:
        """The interpreters of these host ops, in this order."""
        return [(self.performs[op], offset) for op, offset in order]

    def pay(self, actor: str) -> None:
        """Put the tokens for steps that the ops of an actor never come to."""
        for task in self.program.hosts.get(actor, ()):
            for op in (task.op, *task.launches):
                for put in self.owed[op]:
                    put(None)

    def perform(self, task: Task, once: Once | None = None) -> Perform:
        """The interpreter of a host op; `once` has what else it does in the step of a switch."""
        more = once or Once()
        takes, puts = more.takes.get(task.op, ()), more.puts.get(task.op, ())
        return interpret(
            self.contexts[task.op],
            self.memory,
            self.frontier,
            self.crew.statuses[self.actor_of[task.op]],
            run=self._host_run(task),
            waits=[
                *((wait, self._taker(wait)) for wait in task.waits),
                *((wait, self._getter(wait, tokens, event)) for wait, tokens, event in takes),
            ],
            launch=self._launch(task, more),
            records=[*self.signals[task.op], *puts] if puts else self.signals[task.op],
        )

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
        event = self.actor_of[wait.source] in self.program.streams
        take, at = self._getter(wait, self.tokens[wait], event), self.contexts[wait.target]
        if wait.modes is None:
            return take

        def take_if_put() -> object:
            put = self.modes.takes_place(wait, at.step - wait.distance)
            return take() if put else None

        return take_if_put

    def _getter(self, wait: Wait, tokens: Tokens, event: bool) -> Callable[[], object]:
        get = tokens.get
        if not event:
            return get
        status = self.crew.statuses[self.actor_of[wait.target]]

        def take_and_synchronize() -> None:
            event = get()
            if event is None:
                return
            try:
                event.synchronize()
            except Exception as error:
                assert status.at is not None, "only an op waits"
                raise DeviceFailure(
                    wait.source, status.at.step - wait.distance, self.crew.device.advice
                ) from error

        return take_and_synchronize

    def _host_run(self, task: Task) -> Run | None:
        vertex = self.contexts[task.op].vertex
        body, times = self.modes.telling(task.op, vertex.op.run), self.crew.times
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
        vertex, times = self.contexts[task.op].vertex, self.crew.times
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

    def _launch(self, task: Task, once: Once) -> Callable[[int], None] | None:
        """Give the device ops of a launch to their stream, in order."""
        told: list[tuple[Put, Token]] = []
        pending = told if len(task.launches) > 1 else None
        launches = [self._launch_one(op, task.stream, pending, once) for op in task.launches]
        if not launches:
            return None
        # Where a launch calls the bodies, it is a host op's own work, and often most of it.
        times = self.crew.times if self.crew.device.defers else None
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
        pending: list[tuple[Put, Token]] | None,
        once: Once,
    ) -> Callable[[int], None]:
        """`pending`: where to note who is to be told of the event, if not at once."""
        assert actor is not None, "what launches has a stream"
        task, stream, status = self.tasks[op], self.crew.streams[actor], self.crew.statuses[actor]
        vertex, signals = self.contexts[op].vertex, self.signals[op]
        launcher = self.crew.statuses[self.actor_of[vertex.launch or op]]
        perform = interpret(
            self.contexts[op],
            self.memory,
            self.frontier,
            status,
            run=self._device_run(task, stream),
            failed=partial(self.crew.fail_on_stream, status),
        )
        copies = self.copies.get(op)
        awaited = [(wait, wait.distance, self.tokens[wait]) for wait in task.waits]
        takes, puts = once.takes.get(op, ()), once.puts.get(op, ())
        signals = [*signals, *puts] if puts else signals
        frontier, recorded, node = self.frontier, self._recorded, vertex.node.name
        first, modes = frontier.first, self.modes
        assert all(self.actor_of[wait.source] in self.program.streams for wait in task.waits), (
            f"{op!r} waits for a host op, which is its launch's to wait for"
        )

        enqueue, record = stream.run, stream.record
        if not (awaited or takes or signals or copies):  # as most do: a step is microseconds
            return lambda step: enqueue(perform, step, node)

        def launch(step: int) -> None:
            for wait, distance, tokens in awaited:
                if wait.modes is not None and not modes.takes_place(wait, step - distance):
                    continue
                if first + distance <= step <= frontier.begun and step >= first:
                    event = self._launched_before(tokens, wait, step)
                    launcher.wait = wait
                else:
                    launcher.wait = wait
                    event = tokens.get()
                if event is not None:
                    stream.wait(event)  # here and now, where its caller does a stream's work
                launcher.wait = None
            for _, tokens, _ in takes:
                event = tokens.get()
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
