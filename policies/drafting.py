"""drafting: how many drafts a row is offered for its next window."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain
from operator import mul
from types import MappingProxyType
from typing import Annotated, NamedTuple, Protocol, runtime_checkable

from pydantic import Field, model_validator

from .estimates import Estimates, Unsure, estimated, hoped
from .policy import Policy


class Window(NamedTuple):
    """A draft window that is settled."""

    judged: int  # drafts that were considered: those of the first places, counted from 1
    kept: int  # of them, and within the text
    path: tuple[int, ...] | None = None
    """Of a draft tree the places of those that were kept, in order, as `(1, 2, 5)`; None: of a
    chain, where they are the first `kept`. The first n places are a tree, too: of a row that had
    been offered n drafts those on the path up to n would have been kept."""


class DraftView(NamedTuple):
    """A row that is to be offered drafts, or all rows of a step with as many: see `Drafting`."""

    most: int  # drafts, at least 1: those of the pipeline, or of its request
    rows: int  # requests that run, this one included
    own: Sequence[Window]  # its windows, the newest last, without its last few
    settled: Sequence[Window]  # the last windows of all requests, as they were settled
    seen: int = 0  # its windows, with those that `own` no longer has
    took_us: Mapping[int, float] = MappingProxyType({})
    """How long steps with `usual` rows took in this engine, by the drafts of their widest window,
    where such steps came up often. Nothing with several ranks, which must decide alike."""
    came: Mapping[int, int] = MappingProxyType({})
    """How many steps with about as many rows there were so far, by the same."""
    last: int = 0  # the most drafts that rows were offered in the last of these; 0: there was none
    stays: int = 0  # in how many of these in a row
    before: int = 0  # what it was before; 0: nothing
    usual: int = 0  # of about as many rows, the number that these steps had most often; 0: of none
    gained: Mapping[int, float] = MappingProxyType({})
    """How many tokens windows came to, by their drafts, where such windows came up often. Windows
    that were in flight when their text ended came to none."""
    took_unsure: Unsure = MappingProxyType({})
    """By what share `took_us` of one number of drafts may be off against that of another: standard
    deviations of logarithms of their quotients."""
    gained_unsure: Unsure = MappingProxyType({})
    """The same of `gained`."""


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
        """Whether each row is asked about, and answers depend on `most`, `own` and `seen` alone.

        Then windows are the same at every depth, and so is what is drafted and accepted: a row's
        last windows, which a deeper pipeline has not settled yet, are not shown at any depth. Else
        no row's own windows are shown, and what is said holds for all rows of the step with as many
        drafts: it is asked once.
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
        default=48,
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

    The number that gives most tokens for its time, if the draft at each place of a window, or node
    of a tree, is kept as often as in the row's last windows; before any is known, four of five of
    those before it. It is looked at again every few windows only, since each change brings a shape
    of step that may be new. Where many rows run, a step computes as many drafts for each as for the
    row with most.
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
    every: int = Field(
        default=4, ge=1, le=1024, description="After so many of its windows it makes it again."
    )

    @property
    def own(self) -> bool:
        return True

    @property
    def past(self) -> int:
        return self.windows + self.every

    def drafts(self, row: DraftView) -> int:
        settled = row.own[: len(row.own) - row.seen % self.every][-self.windows :]
        rates = tokens_per_time(
            shares(settled, row.most), [1 + self.cost * count for count in range(1, row.most + 1)]
        )
        return best_of(rates)


LONGEST = 62
"""Drafts of the largest window: a tree's."""

GUESSED = tuple(1 + 0.1 * drafts for drafts in range(1, LONGEST + 1))
"""The periods of a step with 1, 2, … drafts where nobody says anything about them."""

Periods = Annotated[
    tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...],
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
        speeds = self._speeds(row, most, usual)
        if last and not since and (tried := self._tried(row, speeds, last)):
            return tried
        best = max(range(1, most + 1), key=lambda drafts: speeds.means[drafts - 1])
        more = speeds.means[best - 1] - speeds.means[last - 1] if last else 1.0
        return best if more > self._repaid(best, last, row.came) else last

    def _speeds(self, row: DraftView, most: int, base: int) -> Estimates:
        """Tokens per time with 1, 2, … drafts. Unsure is only what measuring would show."""
        periods = self._periods(row.usual or row.rows)[:most]
        took = estimated(periods, row.took_us, row.took_unsure, base, PERIODS_OFF)
        comes_to = tokens_of(shares(row.settled, most))
        gained = estimated(comes_to, row.gained, row.gained_unsure, base, TOKENS_OFF)
        return gained.as_sure(base not in row.gained).over(took.as_sure(base not in row.took_us))

    def _tried(self, row: DraftView, speeds: Estimates, last: int) -> int:
        """The number that is worth a trial most; 0: none is worth what it costs, in steps.

        A trial costs the time by which the number is thought to be slower, and what new shapes do.
        What it is worth is what it may show, for all steps that are thought to come.
        """
        ahead, best, found = max(AHEAD, sum(row.came.values())), 0.0, 0
        for drafts, (mean, variance) in enumerate(zip(*speeds, strict=True), start=1):
            if drafts == last:
                continue
            more = mean - speeds.means[last - 1]
            unsure = variance + speeds.variances[last - 1]
            shown = hoped(more, DISTURBED**2 * unsure) - max(0.0, more)
            new = max(0.0, self.change - row.came.get(drafts, 0))
            worth = shown * ahead - TRIAL * max(0.0, -more) - new - CHANGED
            if worth > best:
                best, found = worth, drafts
        return found

    def _repaid(self, drafts: int, last: int, came: Mapping[int, int]) -> float:
        """By what share `drafts` must be faster than the `last` number, to be gone over to.

        What has come up less than `change` times is paid for in part: one number as the other.
        """
        left = min(self.change, came.get(last, 0)) - min(self.change, came.get(drafts, 0))
        return max(NOISE, left / max(AHEAD, sum(came.values())))

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


PRIOR = 0.8
"""What is believed of the first draft before any was judged; of a later one, that of the one before
it. It counts as much as one draft that was judged."""


def shares(windows: Sequence[Window], most: int) -> list[float]:
    """For each of `most` places of a window: in what share of windows its draft is kept.

    What n drafts come to is the sum of the first n. Raises nothing of its own.
    """
    if any(window.path is not None for window in windows):
        return _of_trees(windows, most)
    return list(accumulate(chances(windows, most), mul))


def chances(windows: Sequence[Window], most: int) -> list[float]:
    """For each of `most` places of a chain: how often a draft is kept if those before it are.

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


def _of_trees(windows: Sequence[Window], most: int) -> list[float]:
    """The shares of places of trees, each by the windows that had it.

    A refused node says nothing of those after it, which may be on other ways, so nothing depends on
    the place before; but for what is believed before a place was seen, which is less each time. So
    with none seen it is as much as of a chain.
    """
    kept = Counter(chain.from_iterable(window.path or () for window in windows))
    judged = Counter(window.judged for window in windows)
    having, found, before = len(windows) - judged[0], [], 1.0
    for place in range(1, most + 1):
        before = (kept[place] + PRIOR * before) / (having + 1)
        found.append(before)
        having -= judged[place]
    return found


def tokens_of(kept: Sequence[float]) -> list[float]:
    """Tokens of a window with 1, 2, … drafts, where `kept` is as below. Raises nothing."""
    return [*accumulate(kept, initial=1.0)][1:]


def tokens_per_time(kept: Sequence[float], periods: Sequence[float]) -> list[float]:
    """How many tokens a row gets in a unit of time, with 1, 2, … drafts.

    `kept`: for each place, in what share of windows its draft is kept; `periods`: the time of a
    step with 1, 2, … drafts, in any unit. Raises nothing of its own.
    """
    return [count / period for count, period in zip(tokens_of(kept), periods, strict=False)]


def best_of(rates: Sequence[float]) -> int:
    """The number of drafts with the highest of `rates`; of equals the least. Raises nothing."""
    return max(range(len(rates)), key=rates.__getitem__) + 1
