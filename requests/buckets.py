"""Sizes to which a decode step is rounded up, so that few captured graphs cover all steps.

A row more costs next to nothing where weights are read for all rows at once, and a graph saves the
host hundreds of launches; so powers of two will do, and the size of a full batch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


def powers_of_two(most: int) -> tuple[int, ...]:
    """1, 2, 4, … and `most` itself."""
    sizes = [1 << power for power in range(most.bit_length()) if 1 << power < most]
    return (*sizes, most)


def every_size(most: int) -> tuple[int, ...]:
    """1, 2, 3, … `most`: where each row costs, and another recording little."""
    return tuple(range(1, most + 1))


def rounded_up(rows: int, sizes: Sequence[int]) -> int | None:
    """The least of the ascending `sizes` that has room for so many; None if none has."""
    place = bisect_left(sizes, rows)
    return sizes[place] if place < len(sizes) else None


def few_of(rows: int) -> int:
    """How many of a step's `rows` are few: so many, or all, get room for what not every row has.

    Each size of that is another graph for each size of a step, so there are two.
    """
    return rows // 8


def room_for(asked: int, rows: int, *, rounded: bool) -> int:
    """For how many of a step's `rows` there is room for what so many of them have `asked` for.

    Where sizes are `rounded`, for few or for all; and for none where nobody asks.
    """
    if not asked or not rounded:
        return asked
    return few_of(rows) if asked <= few_of(rows) else rows
