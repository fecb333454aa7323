"""Settled and optimistic counts: two types, so that one is never taken for the other.

*Settled* is what the device has confirmed and the host has read. *Optimistic* is what the host
assumes of steps still in flight: every draft accepted, no request ended. Freeing, stopping,
metrics and grammars read settled counts only; reservations read optimistic ones. mypy holds the
line: a function that wants `SettledCount` does not take `OptimisticCount`, nor a plain int.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

SettledCount = NewType("SettledCount", int)
OptimisticCount = NewType("OptimisticCount", int)


@dataclass(slots=True)
class InFlight:
    """Steps of one request that the host has scheduled and not yet committed.

    `windows` are decode steps, which yield one token each and up to `drafts` more together;
    `firsts` are final prefill chunks, which yield exactly one; `silent` are chunks that yield none.
    """

    windows: int = 0
    drafts: int = 0
    firsts: int = 0
    silent: int = 0

    @property
    def steps(self) -> int:
        return self.windows + self.firsts + self.silent

    def upper_bound(self, settled: SettledCount) -> OptimisticCount:
        """Upper bound of the tokens there will be: all drafts accepted in every step."""
        return OptimisticCount(settled + self.firsts + self.windows + self.drafts)

    def lower_bound(self, settled: SettledCount) -> SettledCount:
        """Lower bound, as certain as a settled count: every sampling step yields one token."""
        return SettledCount(settled + self.firsts + self.windows)
