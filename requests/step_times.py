"""How long steps take in this engine, by the number of rows that decode and of their drafts.

A policy that weighs drafts against time begins with what a plan predicts, and goes on with these.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from time import perf_counter

from .batch import ScheduledRow

STEADY = 4
"""Steps of one kind in a row, from which on the time between two schedules is the time of a step
of that kind: what was scheduled before is no longer in flight."""

KEPT = 32
"""Times of one kind that its median is of, the last ones."""

RENEWED = 8
"""New times of one kind, after which its median is taken again."""


class StepTimes:
    """Fed by the thread that schedules, and read by it. `clock` tells seconds."""

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._kind: tuple[int, int] | None = None
        self._alike = 0  # steps of that kind in a row
        self._last = 0.0
        self._times: dict[tuple[int, int], deque[float]] = {}
        self._new: dict[tuple[int, int], int] = {}
        self._medians: dict[int, dict[int, float]] = {}

    def scheduled(self, rows: Sequence[ScheduledRow]) -> None:
        """A step of these rows has been scheduled."""
        now, kind = self._clock(), _kind(rows)
        self._alike = self._alike + 1 if kind is not None and kind == self._kind else 1
        if kind is not None and self._alike > STEADY:
            self._note(kind, (now - self._last) * 1e6)
        self._kind, self._last = kind, now

    def of(self, rows: int) -> Mapping[int, float]:
        """The median time of a step of so many rows in µs, by the drafts of its widest window.

        Only what has come up often enough to be told.
        """
        return self._medians.get(rows, {})

    def _note(self, kind: tuple[int, int], took_us: float) -> None:
        self._times.setdefault(kind, deque(maxlen=KEPT)).append(took_us)
        self._new[kind] = self._new.get(kind, 0) + 1
        if self._new[kind] == RENEWED:
            self._new[kind] = 0
            rows, drafts = kind
            self._medians.setdefault(rows, {})[drafts] = median(self._times[kind])


def _kind(rows: Sequence[ScheduledRow]) -> tuple[int, int] | None:
    """Rows, and drafts of the widest window; None where a prompt is computed, or nothing."""
    if not rows or not all(row.decodes for row in rows):
        return None
    return len(rows), max(row.window for row in rows) - 1
