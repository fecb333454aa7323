"""When the next step is scheduled: the clock and the sleep around an admission policy.

A policy only says how long; here it is slept, measured, and ended early where somebody asks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import perf_counter

from ..policies.admission import Admission, PastSteps
from ..policies.errors import PolicyError
from ..policies.registry import called
from .wake import Wake

MOST_DELAY_S = 600.0
"""Longer than any step takes: a delay beyond it is a mistake in the policy."""


class Pacer:
    """Asked before each schedule. One thread drives it; only `release` may come from others.

    `clock` tells seconds; `sleep` takes seconds and returns early where `release` is to have an
    effect.
    """

    def __init__(
        self,
        admission: Admission,
        *,
        clock: Callable[[], float] = perf_counter,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        self._admission = admission
        self._window = admission.window
        self._released = Wake()
        self._clock = clock
        self._sleep = sleep or self._released.wait
        self._past: dict[int, PastSteps] = {}
        self._columns: dict[int, tuple[deque[float], ...]] = {}  # what they are views of
        self._size = 0  # of the step that is in flight; 0: nothing was when it was scheduled
        self._called = 0.0  # when the schedule before was asked for
        self._delay_s = 0.0  # before the schedule of the step whose wait is still to come
        self._wait_s: float | None = None  # that followed; None: it is still to come

    def delay_s(self, in_flight: int) -> float:
        """How long the next schedule is held back if so many tokens are in flight then.

        Raises `PolicyError` where the policy's answer is no time to wait.
        """
        delay = self._admission.delay_s(in_flight, self._past)
        if not isinstance(delay, int | float) or not 0 <= delay <= MOST_DELAY_S:
            raise PolicyError(
                f"{called('admission', self._admission)}: it holds a step back for {delay!r} s; a "
                f"delay is between 0 and {MOST_DELAY_S:g} s"
            )
        return delay

    def before_schedule(self, in_flight: int) -> None:
        """Return when to schedule. `in_flight`: query tokens of the step whose results are next.

        0 says that nothing is in flight, or that nobody can arrive: there is nothing to delay for.
        """
        now = self._clock()
        self._record(now)
        self._called, self._size, self._wait_s = now, 0, None
        delay = self.delay_s(in_flight) if in_flight else 0.0
        if delay > 0:
            self._sleep(max(0.0, delay - (self._clock() - now)))  # less what the decision took
            # Oversleeping is part of the price of a delay, not of the slack.
            delay = min(delay, self._clock() - now)
        self._released.clear()  # it asked for the schedule that comes now
        if in_flight:
            self._size, self._delay_s = in_flight.bit_length(), delay

    def waited(self, seconds: float) -> None:
        """The wait that followed, for the results of that step, blocked the driver so long."""
        if self._wait_s is None:
            self._wait_s = seconds

    def release(self) -> None:
        """End the current delay, or skip the next one (any thread, a signal handler too)."""
        self._released.set()

    def _record(self, now: float) -> None:
        if self._size == 0 or self._wait_s is None or self._window == 0:
            return
        if self._size not in self._columns:
            columns = tuple(deque[float](maxlen=self._window) for _ in PastSteps._fields)
            self._columns[self._size], self._past[self._size] = columns, PastSteps(*columns)
        delays, waits, periods = self._columns[self._size]
        delays.append(self._delay_s)
        waits.append(self._wait_s)
        periods.append(now - self._called)
