"""Draft trees: one walk of a matcher over such a tree, from the root down and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from .bitmask import Words

if TYPE_CHECKING:
    from .backend import Matcher


def fill_tree(matcher: Matcher, drafts: Sequence[int], parents: Sequence[int], rows: Words) -> int:
    """Fill a mask row for each place of a draft tree; the number of valid drafts.

    Row 0 is the mask at the current state, row p that after the draft of place p and those on the
    way to it. A draft is at place 1 + its index, after that of its parent, one of `parents`, which
    lies before it. A draft that the grammar does not allow ends its branch: the rows from it on
    are closed, as `Matcher.fill_window` says.

    The matcher stands where it stood when this returns or raises.

    Args:
        drafts: at most k token ids.
        parents: of each draft; more are not read.
        rows: int32, C-contiguous `[k + 1, W]`, overwritten whole.

    Raises:
        MatcherFailure: the library failed, or no token can follow the current state.
    """
    matcher.fill_window((), rows[:1])
    rows[1:] = matcher.closed_row
    return walk(matcher, drafts, parents, lambda place: matcher.fill_here(rows[place]))


def walk(
    matcher: Matcher, drafts: Sequence[int], parents: Sequence[int], here: Callable[[int], bool]
) -> int:
    """Lead the matcher to each draft that the grammar allows; how many there are.

    `here` is called where it stands after the draft of a place, and says whether to go on from
    there. The matcher stands where it stood when this returns or raises.

    Args:
        drafts: token ids; each is at place 1 + its index.
        parents: of each draft, the place before its own; more are not read.

    Raises:
        MatcherFailure: the library failed; or what `here` raises.
    """
    children: list[list[int]] = [[] for _ in range(len(drafts) + 1)]
    for place, parent in enumerate(parents[: len(drafts)], start=1):
        children[parent].append(place)
    valid = taken = 0
    way = [iter(children[0])]  # from the root to where the matcher stands, what is left of each
    try:
        while way:
            place = next(way[-1], 0)
            if not place:
                way.pop()
                if way:
                    matcher.rollback(1)
                    taken -= 1
            elif not matcher.terminated and matcher.accept(drafts[place - 1]):
                taken += 1
                valid += 1
                way.append(iter(children[place] if here(place) else ()))
    finally:
        if taken and not matcher.failed:
            matcher.rollback(taken)
    return valid
