"""What became of the steps in which something may be replayed."""

from __future__ import annotations

from dataclasses import dataclass, field

REASONS = 32
"""Reasons that are counted apart."""

FIRST = "first of its shape"
SELDOM = "its shape has come up seldom so far"
NEW = (FIRST, SELDOM)
"""Why a step is not captured yet."""


@dataclass
class Counts:
    """Steps of one segment, or of one op that has pieces recorded."""

    replayed: int = 0
    captured: int = 0
    moved: int = 0  # recordings that were made of one of a step in other slots; no steps
    eager: dict[str, int] = field(default_factory=dict)  # run as usual, by the reason

    @property
    def steps(self) -> int:
        """All of them."""
        return self.replayed + self.captured + sum(self.eager.values())

    @property
    def learning(self) -> int:
        """Those after which another of their shape may be replayed, or is: they took longer."""
        return self.captured + sum(self.eager.get(reason, 0) for reason in NEW)

    @property
    def reasons(self) -> str:
        """Why some ran as usual, each with how many: `of so many: 3, of that: 1`."""
        return ", ".join(f"{why}: {steps}" for why, steps in sorted(self.eager.items()))

    def because(self, reason: str) -> None:
        """One more ran as usual."""
        if reason not in self.eager and len(self.eager) >= REASONS:
            reason = "other reasons"
        self.eager[reason] = self.eager.get(reason, 0) + 1
