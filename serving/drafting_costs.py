"""What the policy `drafting: fastest` compares: the periods of a plan with 1, 2, … drafts.

Ops are timed with requests that ask for so many drafts, and the period is what the plan predicts
with these times. Of a window with many places some numbers are timed, which are twice as large each
time; periods between them are on straight lines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile


@dataclass(frozen=True)
class DraftingCosts:
    """For each number of rows the periods of a step with 1, 2, … drafts, in µs."""

    rows: tuple[int, ...]
    periods_us: tuple[tuple[float, ...], ...]

    @staticmethod
    def of(predicted: Mapping[int, Mapping[int, float]]) -> DraftingCosts:
        """From periods by number of rows, and by some numbers of drafts, 1 among them.

        To a tenth of a µs: no clock says more.
        """
        rows = tuple(sorted(predicted))
        periods = (tuple(round(us, 1) for us in between(predicted[each])) for each in rows)
        return DraftingCosts(rows, tuple(periods))

    def __str__(self) -> str:
        """The policy, as a pipeline file has it."""
        periods = ", ".join(
            f"[{', '.join(f'{us:.1f}' for us in each)}]" for each in self.periods_us
        )
        return f"{{kind: fastest, rows: {[*self.rows]}, periods_us: [{periods}]}}"


def lengths(most: int) -> tuple[int, ...]:
    """The numbers of drafts that are timed: 1, 2, 4, … and `most`, which is at least 1."""
    doubled = takewhile(lambda each: each < most, (1 << power for power in range(most)))
    return (*doubled, most)


def between(known: Mapping[int, float]) -> tuple[float, ...]:
    """Of 1, 2, … up to the largest of those `known`, which have 1. Raises nothing of its own."""
    sizes: Sequence[int] = sorted(known)
    found = [known[sizes[0]]]
    for low, high in pairwise(sizes):
        step = (known[high] - known[low]) / (high - low)
        found += [known[low] + step * (each - low) for each in range(low + 1, high + 1)]
    return tuple(found)
