"""Which steps came up in this engine, and how long they take, by their rows and their drafts.

A policy that weighs drafts against time begins with what a plan predicts, and goes on with these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from time import perf_counter

from .batch import ScheduledRow
from .relative_times import RelativeTimes

STEADY = 4
"""Steps of one kind in a row, from which on the time between two schedules is the time of a step
of that kind: what was scheduled before is no longer in flight."""

FIRST = 16
"""Steps of one kind whose times do not count, where nobody says which ones are slow: new shapes run
slowly until they are recorded."""

TOGETHER = 8
"""Times of one kind, in a row but for other kinds between them, whose median is noted: a single one
may be of a step that was disturbed."""


class StepTimes:
    """Fed by the thread that schedules, and read by it. `clock` tells seconds; without one steps
    are counted, and no times are known. `learning` grows with each step that takes longer than
    those like it will: what it takes does not count.
    """

    def __init__(
        self,
        clock: Callable[[], float] | None = perf_counter,
        learning: Callable[[], int] | None = None,
    ) -> None:
        self._clock = clock
        self._learning, self._learnt = learning or int, -1
        self._first = FIRST if learning is None else 0
        self._kind: tuple[int, int] | None = None
        self._alike = 0  # steps of that kind in a row
        self._last = 0.0
        self._number: dict[tuple[int, int], int] = {}  # of times of a kind, the first included
        self._times: dict[tuple[int, int], list[float]] = {}  # not noted yet
        self._noted: dict[int, RelativeTimes] = {}
        self._now: dict[int, Mapping[int, float]] = {}
        self._came: dict[int, dict[int, int]] = {}
        self._offered: dict[int, int] = {}
        self._rows: dict[int, Counter[int]] = {}

    def scheduled(self, rows: Sequence[ScheduledRow]) -> None:
        """A step of these rows has been scheduled."""
        kind = _kind(rows)
        if kind is not None:
            came = self._came.setdefault(_about(kind[0]), {})
            came[kind[1]] = came.get(kind[1], 0) + 1
            self._rows.setdefault(_about(kind[0]), Counter())[kind[0]] += 1
            self._offered[_about(kind[0])] = max(row.drafts for row in rows)
        if self._clock is None:
            return
        now, learnt = self._clock(), self._learning()
        steady = kind is not None and kind == self._kind and learnt == self._learnt
        self._alike = self._alike + 1 if steady else 1
        if kind is not None and self._alike > STEADY:
            self._note(kind, (now - self._last) * 1e6)
        self._kind, self._last, self._learnt = kind, now, learnt

    def of(self, rows: int) -> Mapping[int, float]:
        """The time of a step of so many rows in µs, by the drafts of its widest window.

        Only what has come up often enough to be told; all as if measured just now.
        """
        return self._now.get(rows, {})

    def usual(self, rows: int) -> int:
        """Of numbers of rows about as large, the one that steps had most often; 0: none yet."""
        counts: Mapping[int, int] = self._rows.get(_about(rows), {})
        return max(counts, key=lambda each: (counts[each], each), default=0)

    def came(self, rows: int) -> Mapping[int, int]:
        """How many steps of about as many rows there were, by the drafts of their widest window."""
        return self._came.get(_about(rows), {})

    def offered(self, rows: int) -> int:
        """The most drafts that a row was offered in the last of these; 0 where there was none."""
        return self._offered.get(_about(rows), 0)

    def _note(self, kind: tuple[int, int], took_us: float) -> None:
        number = self._number[kind] = self._number.get(kind, 0) + 1
        if number <= self._first:
            return
        times = self._times.setdefault(kind, [])
        times.append(took_us)
        if len(times) == TOGETHER:
            rows, drafts = kind
            noted = self._noted.setdefault(rows, RelativeTimes())
            noted.note(drafts, median(times))
            self._now[rows] = noted.now()
            times.clear()


def _about(rows: int) -> int:
    """Numbers of rows between two powers of two count as about the same."""
    return (rows - 1).bit_length()


def _kind(rows: Sequence[ScheduledRow]) -> tuple[int, int] | None:
    """Rows, and drafts of the widest window; None where a prompt is computed, or nothing."""
    if not rows or not all(row.decodes for row in rows):
        return None
    return len(rows), max(row.window for row in rows) - 1
