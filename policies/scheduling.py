"""scheduling: which requests run in a step, and how the token budget is split among them."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple, Protocol, runtime_checkable

from pydantic import Field

from .policy import Policy


class RowView(NamedTuple):
    """A request that may run in the next step; views sort by priority and then by arrival."""

    priority: int  # lower is better
    uid: int  # counts up in the order of arrival
    turn: int  # counts up whenever a request is given a row: the lowest has waited longest
    tokens: int  # the window that it decodes; of a prompt what is still to compute, at most
    decodes: bool  # else its prompt is computed
    running: bool  # it holds a row and blocks already
    in_flight: int = 0  # steps that carry it and are not settled yet


@runtime_checkable
class Scheduling(Protocol):
    """Splits the token budget of a step: first among rows that decode, then among prompts.

    Who runs when changes no request's tokens, as long as these rules are kept, which the request
    table checks: a row that decodes gets its whole window or nothing (a trimmed one would make a
    request's drafts depend on its neighbours), nobody gets more than is left, and where nothing is
    in flight somebody gets something. Whoever is offered nothing ends the round of its kind: nobody
    behind it gets anything, or a wide window could wait for ever.
    """

    def share(self, budget: int, widest: int, prompts: int) -> int:
        """Tokens of `budget` that rows which decode may use; prompts get all that they leave.

        `widest`: the widest window among these rows, 0 where there are none. The share must have
        room for it. `prompts`: how many requests have a prompt to compute.
        """
        ...

    def order(self, rows: Sequence[RowView]) -> Sequence[RowView]:
        """Who is offered tokens first: of `rows`, which all decode or are all prompts.

        A prompt that there is no memory for stops those behind it that are not running yet. Rows
        that are left out do not run in this step.
        """
        ...

    def tokens(self, row: RowView, left: int) -> int:
        """How many of the tokens that are left (at least 1) the row computes; 0 for none."""
        ...


class DecodesFirst(Policy):
    """Rows that decode come first, in turn; prompts fill what is left, by priority and arrival.

    In turn: the one that has waited longest first, so that a tight budget rotates among rows.
    """

    prompt_tokens: int | None = Field(
        default=None,
        ge=1,
        le=1 << 20,
        description="Tokens of one prompt in one step, at most: a long prompt then delays the rows "
        "beside it less, and takes more steps. null: as many as the budget has.",
    )

    def share(self, budget: int, widest: int, prompts: int) -> int:
        return budget

    def order(self, rows: Sequence[RowView]) -> Sequence[RowView]:
        if rows and rows[0].decodes:
            return sorted(rows, key=_turn)
        return sorted(rows)

    def tokens(self, row: RowView, left: int) -> int:
        wanted = row.tokens
        if row.decodes:
            return wanted if wanted <= left else 0
        if self.prompt_tokens is not None and wanted > self.prompt_tokens:
            wanted = self.prompt_tokens
        return wanted if wanted <= left else left


class Shared(DecodesFirst):
    """As decodes_first, but while prompts wait a part of the budget is theirs.

    So a full batch of rows that decode cannot keep a new request waiting; it takes turns instead.
    """

    prompts: float = Field(
        default=0.5, ge=0, le=1, description="The share of the token budget that is for prompts."
    )

    def share(self, budget: int, widest: int, prompts: int) -> int:
        if prompts == 0:
            return budget
        return max(widest, budget - int(self.prompts * budget))


class Groups(DecodesFirst):
    """Rows that decode take turns in groups, and no row is in two steps at a time.

    So a row is scheduled when its step before is settled: what it drafts, its grammar and its
    length are known then, though `groups` steps are in flight. Each step takes its part of the rows
    and no more, since a group that has all of them leaves the other steps empty. That is what
    stages of a model that work on different steps need.
    """

    groups: int = Field(
        default=2,
        ge=1,
        le=8,
        description="Into how many groups rows are divided: as many as steps are in flight, which "
        "is `depth`.",
    )

    def order(self, rows: Sequence[RowView]) -> Sequence[RowView]:
        if not rows or not rows[0].decodes:
            return super().order(rows)
        settled = sorted((row for row in rows if not row.in_flight), key=_turn)
        return settled[: -(-len(rows) // self.groups)]


_turn = attrgetter("turn")
