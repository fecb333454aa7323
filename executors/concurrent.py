"""Running a plan on host threads and a device: the one concurrent executor.

Every host actor runs on a worker thread of its own. The calling thread only watches: so Ctrl-C,
which reaches that thread alone, never lands in the middle of an op or of a hand-off. What an op
calls is made beforehand, by the leg of its plan (`leg.py`). A run has one leg, or one after
another where it switches between plans (`turn.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from itertools import chain
from operator import itemgetter
from queue import SimpleQueue
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ..backends.streams import Streams
from ..graph.plan import Plan
from ..graph.switch import Switch
from .caller_runs import CallerRuns
from .context import Context, Earlier, Memory, cells_in_flight
from .course import known
from .errors import NodeFailure, leave_behind
from .frontier import Aborted, Frontier
from .instructions import ActorStatus, Program
from .leg import Crew, Leg, Tokens
from .report import RunReport
from .run_arguments import RunArguments
from .switch_interval import switching_every
from .turn import Turn
from .watchdog import watch

if TYPE_CHECKING:
    from .capture import Captures  # with torch, which a graph of plain functions does without

SWITCH_INTERVAL_S = 1e-4  # with the default 5 ms, one busy thread delays every hand-off by 10 ms


def run_on(
    device: Streams,
    plan: Plan,
    given: RunArguments,
    captures: Captures | None = None,
    callers: CallerRuns | None = None,
) -> RunReport:
    """Run the plan on one worker thread per host actor, and one stream per device actor.

    `callers`: when host threads do the work of the streams, and what they do first then.
    """
    running = ConcurrentRun(device, plan, given, captures, callers or CallerRuns())
    try:
        running.work(given.watchdog_s)
        return running.report()
    finally:
        running.let_go()


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
    """The workers of one run: their threads, the legs that they run, and what went wrong."""

    def __init__(
        self,
        device: Streams,
        plan: Plan,
        given: RunArguments,
        captures: Captures | None,
        callers: CallerRuns,
    ) -> None:
        self.device, self.given, self.captures, self.callers = device, given, captures, callers
        if captures is not None:
            captures.begin()
        self.programs = {id(each): Program.of(each) for each in given.plans(plan)}
        actors = dict.fromkeys(a for program in self.programs.values() for a in program.actors)
        streams = {name for program in self.programs.values() for name in program.streams}
        urgent = {name for each in self.programs.values() for name in urgent_streams(each)}
        self.statuses = {actor: ActorStatus() for actor in actors}
        self.hosts = [actor for actor in actors if actor not in streams]
        self.ended: SimpleQueue[str] = SimpleQueue()
        self.failures: list[tuple[int, int, NodeFailure]] = []  # by step, then listing position
        self.contexts: list[Context] = []  # of the legs that are on
        self.legs: list[Leg] = []  # those that are on, or may be
        self._kept: dict[str, list[Any]] = {}
        # Threads may still be at skipped steps of what all that runs has left: to end them too.
        self._behind: list[tuple[Frontier, list[Tokens]]] = []
        self._once: tuple[list[Tokens], list[Tokens]] = ([], [])  # of the last two turns
        self._news = threading.Condition()  # of each turn, and of the end
        self._over = False
        self._aborted = False
        self.origin = perf_counter()
        self.crew = Crew(
            device=device,
            times=None if given.trace is None else given.trace.begin(given.course),
            streams=device.open([name for name in actors if name in streams], frozenset(urgent)),
            statuses=self.statuses,
            fail_on_stream=self._fail_on_stream,
        )
        try:
            first = self._add_leg(plan, Frontier(given.steps, tail=self.programs[id(plan)].tail))
        except BaseException:  # of states or values that there are not
            device.close(None)
            self.let_go()
            raise
        self._first = dict.fromkeys(self.hosts, first)  # until each has begun, however late

    def _add_leg(
        self,
        plan: Plan,
        frontier: Frontier,
        before: Leg | None = None,
        since: Switch | None = None,
    ) -> Leg:
        """The leg of a plan; `since`: the switch by which it follows the leg before."""
        given, course, graph = self.given, self.given.course, plan.graph
        sizes, states, keep = cells_in_flight(plan), given.states, given.keep
        held: Sequence[str] = ()
        if course is not None:
            fresh = {n: k for n, k in sizes.items() if plan.slots.get(n) is None}
            sizes, held = {**sizes, **course.cells(fresh)}, course.held(graph)
            states, keep = known(states, graph), [name for name in keep if name in graph.values]
        earlier = None if before is None else Earlier(before.memory.cells, before.frontier.first)
        captures = None if self.captures is None else self.captures.of(plan)
        buffers = {} if captures is None else captures.buffers
        memory = Memory.of(graph, sizes, states, keep, frontier, buffers, earlier, held)
        leg = Leg(plan, self.programs[id(plan)], frontier, memory, self.crew, captures)
        if course is not None:
            frontier.begins = partial(self.begins, leg, since)
        self.legs.append(leg)
        self.contexts[:] = [each for leg in self.legs for each in leg.contexts.values()]
        return leg

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
                    self.legs[
                        0
                    ].frontier.stop()  # what is in flight completes; a second one gives up
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
                    leave_behind(error, name)
                raise
            for worker in workers:
                worker.join()

    def _finish(self, watchdog_s: float | None) -> None:
        """Until all that was begun is done, or something failed."""
        watch(
            self.statuses,
            self.contexts,
            self.hosts,
            self.ended,
            lambda: self._aborted,
            watchdog_s,
        )
        self._over = True
        self._tell()
        self.device.close(watchdog_s if self._aborted else None)

    def _work_host(self, actor: str) -> None:
        # Others may have gone over to another leg by now; nobody keeps the first for longer.
        status, leg = self.statuses[actor], self._first.pop(actor)
        iteration = leg.program.first
        try:
            with self.device.entered():
                while (turn := self._work_leg(actor, leg, iteration)) is not None:
                    for perform, step in turn.scripts.get(actor, ()):
                        perform(step)
                    leg, iteration = turn.leg, turn.enters
        except Aborted:
            pass
        except BaseException as cause:
            self._fail(status, cause)
        finally:
            if leg.frontier.aborted:
                self._leave_captures(actor)
            status.at = status.wait = None
            status.ended = True
            self.ended.put(actor)

    def _work_leg(self, actor: str, leg: Leg, iteration: int) -> Turn | None:
        """Run the actor's part of a leg; what comes after it, if anything does."""
        callers, frontier = self.callers, leg.frontier
        usual = called = leg.program_of(actor)
        if actor in callers.orders:
            called = leg.performed(callers.orders[actor])
        if not usual:
            return self._await_turn(self.statuses[actor], frontier)
        while iteration <= frontier.end:
            for perform, offset in called if callers.now else usual:
                perform(iteration - offset)
            iteration += 1
        turn: Turn | None = frontier.turn
        if turn is None:
            leg.pay(actor)
        return turn

    def _await_turn(self, status: ActorStatus, frontier: Frontier) -> Turn | None:
        """Of an actor that this leg does not have: until another begins, or the run ends."""
        status.at = status.wait = None
        status.ended = True
        with self._news:
            self._news.wait_for(lambda: self._over or frontier.aborted or frontier.turn is not None)
        turn: Turn | None = None if self._over or frontier.aborted else frontier.turn
        status.ended = turn is None
        return turn

    # --- another plan ---

    def begins(self, leg: Leg, since: Switch | None, step: int) -> None:
        """A step of a leg begins: go over to another plan if that is wanted, and is possible yet.

        `since`: the switch by which the leg came. Once it is over nothing of the leg before is on.
        """
        course, frontier = self.given.course, leg.frontier
        if course is None or step < frontier.first + (since.over if since else 0):
            return
        wanted = course.wanted(step)
        if wanted is None:
            return
        switch, goal = wanted
        at = max(step + switch.lead, goal.step)
        if since is not None:
            at = max(at, frontier.first + since.enters - 1 - switch.leaves)
        at = max(at, frontier.first + course.stays(switch.after))
        if at > frontier.last:
            return
        following = Frontier(None, tail=self.programs[id(switch.after)].tail, first=at)
        following.last = frontier.last
        following.end = following.last + following.tail
        self._settle(leg)
        after = self._add_leg(switch.after, following, leg, switch)
        turn = Turn.of(switch, at, leg, after)
        self._once = (self._once[1], [*turn.tokens])
        for actor in after.program.hosts:
            self.statuses[actor].ended = False
        course.turn(goal, at)
        frontier.give_over(at, at + switch.leaves, turn)
        self._tell()

    def _settle(self, leg: Leg) -> None:
        """Let go of the legs before this one, all of whose ops are done."""
        behind = []
        while self.legs[0] is not leg:
            before = self.legs.pop(0)
            self._keep(before)
            if before.captures is not None:
                before.captures.end()
            behind.append((before.frontier, [*before.tokens.values()]))
        self._behind = behind or self._behind

    def _keep(self, leg: Leg) -> None:
        """Take in the versions that are to be returned, once the leg has ended."""
        for copies in leg.copies.values():
            copies.finish()
        steps = leg.frontier.steps - leg.frontier.first
        for name, versions in leg.memory.histories(steps).items():
            self._kept.setdefault(name, []).extend(versions)

    def _tell(self) -> None:
        with self._news:
            self._news.notify_all()

    def _fail_on_stream(self, status: ActorStatus, cause: BaseException) -> None:
        """Of a device op on its stream: an error ends the run, and not the thread that works."""
        if not isinstance(cause, Aborted):
            self._fail(status, cause)

    def _fail(self, status: ActorStatus, cause: BaseException) -> None:
        assert status.at is not None, "only an op can fail"
        at = status.at
        failure = status.failure(cause)
        self.failures.append((at.step, at.vertex.position, failure))
        self._abort()
        if self.given.on_failure is not None:
            self.given.on_failure(failure)

    def _leave_captures(self, actor: str) -> None:
        """By the thread that launched what is being captured."""
        with self.device.entered():
            for leg in [*self.legs]:
                if leg.captures is None:
                    continue
                for task in leg.program.hosts.get(actor, ()):
                    for op in task.launches:
                        leg.captures.leave(op, self.crew.streams[task.stream or ""])

    def report(self) -> RunReport:
        """What the run returns, once it is over."""
        for leg in self.legs:
            self._keep(leg)
        ended = perf_counter()
        return RunReport(
            steps=max(leg.frontier.steps for leg in self.legs if leg.frontier.has_begun),
            kept=self._kept,
            seconds=ended - self.origin,
            ended_s=ended,
        )

    def let_go(self) -> None:
        """Let go of what the run worked on: its calls know it, and it knows its calls."""
        for leg in self.legs:
            leg.performs.clear()
        self.legs.clear()
        self.contexts.clear()
        self.failures.clear()
        if self.captures is not None:
            self.captures.end()

    def _abort(self) -> None:
        """End every worker: wake those that wait, and let none begin another op."""
        self._aborted = True
        known = [(leg.frontier, [*leg.tokens.values()]) for leg in [*self.legs]]
        known += self._behind
        for frontier, _ in known:
            frontier.abort()
        for tokens in chain(*self._once, *(some for _, some in known)):
            tokens.put(None)
        self._tell()
        self.device.abort()
