"""The masks of all structured rows of a batch; a failure stays with its row.

Windows are filled together, per library, where their matchers allow it and it pays. A call that
fails is repeated row by row, so that only the guilty row fails, and that row is closed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from .backend import Matcher, Window, WindowFiller
from .bitmask import Words
from .grammar import MatcherFailure
from .refusal import is_library_error
from .trees import fill_tree

Item = tuple[Matcher, Sequence[int], int]
"""A matcher, the drafts of its request, and the request's row of the mask."""


def fill_batch(
    items: Sequence[Item],
    bitmask: Words,
    trees: Mapping[int, Sequence[int]] = MappingProxyType({}),
) -> tuple[list[int], dict[int, MatcherFailure]]:
    """Fill the windows of all structured rows of a batch; failures stay with their rows.

    Rows that are not named are left as they are: the caller has them all ones.

    Args:
        items: (matcher, drafts, row index) per structured request.
        bitmask: int32 `[R, k + 1, W]`, C-contiguous.
        trees: by row index, the window position before each of its drafts; of the drafts of other
            rows it is the last.

    Returns:
        The valid drafts per item, in order, and the failures by row index. A failed row counts no
        valid draft and is closed at all of its positions: its request must be ended.

    Raises:
        IndexError, ValueError: a row index outside the mask, or twice, or a mask of another
            layout. That is a bug of the caller and not of a request; it is found before anything
            is written.
    """
    _require_rows([row for _, _, row in items], bitmask)
    batch = _Batch(items, bitmask, trees)
    for filler, left in batch.opened():
        batch.fill(filler, left)
    return batch.counts, batch.failures


def _require_rows(rows: Sequence[int], bitmask: Words) -> None:
    if not bitmask.flags.c_contiguous:
        raise ValueError("the mask is not C-contiguous: it would be filled in a copy")
    seen: set[int] = set()
    for row in rows:
        if not 0 <= row < len(bitmask):
            raise IndexError(f"mask row {row} is outside the {len(bitmask)} rows of the batch")
        if row in seen:
            raise ValueError(f"mask row {row} is given to two requests")
        seen.add(row)


class _Batch:
    """What has come of each item so far; an item is known by its index."""

    def __init__(
        self, items: Sequence[Item], bitmask: Words, trees: Mapping[int, Sequence[int]]
    ) -> None:
        self._items = items
        self._bitmask = bitmask
        self._flat: Words = bitmask.reshape(-1, bitmask.shape[-1])
        self._trees = trees
        self.counts = [0] * len(items)
        self.failures: dict[int, MatcherFailure] = {}

    def opened(self) -> list[tuple[WindowFiller, list[tuple[int, Window]]]]:
        """Fill what is filled by itself; per filler, the windows that are left to it."""
        left: dict[int, tuple[WindowFiller, list[tuple[int, Window]]]] = {}
        places = self._bitmask.shape[1]
        for index, (matcher, drafts, row) in enumerate(self._items):
            # Asked by name: to ask whether it is a `BatchedMatcher` takes longer than a mask.
            open_window = getattr(matcher, "open_window", None)
            if open_window is None or len(self._items) == 1 or row in self._trees:
                self._fill_alone(index)
                continue
            try:
                found = open_window(Window(matcher, drafts, row * places, places), self._flat)
            except Exception as error:
                self._fail(index, error)
                continue
            if isinstance(found, int):
                self.counts[index] = found
            else:
                filler, window = found
                left.setdefault(id(filler), (filler, []))[1].append((index, window))
        return [*left.values()]

    def fill(self, filler: WindowFiller, left: Sequence[tuple[int, Window]]) -> None:
        """Fill windows in one call, or one by one where that does not pay or fails."""
        results: list[int | MatcherFailure] | None = None
        if len(left) >= filler.pays_from:
            try:
                results = filler.fill([window for _, window in left], self._flat)
            except BaseException as error:
                if not is_library_error(error):
                    raise
        if results is None:
            for index, _ in left:
                self._fill_alone(index)
            return
        for (index, window), result in zip(left, results, strict=True):
            if isinstance(result, MatcherFailure):
                self._fail(index, result)
            else:
                self.counts[index] = window.settled + result

    def _fill_alone(self, index: int) -> None:
        matcher, drafts, row = self._items[index]
        try:
            if row in self._trees:
                count = fill_tree(matcher, drafts, self._trees[row], self._bitmask[row])
            else:
                count = matcher.fill_window(drafts, self._bitmask[row])
        except BaseException as error:  # the boundary: it concerns this row only
            if not is_library_error(error):
                raise
            self._fail(index, error)
        else:
            self.counts[index] = count

    def _fail(self, index: int, error: BaseException) -> None:
        matcher, _, row = self._items[index]
        self.failures[row] = _as_failure(error)
        self._bitmask[row] = _closed_row(matcher)


def _as_failure(error: BaseException) -> MatcherFailure:
    if isinstance(error, MatcherFailure):
        return error
    failure = MatcherFailure(f"{type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure


def _closed_row(matcher: Matcher) -> Words | np.int32:
    try:
        return matcher.closed_row
    except Exception:
        return np.int32(0)  # nothing allowed at all: still closed
