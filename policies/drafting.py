"""drafting: how many drafts a row is offered for its next window."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from operator import mul
from statistics import median
from types import MappingProxyType
from typing import Annotated, NamedTuple, Protocol, runtime_checkable

from pydantic import Field, model_validator

from .policy import Policy


class Window(NamedTuple):
    """A draft window that is settled."""

    judged: int  # drafts that were considered
    kept: int


class DraftView(NamedTuple):
    """A row that is to be offered drafts."""

    most: int  # drafts, at least 1: those of the pipeline, or of its request
    rows: int  # requests that run, this one included
    own: Sequence[Window]  # its windows, the newest last, without its last few: see `Drafting`
    settled: Sequence[Window]  # the last windows of all requests, as they were settled
    took_us: Mapping[int, float] = MappingProxyType({})
    """How long steps with as many rows took in this engine, by the drafts of their widest window,
    where such steps came up often. Nothing with several ranks, which must decide alike."""


@runtime_checkable
class Drafting(Protocol):
    """Says how many drafts a row is offered: the next window that it decodes is as long.

    A window is narrower where fewer drafts are offered, so a step computes fewer tokens, and a
    drafter makes fewer passes if no row is offered more. Tokens are those of the acceptance rule
    whatever the answer. Where the rule is `exact` they do not depend on it at all; other rules go
    with policies that are `own` only.
    """

    @property
    def own(self) -> bool:
        """Whether the answer depends on `most` and `own` of the view alone.

        Then windows are the same at every depth, and so is what is drafted and accepted: a row's
        last windows, which a deeper pipeline has not settled yet, are not shown at any depth.
        """
        ...

    @property
    def past(self) -> int:
        """Windows of the row, and of all requests, that it wants to see; with 0 none are noted."""
        ...

    def drafts(self, row: DraftView) -> int:
        """From 1 to `row.most`."""
        ...


class Full(Policy):
    """As many drafts as the pipeline has, or the request asks for."""

    @property
    def own(self) -> bool:
        return True

    @property
    def past(self) -> int:
        return 0

    def drafts(self, row: DraftView) -> int:
        return row.most


class ByRows(Policy):
    """Fewer drafts the more requests run, so that a step computes about the same number of tokens.

    A device that is busy with many rows has no time to spare for drafts that may be refused.
    """

    tokens: int = Field(
        default=16,
        ge=1,
        le=1 << 20,
        description="Tokens of all windows of a step together, about: each row has one draft at "
        "least.",
    )

    @property
    def own(self) -> bool:
        return False

    @property
    def past(self) -> int:
        return 0

    def drafts(self, row: DraftView) -> int:
        return min(row.most, max(1, self.tokens // row.rows - 1))


class ByAcceptance(Policy):
    """As many drafts as the row's own settled windows say are worth their cost.

    The number that gives most tokens for its time, if a draft is kept as often as the row's last
    drafts were, one after the other.
    """

    cost: float = Field(
        default=0.1,
        ge=0,
        le=10,
        description="What one more draft adds to a step: drafting and verifying it, as a share of "
        "the time of a step without drafts.",
    )
    windows: int = Field(
        default=16, ge=1, le=1024, description="Of so many of its last windows it makes the guess."
    )

    @property
    def own(self) -> bool:
        return True

    @property
    def past(self) -> int:
        return self.windows

    def drafts(self, row: DraftView) -> int:
        periods = [1 + self.cost * count for count in range(1, row.most + 1)]
        return best_length(chances(row.own, row.most), periods)


GUESSED = 0.1
"""What a draft adds to the time of a step where nobody says anything about it, as a share."""

Periods = Annotated[
    tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...],
    Field(min_length=1, max_length=16),
]


class Fastest(Policy):
    """As many drafts as give most tokens per second, by the periods that a plan predicts.

    How many drafts are kept is what the last windows of all requests came to. The period of a step
    is predicted for numbers of rows and of drafts; what steps of this engine took counts in place
    of it as soon as there is enough of that, and corrects the predictions that are left. Numbers
    beside the best one are offered until they are measured too, so wrong predictions are found out.
    """

    rows: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        default=(1,),
        min_length=1,
        max_length=64,
        description="Numbers of rows that periods are given for, the least first. Between two of "
        "them periods are interpolated.",
    )
    periods_us: tuple[Periods, ...] = Field(
        default=(tuple(1 + GUESSED * drafts for drafts in range(1, 17)),),
        min_length=1,
        max_length=64,
        description="For each number of rows the periods of a step with 1, 2, … drafts, as `check` "
        "says for costs that were measured with so many. Only their ratios count once steps are "
        "measured. Default: a tenth more for each draft.",
    )
    windows: int = Field(
        default=64, ge=1, le=4096, description="Of so many of the last windows it makes the guess."
    )

    @model_validator(mode="after")
    def _as_many_each(self) -> Fastest:
        if list(self.rows) != sorted(set(self.rows)):
            raise ValueError("rows must be listed once each, the least first")
        if len(self.rows) != len(self.periods_us):
            raise ValueError(
                f"periods_us has {len(self.periods_us)} lists, but rows has {len(self.rows)} "
                "numbers: give one list for each"
            )
        if len({len(each) for each in self.periods_us}) > 1:
            raise ValueError("periods_us must have as many periods for each number of rows")
        return self

    @property
    def own(self) -> bool:
        return False

    @property
    def past(self) -> int:
        return self.windows

    def drafts(self, row: DraftView) -> int:
        periods = corrected(self._periods(row.rows)[: row.most], row.took_us)
        best = best_length(chances(row.settled, row.most), periods)
        if best in row.took_us:
            for beside in (best - 1, best + 1):
                if 1 <= beside <= row.most and beside not in row.took_us:
                    return beside
        return best

    def _periods(self, rows: int) -> Sequence[float]:
        """Those of so many rows; outside of what is given, those of the nearest number."""
        above = bisect_left(self.rows, rows)
        if above == len(self.rows) or above == 0 or self.rows[above] == rows:
            return self.periods_us[min(above, len(self.rows) - 1)]
        low, high = self.rows[above - 1], self.rows[above]
        share = (rows - low) / (high - low)
        pairs = zip(self.periods_us[above - 1], self.periods_us[above], strict=True)
        return [less + share * (more - less) for less, more in pairs]


PRIOR = 0.5
"""What is believed of the first draft before any was judged; of a later one, that of the one before
it. It counts as much as one draft that was judged."""


def chances(windows: Sequence[Window], most: int) -> list[float]:
    """For each of `most` places of a window: how often a draft is kept if those before it are.

    Drafts far ahead are kept less often than the first, so each place is counted by itself; one
    behind the first that is refused says nothing. Raises nothing of its own.
    """
    found, before = [], PRIOR
    alike = Counter(windows)
    for place in range(1, most + 1):
        reached = kept = 0
        for window, number in alike.items():
            if window.judged >= place and window.kept >= place - 1:
                reached += number
                kept += number * (window.kept >= place)
        before = (kept + before) / (reached + 1)
        found.append(before)
    return found


def corrected(predicted: Sequence[float], took: Mapping[int, float]) -> list[float]:
    """The times of steps with 1, 2, … drafts: as they were measured, else as predicted.

    Predictions are corrected by what measured times are to theirs. Raises nothing of its own.
    """
    known = {drafts: us for drafts, us in took.items() if 1 <= drafts <= len(predicted)}
    if not known:
        return list(predicted)
    off = median(us / predicted[drafts - 1] for drafts, us in known.items())
    return [known.get(drafts, off * us) for drafts, us in enumerate(predicted, start=1)]


def best_length(kept: Sequence[float], periods: Sequence[float]) -> int:
    """The number of drafts that gives most tokens for its time; of equals the least.

    `kept`: for each place, how often a draft is kept, those before it being kept; `periods`: the
    time of a step with 1, 2, … drafts, in any unit. Raises nothing of its own.
    """
    best, most, tokens = 1, 0.0, 1.0
    of_all = accumulate(kept, mul)
    for drafts, (chance, period) in enumerate(zip(of_all, periods, strict=False), start=1):
        tokens += chance
        if tokens / period > most:
            best, most = drafts, tokens / period
    return best
