"""Which requests run in a step: a pure decision over views, with no effect of its own.

Decode rows come first, the one that has waited longest first, so that a tight budget rotates
among rows; prompts fill what is left in order of arrival. A decode row gets its whole draft
window or no row at all: trimming it would make a request's windows depend on its neighbours,
and with them its accepted counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DecodeView:
    """A request that is ready to decode. `turn` counts up each time any row is scheduled."""

    uid: int
    turn: int
    arrival: int


@dataclass(frozen=True, slots=True)
class PrefillView:
    """A request with tokens to compute before it can decode."""

    uid: int
    arrival: int


@dataclass(frozen=True, slots=True)
class Budget:
    """Tokens that one step may compute, and how many of them a decode row takes."""

    tokens: int
    window: int

    def decodes(self, ready: Iterable[DecodeView]) -> Iterator[DecodeView]:
        """The decode rows to try, best first; the caller stops when the budget is spent."""
        yield from sorted(ready, key=lambda view: view.turn)

    @staticmethod
    def prefills(waiting: Iterable[PrefillView]) -> Iterator[PrefillView]:
        """The prompts to try, in order of arrival."""
        yield from sorted(waiting, key=lambda view: view.arrival)


def victim(running: Iterable[DecodeView | PrefillView]) -> int | None:
    """The request to preempt: the one that arrived last has lost least."""
    last = max(running, key=lambda view: view.arrival, default=None)
    return None if last is None else last.uid
