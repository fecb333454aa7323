"""What draft windows of any length come to, as windows that are settled tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, chain
from operator import mul
from typing import NamedTuple


class Window(NamedTuple):
    """A draft window that is settled."""

    judged: int  # drafts that were considered: those of the first places, counted from 1
    kept: int  # of them, and within the text
    path: tuple[int, ...] | None = None
    """Of a draft tree the places of those that were kept, in order, as `(1, 2, 5)`; None: of a
    chain, where they are the first `kept`. The first n places are a tree, too: of a row that had
    been offered n drafts those on the path up to n would have been kept."""


PRIOR = 0.8
"""What is believed of the first draft before any was judged; of a later one, that of the one before
it. It counts as much as one draft that was judged."""


def shares(windows: Sequence[Window], most: int) -> list[float]:
    """For each of `most` places of a window: in what share of windows its draft is kept.

    What n drafts come to is the sum of the first n. Raises nothing of its own.
    """
    if any(window.path is not None for window in windows):
        return _of_trees(windows, most)
    return list(accumulate(chances(windows, most), mul))


def chances(windows: Sequence[Window], most: int) -> list[float]:
    """For each of `most` places of a chain: how often a draft is kept if those before it are.

    Drafts far ahead are kept less often than the first, so each place is counted by itself; one
    behind the first that is refused says nothing. Raises nothing of its own.
    """
    found, before = [], PRIOR
    alike = Counter(windows)
    for place in range(1, most + 1):
        reached = kept = 0
        for window, number in alike.items():
            if window.judged >= place and window.kept >= place - 1:
                reached += number
                kept += number * (window.kept >= place)
        before = (kept + before) / (reached + 1)
        found.append(before)
    return found


def _of_trees(windows: Sequence[Window], most: int) -> list[float]:
    """The shares of places of trees, each by the windows that had it.

    A refused node says nothing of those after it, which may be on other ways, so nothing depends on
    the place before; but for what is believed before a place was seen, which is less each time. So
    with none seen it is as much as of a chain.
    """
    kept = Counter(chain.from_iterable(window.path or () for window in windows))
    judged = Counter(window.judged for window in windows)
    having, found, before = len(windows) - judged[0], [], 1.0
    for place in range(1, most + 1):
        before = (kept[place] + PRIOR * before) / (having + 1)
        found.append(before)
        having -= judged[place]
    return found


def tokens_of(kept: Sequence[float]) -> list[float]:
    """Tokens of a window with 1, 2, … drafts, where `kept` is as below. Raises nothing."""
    return [*accumulate(kept, initial=1.0)][1:]


def tokens_per_time(kept: Sequence[float], periods: Sequence[float]) -> list[float]:
    """How many tokens a row gets in a unit of time, with 1, 2, … drafts.

    `kept`: for each place, in what share of windows its draft is kept; `periods`: the time of a
    step with 1, 2, … drafts, in any unit. Raises nothing of its own.
    """
    return [count / period for count, period in zip(tokens_of(kept), periods, strict=False)]


def best_of(rates: Sequence[float]) -> int:
    """The number of drafts with the highest of `rates`; of equals the least. Raises nothing."""
    return max(range(len(rates)), key=rates.__getitem__) + 1
