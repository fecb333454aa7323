"""What the policy `drafting: fastest` compares: the periods of a plan with 1, 2, … drafts.

Steps are timed with requests that ask for so many drafts. Of a window with many places some numbers
are timed, which are twice as large each time; periods between them are on straight lines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class DraftingCosts:
    """For each number of rows the periods of a step with 1, 2, … drafts, in µs."""

    rows: tuple[int, ...]
    periods_us: tuple[tuple[float, ...], ...]

    @staticmethod
    def of(timed: Mapping[int, Mapping[int, float]]) -> DraftingCosts:
        """From periods by number of rows, and by some numbers of drafts, 1 among them.

        To a tenth of a µs: no clock says more.
        """
        rows = tuple(sorted(timed))
        periods = (tuple(round(us, 1) for us in between(timed[each])) for each in rows)
        return DraftingCosts(rows, tuple(periods))

    def __str__(self) -> str:
        """The policy, as a pipeline file has it."""
        periods = ", ".join(
            f"[{', '.join(f'{us:.1f}' for us in each)}]" for each in self.periods_us
        )
        return f"{{kind: fastest, rows: {[*self.rows]}, periods_us: [{periods}]}}"


EACH = 8
"""So many numbers are timed one by one: products are computed in tiles, so that of two numbers next
to each other one may take hardly more than the other, or much."""


def lengths(most: int) -> tuple[int, ...]:
    """The numbers of drafts that are timed: 1, 2, … 8, 16, … and `most`, which is at least 1."""
    doubled = (EACH << power for power in range(1, most.bit_length()))
    return (*[each for each in (*range(1, EACH + 1), *doubled) if each < most], most)


def between(known: Mapping[int, float]) -> tuple[float, ...]:
    """Of 1, 2, … up to the largest of those `known`, which have 1. Raises nothing of its own."""
    sizes: Sequence[int] = sorted(known)
    found = [known[sizes[0]]]
    for low, high in pairwise(sizes):
        step = (known[high] - known[low]) / (high - low)
        found += [known[low] + step * (each - low) for each in range(low + 1, high + 1)]
    return tuple(found)
