"""With which of its plans an engine goes on: the one whose steps give a row's tokens fastest.

Compared are the plans that are for as many requests as run. What counts is the time of a step for
each token that a row gets by it: one, and the drafts that are kept, as often as they were of late.
A plan that has not run yet with about so many requests counts with its predicted period, times what
steps of the plan that is on took in place of theirs. One that has run counts with the median of its
own last steps. The engine goes over where that is worth a share of the time; so a wrong prediction
is tried once, measured, and left again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from types import MappingProxyType
from typing import NamedTuple

from ..configs.schema import PipelineConfig
from ..executors.course import Course, Goal
from .plans import USUAL, Load

LOG = logging.getLogger("stepweave.engine")

TRIAL = 32
"""Steps of a plan that are measured before it is judged, and between two decisions."""
FEW = TRIAL // 4
"""Steps with about so many requests that are too few to judge a plan by."""
GAIN = 0.05
"""What a switch must be worth, as a share of the time that a token takes."""


@dataclass(frozen=True, slots=True)
class Terms:
    """When a plan may run: `from_rows` requests on; `drafts`: whether its steps verify any."""

    from_rows: int = 1
    drafts: bool = False


def terms_of(config: PipelineConfig) -> dict[str, Terms]:
    """Those of the plans of a pipeline, by name."""
    terms = {USUAL: Terms(1, config.drafter is not None)}
    for name, form in config.forms.items():
        terms[name] = Terms(config.plans[name].from_rows, form.drafter is not None)
    return terms


class _Step(NamedTuple):
    """A step that begins."""

    plan: str
    step: int
    now: float
    load: Load


class Fastest:
    """Steers by predicted and measured times. Its clock may be another, for tests."""

    def __init__(
        self,
        terms: Mapping[str, Terms] = MappingProxyType({}),
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._terms, self._clock = terms, clock
        self._took: dict[tuple[str, int], deque[float]] = {}  # by plan and size, µs of last steps
        # Of steps, windows and drafts that were kept; before any is known, one of one.
        self._kept: deque[tuple[int, int]] = deque([(1, 1)], maxlen=2 * TRIAL)
        self._last: _Step | None = None
        self._since = 0

    def __call__(self, course: Course, step: int, load: Load) -> Goal:
        """The plan to go on with. Raises nothing."""
        last, now = self._last, self._clock()
        self._last = _Step(course.at, step, now, load)
        if last is not None and (last.plan, last.step) == (course.at, step - 1) and last.load.rows:
            self._note(last, now, load)
        if self._since < TRIAL or not load.rows:
            return Goal(course.at)
        self._since = 0
        return self._best(course, load)

    def _note(self, last: _Step, now: float, load: Load) -> None:
        """A step has begun, the one before was of the same plan, and had something to do."""
        took = self._took.setdefault((last.plan, _size(last.load)), deque(maxlen=2 * TRIAL))
        took.append((now - last.now) * 1e6)
        windows, accepted = load.windows - last.load.windows, load.accepted - last.load.accepted
        if windows > 0:
            self._kept.append((windows, accepted))
        self._since += 1

    def _best(self, course: Course, load: Load) -> Goal:
        least = {name: self._from(name) for name in course.plans}
        most = max(rows for rows in least.values() if rows <= max(load.rows, min(least.values())))
        meant = [name for name, rows in least.items() if rows == most]
        times = {name: self._time(course, name, _size(load)) for name in {*meant, course.at}}
        best = min(meant, key=lambda name: (times[name], name != course.at))
        if course.at in meant and times[best] > (1 - GAIN) * times[course.at]:
            return Goal(course.at)
        said = f"{times[best]:,.0f} µs a token, {times[course.at]:,.0f} as it is"
        if course.at not in meant:
            reason, said = "rows", f"{load.rows} requests run; {said}"
        else:
            reason = "measured" if self._steps(best, _size(load)) else "predicted"
        LOG.info("plan %r in place of %r, as %s: %s", best, course.at, reason, said)
        return Goal(best, reason=reason, said=said)

    def _from(self, name: str) -> int:
        return self._terms[name].from_rows if name in self._terms else 1

    def _time(self, course: Course, name: str, size: int) -> float:
        """µs until a row has one token more, as far as is known."""
        if took := self._steps(name, size):
            return median(took) / self._tokens(name)
        sizes = [each for plan, each in self._took if plan == course.at]
        nearest = min(sizes, key=lambda each: abs(each - size))  # of as many requests, if it was on
        now = median(self._took[course.at, nearest])
        predicted = {each: plan.step_us for each, plan in course.plans.items()}
        us = now * predicted[name] / (predicted[course.at] or 1.0)
        return us / self._tokens(name)

    def _steps(self, name: str, size: int) -> Sequence[float]:
        """What steps of a plan took with about so many requests; none where they are few."""
        took = self._took.get((name, size), ())
        return [*took] if len(took) >= FEW else ()

    def _tokens(self, name: str) -> float:
        """Tokens of a row and step: one, and the drafts that are kept."""
        if name not in self._terms or not self._terms[name].drafts:
            return 1.0
        windows = sum(each for each, _ in self._kept)
        return 1.0 + sum(each for _, each in self._kept) / windows


def _size(load: Load) -> int:
    """About how many requests run: equal for 1, for 2 and 3, for 4 to 7, …"""
    return load.rows.bit_length()
