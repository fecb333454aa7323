"""The thread that runs an engine: while there is work, or for as long as somebody stays.

It hands out nothing and takes nothing in by itself: that is the request table's, whose inbox any
thread may fill. When a run has failed as a whole, the next one finds an empty table.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ..executors.errors import left_behind
from ..executors.report import RunReport
from ..requests.spans import RequestLog
from ..requests.step_counts import StepCounts
from .engine import Engine, EngineError
from .flight import FlightRecorder
from .role import LOOKING_S, Role

RESTING_S = 0.01
"""How often a caller who waits for the run's end looks whether somebody else goes on with it."""

FUTILE_RUNS = 3
"""How many runs in a row may end by an error, with no token between, before the engine is dead."""

FUTILE_STEPS = 5
"""How many steps may fail, with no token between, before it is: each has ended its requests."""


@dataclass
class Trace:
    """What is noted of runs while they are traced."""

    log: RequestLog
    counts: StepCounts = field(default_factory=StepCounts)
    report: RunReport = field(default_factory=lambda: RunReport(steps=0))
    ended: threading.Event = field(default_factory=threading.Event)  # no run is in it

    def __post_init__(self) -> None:
        self.ended.set()


class Driver:
    """Runs `engine` on a thread of its own. Every method may be called by any thread.

    `broken(error)` is called on that thread, with the lock, when a run has failed as a whole and
    its table has been replaced: what tells those who were served, called without the lock, or None
    where nobody was. `lock` is held while table and thread change.
    """

    def __init__(
        self,
        engine: Engine,
        role: Role,
        broken: Callable[[BaseException], Callable[[], None] | None],
    ) -> None:
        self.table = engine.new_table()  # lives on, and its prefix cache with it
        self.failure: BaseException | None = None  # what ended the latest run, if anything did
        # Reentrant: a signal handler may cancel while its own thread is inside.
        self.lock = threading.RLock()
        self.flight: FlightRecorder | None = None
        self._engine, self._role, self._broken = engine, role, broken
        self._thread: threading.Thread | None = None
        self._trace: Trace | None = None
        self._ended = False  # a worker was left behind: it may write into what others would use
        self._futile = 0  # runs that an error ended since a token was settled
        self._failed_steps = 0  # of the engine's life, when a token was last settled
        self._unheard: BaseException | None = None  # what failed when nobody was served

    def drive(self) -> None:
        """Have a thread that runs the engine; with the lock."""
        if self._thread is None and not self.table.idle:
            self._thread = threading.Thread(target=self._run, name="stepweave-driver", daemon=True)
            self._role.drives(self._thread)
            self._thread.start()

    def progressed(self) -> None:
        """A token was settled: what failed before is no sign of a dead engine."""
        self._futile = 0
        self._failed_steps = self._engine.totals.failed_steps

    @property
    def alive(self) -> bool:
        """Whether its thread lives, and its latest runs and steps have not all failed."""
        thread = self._thread
        failed = self._engine.totals.failed_steps - self._failed_steps
        works = self._futile < FUTILE_RUNS and failed < FUTILE_STEPS
        return works and not self._ended and (thread is None or thread.is_alive())

    # -- on its thread ---------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self.lock:
                table, trace = self.table, self._trace
                table.resume()
                looks_on = trace or self.flight
                table.log = None if trace is None else trace.log
                table.counts = None if looks_on is None else looks_on.counts
                recorder = trace is not None or (self.flight is not None and self.flight.ops)
                if trace is not None:
                    trace.ended.clear()
            try:
                report = self._engine.run(table, trace=recorder)
            except BaseException as error:
                over = self._role.broken(error)
                if not over:
                    over = self._ended = left_behind(error)
                    self._replace_table(error)
                if over:
                    self._thread = None
                    if trace is not None:
                        trace.ended.set()
                    return
            else:
                self.failure = None
                if trace is not None:
                    trace.report = report
            if trace is not None:
                trace.ended.set()
            with self.lock:
                if self.table.idle:
                    self._thread = None
                    return

    def _replace_table(self, error: BaseException) -> None:
        """A run has failed as a whole: all its requests end, and later ones find a new table."""
        with self.lock:
            self.failure = error
            self._futile += 1
            old, self.table = self.table, self._engine.new_table()
            while old.inbox.is_open:
                old.close()
                self.table.open()
            tell = self._broken(error)
        if tell is not None:
            tell()
            return
        self._unheard = error
        if self._ended:
            return
        self.table.await_arrival()  # or a run that cannot begin would be tried without pause

    def renew(self) -> None:
        """Begin with an empty table, of the engine's limits of now."""
        with self.lock:
            self.table = self._engine.new_table()

    # -- whoever waits for it --------------------------------------------------------------

    def wait(self, seconds: float | None = None) -> bool:
        """Until it has no work, and nobody stays; whether it came to that in time."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            self._role.join(thread, seconds)
        return self._thread is None

    def rest(self) -> None:
        """Wait until the run is over, unless somebody else has requests in it, or stays.

        Raises what ended it when all had their outputs.
        """
        thread = self._thread
        while thread is not None and thread is self._thread and self.table.idle:
            thread.join(RESTING_S)
        failure, self._unheard = self._unheard, None
        if failure is not None:
            raise failure

    @contextmanager
    def stay(self) -> Iterator[None]:
        """In the block one run goes on, though it be idle, so that the next request finds it."""
        with self.lock:
            self.table.open()
            self.drive()
        try:
            yield
        finally:
            with self.lock:
                self.table.close()

    # -- whoever looks on ------------------------------------------------------------------

    @contextmanager
    def traced(self, trace: Trace) -> Iterator[None]:
        """In the block runs are traced; afterwards `trace` has the report of the last of them.

        Runs begin anew at both ends: what is under way is computed again from what is settled.
        Raises `EngineError` where somebody else's trace is on.
        """
        with self.lock:
            if self._trace is not None:
                raise EngineError("this engine is being traced already: wait until that has ended")
            self._trace = trace
            self.table.leave()
        try:
            yield
        finally:
            with self.lock:
                self._trace = None
                self.table.leave()
            # The end of a group may leave its thread inside a collective for good.
            while not trace.ended.wait(LOOKING_S) and self._role.ended is None:
                pass

    def record(self, flight: FlightRecorder | None) -> None:
        """Have the steps of all runs noted from now on, but for those that are traced; or no more.

        A run that is on begins anew.
        """
        with self.lock:
            self.flight = flight
            if self._trace is None:
                self.table.leave()
