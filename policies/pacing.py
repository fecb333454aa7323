"""When the next step is scheduled: as early as the plan's order allows, or just in time.

At depth 2 and more the driver schedules a step while the device works on the one before, and then
waits, in `commit`, for the copies of that one. A request that arrives in this wait has missed the
step that was scheduled, and pays for all of it. `JustInTime` moves the wait before the schedule:
then the batch is chosen last, and the device gets it just before it would run dry.

The slack of a step is the time slept before its schedule and the wait that was left after it.
What of the slack may be slept away is decided from the last steps of about the same size: as much
as would have kept the device idle for no more than a small share of the time, less a margin. The
margin must cover what lies between the end of a step on the device and that of the wait for its
copies.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

from ..graph.plan import Plan
from ..graph.planner.events import plan_edges
from ..graph.planner.paths import adjacency, closure, within
from .wake import Wake

FEWEST = 4  # steps to have seen before the first delay
RECOVERY = 1.5  # growth per step of what a starved step has halved


class Pacer(Protocol):
    """Asked before each schedule. One thread drives it; only `release` may come from others."""

    def before_schedule(self, in_flight: int) -> None:
        """Return when to schedule. `in_flight`: query tokens of the step whose results are next.

        0 says that nothing is in flight, or that nobody can arrive: there is nothing to delay for.
        """

    def waited(self, seconds: float) -> None:
        """The wait that followed, for the results of that step, blocked the driver so long."""

    def release(self) -> None:
        """End the current delay, or skip the next one."""


class Eager:
    """Schedules as soon as it is asked."""

    def before_schedule(self, in_flight: int) -> None:
        pass

    def waited(self, seconds: float) -> None:
        pass

    def release(self) -> None:
        pass


class JustInTime:
    """Schedules as late as recent steps of about the same size say it may.

    The wait that is left is about `margin_s` or `margin_share` of the period, the larger, but
    the device may be idle, by the steps of the last `window`, for `idle_share` of the time. A
    step without any wait left has starved the device by an unknown time: it counts as one with
    half the slack, and halves the delay at once. An arrival ends no delay: being late is the
    point. With nothing in flight there is no delay.

    Steps with more tokens take longer, most of all those with prompts. So steps are told apart by
    the power of two of their tokens; one of a size not seen yet is held back like a smaller one.
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
        self._released = Wake()
        self._clock = clock
        self._sleep = sleep or self._released.wait
        self._margin_s, self._margin_share, self._idle_share = margin_s, margin_share, idle_share
        self._window = window
        self._sizes: dict[int, _Recent] = {}
        self._at: _Recent | None = None  # of the step that is in flight
        self._called = 0.0  # when the schedule before was asked for
        self._slept: float | None = None  # before the step whose wait is still to come

    def delay_s(self, in_flight: int) -> float:
        """How long the next schedule is held back if so many tokens are in flight then."""
        known = [
            size
            for size, recent in self._sizes.items()
            if size <= in_flight.bit_length() and recent.enough
        ]
        if not known:
            return 0.0
        recent = self._sizes[max(known)]
        period = sorted(recent.periods)[len(recent.periods) // 2]
        latest = latest_start(recent.slacks, self._idle_share * period)
        margin = max(self._margin_s, self._margin_share * period)
        return max(0.0, min(latest - margin, period, recent.limit))

    def before_schedule(self, in_flight: int) -> None:
        now = self._clock()
        if self._at is not None:
            self._at.periods.append(now - self._called)
        self._called = now
        self._at = self._slept = None
        if in_flight == 0:
            return
        delay = self.delay_s(in_flight)
        if delay > 0:
            self._sleep(delay)
            self._released.clear()
            # Oversleeping is part of the price of a delay, not of the slack.
            delay = min(delay, self._clock() - now)
        size = in_flight.bit_length()
        self._at = self._sizes.setdefault(size, _Recent.of(self._window))
        self._slept = delay

    def waited(self, seconds: float) -> None:
        slept, self._slept = self._slept, None
        if slept is None or self._at is None:
            return  # nothing was in flight when that step was scheduled
        starved = slept > 0 and seconds < self._margin_s / 8
        self._at.slacks.append(slept / 2 if starved else slept + seconds)
        growing = max(self._at.limit * RECOVERY, self._margin_s)
        self._at.limit = slept / 2 if starved else growing

    def release(self) -> None:
        self._released.set()


@dataclass(slots=True)
class _Recent:
    """The last steps of one size."""

    slacks: deque[float]
    periods: deque[float]  # between the schedules before and after each
    limit: float = math.inf  # what a starved step allows

    @staticmethod
    def of(window: int) -> _Recent:
        return _Recent(deque(maxlen=window), deque(maxlen=window))

    @property
    def enough(self) -> bool:
        return min(len(self.slacks), len(self.periods)) >= FEWEST


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
