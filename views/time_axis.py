"""Where instants lie on a drawing: in proportion to time, stretched where ops are too short."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from ..graph.answers.timetable import Timetable

STRETCHED = "Zigzag on the ruler: time is stretched there, where ops would be too short to see."
_CLOCK_SHARE = 0.3  # of the axis, at least, goes by the clock alone


@dataclass(frozen=True)
class TimeAxis:
    """A monotone map from µs to x that is the same in every period.

    Within a period, x grows by `slopes[k]` a µs from the k-th instant on.
    """

    instants: tuple[float, ...]  # from 0 to the period
    slopes: tuple[float, ...]
    reached: tuple[float, ...]  # x at each instant, from 0
    origin: float  # the µs at which x is `left`
    left: float
    scale: float  # x per µs where the axis is not stretched

    @property
    def stretched(self) -> bool:
        return any(self._wider(slope) for slope in self.slopes)

    def stretches(self, end: float) -> list[tuple[float, float, float]]:
        """From where to where (in µs) time is stretched between `origin` and `end`, and how much.

        The last number is how many times as wide a µs is there on average. Neighbours are one.
        """
        period, found = self.instants[-1], list[tuple[float, float, float]]()
        for turn in range(int(self.origin // period), int(end // period) + 1):
            for slope, (a, b) in zip(self.slopes, pairwise(self.instants), strict=True):
                start, stop = max(turn * period + a, self.origin), min(turn * period + b, end)
                if not self._wider(slope) or stop <= start:
                    continue
                if found and start <= found[-1][1] + period * 1e-9:
                    start = found.pop()[0]
                wider = (self.x(stop) - self.x(start)) / (self.scale * (stop - start))
                found.append((start, stop, wider))
        return found

    def _wider(self, slope: float) -> bool:
        return slope > self.scale * 1.02

    def x(self, us: float) -> float:
        return self.left + self._along(us) - self._along(self.origin)

    def _along(self, us: float) -> float:
        period = self.instants[-1]
        turns, phase = divmod(us, period)
        k = min(bisect_right(self.instants, phase), len(self.slopes)) - 1
        return (
            turns * self.reached[-1] + self.reached[k] + (phase - self.instants[k]) * self.slopes[k]
        )


def time_axis(
    times: Timetable, origin: float, end: float, *, left: float, room: float, least: float
) -> TimeAxis:
    """An axis over [origin, end] on which no op is narrower than `least`.

    It takes `room`, or more where the ops would leave too little of it to the clock.
    """
    period = times.period_us
    instants = _instants(times)
    needs = _needs(times, instants, least)

    def axis(scale: float) -> TimeAxis:
        slopes = tuple(max(scale, need) for need in needs)
        parts = zip(slopes, pairwise(instants), strict=True)
        reached = tuple(accumulate((slope * (b - a) for slope, (a, b) in parts), initial=0.0))
        return TimeAxis(instants, slopes, reached, origin, left, scale)

    room = max(room, (axis(0.0).x(end) - left) / (1 - _CLOCK_SHARE))
    low, high = 0.0, room / max(end - origin, period * 1e-9)
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if axis(middle).x(end) - left < room else (low, middle)
    return axis(high)


def _instants(times: Timetable) -> tuple[float, ...]:
    period, grain = times.period_us, times.period_us * 1e-6
    phases = {round(at % period / grain) for at in (*times.starts.values(), *times.ends.values())}
    return (0.0, *sorted(n * grain for n in phases if 0 < n < 1_000_000), period)


def _needs(times: Timetable, instants: Sequence[float], least: float) -> list[float]:
    """The slope that each stretch between instants needs, for the ops that run in it."""
    needs = [0.0] * (len(instants) - 1)
    grain = times.period_us * 2e-6
    for op, start in times.starts.items():
        length = times.ends[op] - start
        at = bisect_right(instants, start % times.period_us + grain / 2) - 1
        covered = 0.0
        while covered < length - grain:
            k = at % len(needs)
            needs[k] = max(needs[k], least / length)
            covered += instants[k + 1] - instants[k]
            at += 1
    return needs
