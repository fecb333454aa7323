"""When the next step is scheduled: as early as the plan's order allows, or just in time.

At depth 2 and more the driver schedules a step while the device works on the one before, and then
waits, in `commit`, for the copies of that one. A request that arrives in this wait has missed the
step that was scheduled, and pays for all of it. `JustInTime` moves the wait before the schedule:
then the batch is chosen last, and the device gets it just before it would run dry.

The slack of a step is the time slept before its schedule and the wait that was left after it.
What of the slack may be slept away is decided from the last steps: as much as would have kept the
device idle for no more than a small share of the time, less a margin. The margin must cover what
lies between the end of a step on the device and the end of the wait for its copies.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Protocol

from ..graph.events import plan_edges
from ..graph.paths import adjacency, closure, within
from ..graph.plan import Plan

FEWEST = 4  # steps to have seen before the first delay
RECOVERY = 1.5  # growth per step of what a starved step has halved


class Pacer(Protocol):
    """Asked before each schedule. One thread drives it; only `release` may come from others."""

    def before_schedule(self, busy: bool) -> None:
        """Return when to schedule: at once, unless `busy`, i.e. rows of a step are in flight."""

    def waited(self, seconds: float) -> None:
        """The wait that followed, for the results of a step before, blocked the driver so long."""

    def release(self) -> None:
        """End the current delay, or skip the next one."""


class Eager:
    """Schedules as soon as it is asked."""

    def before_schedule(self, busy: bool) -> None:
        pass

    def waited(self, seconds: float) -> None:
        pass

    def release(self) -> None:
        pass


class JustInTime:
    """Schedules as late as recent steps say it may.

    The wait that is left is about `margin_s` or `margin_share` of the period, the larger, but
    the device may be idle, by the steps of the last `window`, for `idle_share` of the time. A
    step without any wait left has starved the device by an unknown time: it counts as one with
    half the slack, and halves the delay at once. An arrival ends no delay: being late is the
    point. With nothing in flight there is no delay.
    """

    def __init__(
        self,
        *,
        margin_s: float = 150e-6,
        margin_share: float = 0.02,
        idle_share: float = 0.01,
        window: int = 64,
        clock: Callable[[], float] = perf_counter,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        """`sleep` takes seconds and returns early where `release` is to have an effect."""
        self._released = threading.Event()
        self._clock = clock
        self._sleep = sleep or self._released.wait
        self._margin_s, self._margin_share, self._idle_share = margin_s, margin_share, idle_share
        self._slacks: deque[float] = deque(maxlen=window)
        self._periods: deque[float] = deque(maxlen=window)
        self._limit = float("inf")
        self._called: float | None = None  # when the schedule before was asked for
        self._slept: float | None = None  # before the step whose wait is still to come

    @property
    def delay_s(self) -> float:
        """How long the next step is held back if the pipeline is busy then."""
        if min(len(self._slacks), len(self._periods)) < FEWEST:
            return 0.0
        period = sorted(self._periods)[len(self._periods) // 2]
        latest = latest_start(self._slacks, self._idle_share * period)
        margin = max(self._margin_s, self._margin_share * period)
        return max(0.0, min(latest - margin, period, self._limit))

    def before_schedule(self, busy: bool) -> None:
        if not busy:
            self._called = self._slept = None
            return
        now = self._clock()
        if self._called is not None:
            self._periods.append(now - self._called)
        self._called = now
        delay = self.delay_s
        if delay > 0:
            self._sleep(delay)
            self._released.clear()
            # Oversleeping is part of the price of a delay, not of the slack.
            delay = min(delay, self._clock() - now)
        self._slept = delay

    def waited(self, seconds: float) -> None:
        slept, self._slept = self._slept, None
        if slept is None:
            return  # nothing was in flight when that step was scheduled
        starved = slept > 0 and seconds < self._margin_s / 8
        self._slacks.append(slept / 2 if starved else slept + seconds)
        self._limit = slept / 2 if starved else max(self._limit * RECOVERY, self._margin_s)

    def release(self) -> None:
        self._released.set()


def latest_start(slacks: Sequence[float], idle: float) -> float:
    """The largest x whose excess over a slack, max(0, x − slack), is `idle` on average.

    Steps that start x late with these slacks make the device wait that long per step.
    """
    budget = idle * len(slacks)
    below = 0.0
    rising = sorted(slacks)
    for count, slack in enumerate(rising):
        if slack * count - below > budget:
            return (budget + below) / count
        below += slack
    return (budget + below) / len(rising)


def delayable(plan: Plan, op: str, waiter: str) -> bool:
    """Whether a delay of `op` comes off the wait of `waiter`, which follows it on its actor.

    It does if nothing that this wait is for comes after `op` itself. At depth 1 it does come
    after it: commit waits for the very step that was scheduled, and a delay would only add to
    the period.
    """
    index = {name: number for number, name in enumerate(plan.graph.vertices)}
    edges = [(index[u], index[v], d) for u, v, d, _ in plan_edges(plan)]
    paths = closure(adjacency(len(index), edges))
    actor = next(ops for ops in plan.actors.values() if op in dict(ops))
    places = {name: (place, offset) for place, (name, offset) in enumerate(actor)}
    if waiter not in places:
        return False
    (place, offset), (later_place, later_offset) = places[op], places[waiter]
    ahead = offset - later_offset + (later_place < place)  # steps from op's to the waiter's
    waits = [wait for wait in plan.waits if wait.target == waiter]
    return bool(waits) and not any(
        within(paths, index[op], index[wait.source], ahead - wait.distance) for wait in waits
    )
