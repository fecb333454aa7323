"""What the request table leaves to policies, and the rules that it holds them to.

A policy that breaks a rule ends the run with an error that names both; what requests have settled
is kept, and another policy may go on from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NoReturn

from ..policies.chosen import Policies
from ..policies.drafting import DraftView
from ..policies.errors import PolicyError
from ..policies.preemption import RunningView
from ..policies.registry import called
from ..policies.scheduling import RowView


class Decisions:
    """Asks the scheduling, preemption and drafting policies. Every method raises `PolicyError`."""

    def __init__(self, policies: Policies) -> None:
        self._scheduling = policies.scheduling
        self._preemption = policies.preemption
        self.keeps = policies.resumption.keeps
        self._drafting = policies.drafting
        self.past_windows = policies.drafting.past  # that the drafting policy wants to see
        self.by_row = policies.drafting.own  # else it says the same of all, and may go by times
        self.offer = policies.scheduling.tokens  # whose answers `checked` checks
        self._asked = self._short = False  # in this step: for anybody; of memory

    def share(self, budget: int, widest: int, prompts: int) -> int:
        """Tokens of the budget for rows that decode. A new step begins with this question."""
        self._asked = self._short = False
        share = self._scheduling.share(budget, widest, prompts)
        if not isinstance(share, int):
            self._broken(f"it leaves {share!r} to rows that decode: return a number of tokens")
        if not min(widest, budget) <= share <= budget:
            self._broken(
                f"it leaves {share} of {budget} tokens to rows that decode; the widest of their "
                f"windows has {widest}: a share has room for it, and is within the budget"
            )
        return share

    def order(self, rows: Sequence[RowView]) -> Sequence[RowView]:
        """The rows, at least one, in the order in which they are offered tokens."""
        self._asked = True
        ordered = self._scheduling.order(rows)
        if not isinstance(ordered, Iterable):
            self._broken(f"its order is {ordered!r}: return the rows that it was given, in a list")
        found = tuple(ordered)
        if not {*map(type, found)} <= {RowView}:
            wrong = next(each for each in found if type(each) is not RowView)
            self._broken(f"its order has {wrong!r} in it: return the rows that it was given")
        return found

    def checked(self, row: RowView, tokens: int, left: int, wanted: int) -> int:
        """The `tokens` that an offer came to, of those that are left; 0 ends the round.

        There is no need to ask this of a row that gets all that it wants, and no more than is left.
        """
        if not isinstance(tokens, int):
            self._broken(f"request {row.uid} gets {tokens!r}: return a number of tokens")
        if tokens == 0:
            return 0
        if not 0 < tokens <= left:
            self._broken(
                f"it overruns the budget: request {row.uid} gets {tokens} tokens, but {left} are "
                "left; give at most those, or 0"
            )
        if tokens > wanted or (row.decodes and tokens != wanted):
            self._broken(
                f"request {row.uid} gets {tokens} tokens, but "
                + (f"decodes {wanted}" if row.decodes else f"its prompt has {wanted} left")
                + ": a row that decodes gets its whole window or 0, a prompt no more than it has"
            )
        return tokens

    def not_offered(self, row: RowView) -> NoReturn:
        """Refuse a row that was not offered, or that comes twice."""
        self._broken(
            f"its order names request {row.uid}, which was not offered to it, or was ordered "
            "before: return each of the given rows once, or leave it out"
        )

    def too_soon(self, row: RowView, steps: int) -> NoReturn:
        """Refuse a row that decodes before the step that it goes on from is handed to it."""
        self._broken(
            f"request {row.uid} gets a row less than {steps} steps after its last, but this "
            f"pipeline hands tokens on after {steps}: leave rows in flight out of the order, as "
            "the policy 'groups' does"
        )

    def no_memory(self) -> None:
        """Somebody got tokens, but finds no memory in this step: blocks may still rest."""
        self._short = True

    def nobody_runs(self) -> None:
        """Nobody got a row, and nothing is in flight: that must not be the policy's doing."""
        if self._asked and not self._short:
            self._broken(
                "nothing is in flight, and it gives nobody tokens though there are some: no "
                "request would ever end; give the first in the order what it can use"
            )

    def victim(self, running: Sequence[RunningView]) -> int:
        """Who is preempted, of those that may be."""
        uid = self._preemption.victim(running)
        if not any(view.uid == uid for view in running):
            known = ", ".join(str(view.uid) for view in running)
            raise PolicyError(
                f"{called('preemption', self._preemption)}: it names request {uid!r}, which cannot "
                f"be preempted now; name one of those that it was given ({known})"
            )
        return uid

    def withheld(self, row: DraftView) -> int:
        """How many of its most drafts a row is not offered for its next window."""
        drafts = self._drafting.drafts(row)
        if not isinstance(drafts, int) or not 1 <= drafts <= row.most:
            raise PolicyError(
                f"{called('drafting', self._drafting)}: it offers a row {drafts!r} drafts; a row "
                f"that speculates is offered from 1 to {row.most}"
            )
        return row.most - drafts

    def _broken(self, rule: str) -> NoReturn:
        raise PolicyError(f"{called('scheduling', self._scheduling)}: {rule}")
