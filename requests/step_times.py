"""Which steps came up in this engine, and how long they take, by their rows and their drafts.

A policy that weighs drafts against time begins with what a plan predicts, and goes on with these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from time import perf_counter

from ..policies.estimates import Unsure
from .batch import ScheduledRow
from .relative_times import RelativeTimes

FIRST = 16
"""Steps of one kind whose times do not count, where nobody says which ones are slow: new shapes run
slowly until they are recorded."""

TOGETHER = 8
"""Times of one kind, in a row but for other kinds between them, whose median is noted: a single one
may be of a step that was disturbed."""


class StepTimes:
    """`clock` tells seconds; without one steps are counted, and no times are known.

    `learning` grows with each step that takes longer than those like it will: what it takes does
    not count. Who schedules and who settles may be two threads.
    """

    def __init__(
        self,
        clock: Callable[[], float] | None = perf_counter,
        learning: Callable[[], int] | None = None,
    ) -> None:
        self._clock = clock
        self._learning, self._learnt = learning or int, (0, 0)  # as of the last two
        self._first = FIRST if learning is None else 0
        self._kind: tuple[int, int] | None = None
        self._last = 0.0
        self._number: dict[tuple[int, int], int] = {}  # of times of a kind, the first included
        self._times: dict[tuple[int, int], list[float]] = {}  # not noted yet
        self._noted: dict[int, RelativeTimes] = {}
        self._now: dict[int, Mapping[int, float]] = {}
        self._unsure: dict[int, Unsure] = {}
        self._came: dict[int, dict[int, int]] = {}
        # The last, for how long, and the one before.
        self._offered: dict[int, tuple[int, int, int]] = {}
        self._rows: dict[int, Counter[int]] = {}

    def scheduled(self, rows: Sequence[ScheduledRow]) -> None:
        """A step of these rows has been scheduled."""
        kind = _kind(rows)
        if kind is not None:
            came = self._came.setdefault(_about(kind[0]), {})
            came[kind[1]] = came.get(kind[1], 0) + 1
            self._rows.setdefault(_about(kind[0]), Counter())[kind[0]] += 1
            offered = max(row.drafts for row in rows)
            last, stays, before = self.offered(kind[0])
            self._offered[_about(kind[0])] = (
                (last, stays + 1, before) if offered == last else (offered, 1, last)
            )

    def settled(self, rows: Sequence[ScheduledRow]) -> None:
        """The results of a step of these rows are there.

        What has passed since those of the step before is what the step took, however many are in
        flight. It counts where that was of its kind, since a change takes time of its own.
        """
        if self._clock is None:
            return
        kind, now, learnt = _kind(rows), self._clock(), self._learning()
        if kind is not None and kind == self._kind and learnt == self._learnt[0]:
            self._note(kind, (now - self._last) * 1e6)
        # A step that is slow may have begun, and be counted, when the one before it is noted.
        self._kind, self._last, self._learnt = kind, now, (self._learnt[1], learnt)

    def of(self, rows: int) -> Mapping[int, float]:
        """The time of a step of so many rows in µs, by the drafts of its widest window.

        Only what has come up often enough to be told; all as if measured just now.
        """
        return self._now.get(rows, {})

    def unsure(self, rows: int) -> Unsure:
        """By what share these times may be off against each other, as of `RelativeTimes`."""
        return self._unsure.get(rows, {})

    def usual(self, rows: int) -> int:
        """Of numbers of rows about as large, the one that steps had most often; 0: none yet."""
        counts: Mapping[int, int] = self._rows.get(_about(rows), {})
        return max(counts, key=lambda each: (counts[each], each), default=0)

    def came(self, rows: int) -> Mapping[int, int]:
        """How many steps of about as many rows there were, by the drafts of their widest window."""
        return self._came.get(_about(rows), {})

    def offered(self, rows: int) -> tuple[int, int, int]:
        """The most drafts that a row was offered in the last of these, in how many in a row, and
        what it was before; 0 where there was none.
        """
        return self._offered.get(_about(rows), (0, 0, 0))

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
            self._now[rows], self._unsure[rows] = noted.now(), noted.unsure()
            times.clear()


def _about(rows: int) -> int:
    """Numbers of rows between two powers of four count as about the same."""
    return (rows - 1).bit_length() + 1 >> 1


def _kind(rows: Sequence[ScheduledRow]) -> tuple[int, int] | None:
    """Rows, and drafts of the widest window; None where a prompt is computed, or nothing."""
    if not rows or not all(row.decodes for row in rows):
        return None
    return len(rows), max(row.window for row in rows) - 1
