"""Which requests run in a step: pure decisions over views, with no effect of their own.

Decode rows come first, the one that has waited longest first, so that a tight budget rotates
among rows; prompts fill what is left, by priority and then by arrival. A decode row gets its
whole draft window or no row at all: trimming it would make a request's windows depend on its
neighbours, and with them its accepted counts. Windows may differ from row to row; where the one
whose turn it is does not fit, nobody behind it does, or a wide one could wait for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DecodeView:
    """A request that is ready to decode. `turn` counts up each time any row is scheduled."""

    uid: int
    turn: int
    window: int  # query tokens of its row


@dataclass(frozen=True, slots=True)
class Claim:
    """A request's rank where there is not enough for all: lower first, by priority and arrival."""

    uid: int
    priority: int

    @property
    def rank(self) -> tuple[int, int]:
        return (self.priority, self.uid)


@dataclass(slots=True)
class Budget:
    """Tokens that one step may still compute."""

    left: int

    def decodes(self, ready: Iterable[DecodeView]) -> Iterator[DecodeView]:
        """The decode rows to try, best first, for as long as the next one's window fits.

        The caller calls `take` for those that it schedules.
        """
        for view in sorted(ready, key=lambda view: view.turn):
            if view.window > self.left:
                return
            yield view

    def take(self, tokens: int) -> None:
        assert tokens <= self.left, "more than the budget"
        self.left -= tokens


def in_order(claims: Iterable[Claim]) -> list[Claim]:
    """The order of admission, and of prompts."""
    return sorted(claims, key=lambda claim: claim.rank)


def victim(running: Iterable[Claim]) -> int | None:
    """The request to preempt: of the lowest priority, the one that came last has lost least."""
    last = max(running, key=lambda claim: claim.rank, default=None)
    return None if last is None else last.uid
