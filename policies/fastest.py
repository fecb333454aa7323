"""Drafting by the time that steps take: the number of drafts that gives most tokens per second."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field, model_validator

from .drafting import DraftView
from .estimates import Estimates, estimated, hoped
from .policy import Policy
from .windows import shares, tokens_of

LONGEST = 62
"""Drafts of the largest window: a tree's."""

GUESSED = tuple(1 + 0.1 * drafts for drafts in range(1, LONGEST + 1))
"""The periods of a step with 1, 2, … drafts where nobody says anything about them."""

Periods = Annotated[
    tuple[Annotated[float, Field(ge=1e-3, le=1e12, allow_inf_nan=False)], ...],
    Field(min_length=1, max_length=LONGEST),
]


class Fastest(Policy):
    """As many drafts as give most tokens per second, by the periods of steps.

    How many drafts are kept is what the last windows of all requests came to; what windows with as
    many drafts came to counts besides, the more the surer it is. The period of a step is given for
    numbers of rows and of drafts; what steps of this engine took counts besides in the same way,
    and corrects the periods of other numbers. Figures that were taken far apart are compared as if
    the machine had been as fast, and texts as easy, at both.

    All rows are offered alike, since a step computes as many drafts for each as for the row with
    most; and about as many rows alike, since each number brings shapes of steps. Steps of a shape
    that is new are slow until they are recorded, so the last number with about as many rows stays
    until what another promises would repay that within as many steps as there were. Another number
    is tried for a few steps where what that may show is worth its cost: one of which little is
    known, or that is about as fast. Ever more seldom: trials take less than a step in twenty after
    some thousand steps.
    """

    rows: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        default=(1,),
        min_length=1,
        max_length=64,
        description="Numbers of rows that periods are given for, the least first. Between two of "
        "them periods are interpolated.",
    )
    periods_us: tuple[Periods, ...] | None = Field(
        default=None,
        min_length=1,
        max_length=64,
        description="For each number of rows the periods of a step with 1, 2, … drafts, as "
        "`profile --drafts` prints them. Only their ratios count once steps are measured. null: a "
        "tenth more for each draft.",
    )
    windows: int = Field(
        default=512,
        ge=1,
        le=4096,
        description="Of so many of the last windows it makes the guess.",
    )
    change: float = Field(
        default=64,
        ge=0,
        le=1 << 20,
        description="What it costs to go over to a number of drafts that has not come up yet, in "
        "steps.",
    )

    @model_validator(mode="after")
    def _as_many_each(self) -> Fastest:
        if list(self.rows) != sorted(set(self.rows)):
            raise ValueError("rows must be listed once each, the least first")
        if len(self.rows) != len(self._table):
            raise ValueError(
                f"periods_us has {len(self._table)} lists, but rows has {len(self.rows)} "
                "numbers: give one list for each"
            )
        if len({len(each) for each in self._table}) > 1:
            raise ValueError("periods_us must have as many periods for each number of rows")
        return self

    @property
    def _table(self) -> Sequence[Sequence[float]]:
        return self.periods_us or (GUESSED,) * len(self.rows)

    @property
    def own(self) -> bool:
        return False

    @property
    def past(self) -> int:
        return self.windows

    def drafts(self, row: DraftView) -> int:
        most, steps = min(row.most, len(self._table[0])), sum(row.came.values())
        last, since = min(row.last, most), since_trial(steps)
        if last and (steps % EVERY or 0 < since < 2 * TRIAL):
            # Figures of two numbers are compared where one comes before and after the other.
            is_over = since == TRIAL and row.stays <= TRIAL and 0 < row.before <= most
            return row.before if is_over else last
        offered = [drafts for drafts in row.came if 1 <= drafts <= most]
        usual = max(offered, key=row.came.__getitem__, default=most)
        speeds, ahead = self._speeds(row, most, usual), max(AHEAD, steps)
        if last and not since and (tried := self._tried(row.came, speeds, last, ahead)):
            return tried
        best = max(range(1, most + 1), key=lambda drafts: speeds.means[drafts - 1])
        more = speeds.means[best - 1] - speeds.means[last - 1] if last else 1.0
        return best if more > self._repaid(best, last, row.came, ahead) else last

    def _speeds(self, row: DraftView, most: int, base: int) -> Estimates:
        """Tokens per time with 1, 2, … drafts. Unsure is only what measuring would show."""
        periods = self._periods(row.usual or row.rows)[:most]
        took = estimated(periods, row.took_us, row.took_unsure, base, PERIODS_OFF)
        comes_to = tokens_of(shares(row.settled, most))
        gained = estimated(comes_to, row.gained, row.gained_unsure, base, TOKENS_OFF)
        return gained.as_sure(base not in row.gained).over(took.as_sure(base not in row.took_us))

    def _tried(self, came: Mapping[int, int], speeds: Estimates, last: int, ahead: int) -> int:
        """The number that is worth a trial most; 0: none is worth what it costs, in steps.

        A trial costs the time by which the number is thought to be slower, and what new shapes do.
        What it is worth is what it may show, for all steps that are thought to come (`ahead`).
        """
        best, found = 0.0, 0
        for drafts, (mean, variance) in enumerate(zip(*speeds, strict=True), start=1):
            if drafts == last:
                continue
            more = mean - speeds.means[last - 1]
            unsure = variance + speeds.variances[last - 1]
            shown = hoped(more, DISTURBED**2 * unsure) - max(0.0, more)
            new = max(0.0, self.change - came.get(drafts, 0))
            worth = shown * ahead - TRIAL * max(0.0, -more) - new - CHANGED
            if worth > best:
                best, found = worth, drafts
        return found

    def _repaid(self, drafts: int, last: int, came: Mapping[int, int], ahead: int) -> float:
        """By what share `drafts` must be faster than the `last` number, to be gone over to.

        What has come up less than `change` times is paid for in part: one number as the other.
        """
        left = min(self.change, came.get(last, 0)) - min(self.change, came.get(drafts, 0))
        return max(NOISE, left / ahead)

    def _periods(self, rows: int) -> Sequence[float]:
        """Those of so many rows; outside of what is given, those of the nearest number."""
        above = bisect_left(self.rows, rows)
        if above == len(self.rows) or above == 0 or self.rows[above] == rows:
            return self._table[min(above, len(self.rows) - 1)]
        low, high = self.rows[above - 1], self.rows[above]
        share = (rows - low) / (high - low)
        pairs = zip(self._table[above - 1], self._table[above], strict=True)
        return [less + share * (more - less) for less, more in pairs]


PERIODS_OFF = 0.35
"""By what share given periods may be off where a window has e times as many tokens."""

TOKENS_OFF = 0.1
"""The same of what windows come to, as it is told by the last ones, which had other numbers."""

DISTURBED = 1.5
"""So many times as unsure figures are thought to be as they are told: those that follow each other
may be disturbed alike."""

UNTRIED = 128
"""Steps with about as many rows before the first trial of another number of drafts, and between the
beginnings of two, at least."""

TRIAL = 48
"""Steps of a trial: after so many a shape that is new has been recorded and measured. In as many
after them the number before has its turn again."""

OFTEN = 8
"""Trials while the number of steps doubles, at most: they take an ever smaller share of the time,
whatever they show. Which are made is told by what they are worth."""

AGAIN = 8192
"""The most steps between the beginnings of two trials: what is kept may have changed."""

CHANGED = 4
"""What a trial costs at least, in steps: two changes of the number."""

EVERY = 16
"""Steps after which the numbers are compared again."""

AHEAD = 12288
"""Steps that are thought to come at least, when a change has to repay what it costs, or a trial;
after that, as many as there were."""

NOISE = 0.01
"""A promise that is higher by this share may be chance."""


def since_trial(steps: int) -> int:
    """How many of so many steps have passed since a trial could begin last; before, as if it had
    been over. Raises nothing."""
    if steps < UNTRIED:
        return UNTRIED
    doubled = 1 << steps.bit_length() - 1
    return (steps - doubled) % min(AGAIN, max(UNTRIED, doubled // OFTEN))
