"""drafting: how many drafts a row is offered for its next window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol, runtime_checkable

from pydantic import Field

from .estimates import Unsure
from .policy import Policy
from .windows import Window, best_of, shares, tokens_per_time


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
