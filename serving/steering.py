"""With which of its plans an engine goes on: the one whose steps take the least time.

A plan that has not run yet counts with its predicted period, times what steps of the plan that is
on took in place of theirs. One that has run counts with the median of its own last steps. The
engine goes over where that is worth a share of the time of a step; so a wrong prediction is tried
once, measured, and left again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from statistics import median
from time import perf_counter

from ..executors.course import Course, Goal

LOG = logging.getLogger("stepweave.engine")

TRIAL = 32
"""Steps of a plan that are measured before it is judged, and between two decisions."""
GAIN = 0.05
"""What a switch must be worth, as a share of the time of a step."""


class Fastest:
    """Steers by predicted and measured periods. Its clock may be another, for tests."""

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._took: dict[str, deque[float]] = {}  # by plan, µs of its last steps
        self._last: tuple[str, int, float] = ("", -1, 0.0)
        self._since = 0

    def __call__(self, course: Course, step: int) -> Goal:
        """The plan to go on with. Raises nothing."""
        now = self._clock()
        at, before, then = self._last
        if (at, before) == (course.at, step - 1):
            self._took.setdefault(at, deque(maxlen=2 * TRIAL)).append((now - then) * 1e6)
            self._since += 1
        self._last = (course.at, step, now)
        if self._since < TRIAL:
            return Goal(course.at)
        self._since = 0
        return self._best(course)

    def _best(self, course: Course) -> Goal:
        times = {name: self._time(course, name) for name in course.plans}
        best = min(times, key=lambda name: (times[name], name != course.at))
        if times[best] > (1 - GAIN) * times[course.at]:
            return Goal(course.at)
        how = "measured" if best in self._took else "predicted"
        reason = f"{times[best]:,.0f} µs a step {how}, {times[course.at]:,.0f} as it is"
        LOG.info("plan %r in place of %r: %s", best, course.at, reason)
        return Goal(best, reason=reason)

    def _time(self, course: Course, name: str) -> float:
        """µs that a step of the plan takes, as far as is known."""
        if name in self._took:
            return median(self._took[name])
        predicted = {each: plan.step_us for each, plan in course.plans.items()}
        now = median(self._took[course.at])
        return now * predicted[name] / (predicted[course.at] or 1.0)
