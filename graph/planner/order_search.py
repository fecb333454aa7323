"""Branch and bound over the orders of the host threads.

One decision at a time (`order_space.py`); after each, the shortest paths say what it
forces on the others, and whether the order it leads to can still be good enough. Effort is
counted in nodes of the search tree and in cells of matrices, not in seconds, so the result is the
same on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .budget import CALL, Budget
from .order_space import REACH, Edges, OrderSpace, start
from .paths import FAR

Ints = npt.NDArray[np.int64]
_BOUNDLESS = 1 << 30


class Stop(Exception):
    """Raised by a visitor that has seen enough."""


@dataclass
class Search:
    """Visits every order whose period is at most p/q (below it, if `strict`).

    `visit` gets the paths and the decisions of each order found. `limit` is the longest latency
    allowed (`latency`), which `visit` may lower. With `canonical` the orders come nearest to the
    listing first: by the first decision in which they differ from it.
    """

    space: OrderSpace
    p: int
    q: int
    budget: Budget
    visit: Callable[[Ints, Ints], None]
    strict: bool = False
    limit: int | None = None
    canonical: bool = False

    def run(self) -> None:
        """Visit all orders, in a fixed sequence, as far as the budget goes."""
        root = self._root()
        if root is not None:
            self._branch(*root)

    def dive(self) -> Ints | None:
        """One order, taking the nearest to the listing at each decision, without a second try."""
        state = self._root()
        while state is not None:
            forced = self._propagate(*state)
            if forced is None:
                return None
            paths, chosen, decided, low, high = forced
            if decided.all():
                return chosen
            pair = self._next(low, high, decided)
            chosen[pair] = min(max(chosen[pair], low[pair]), high[pair])
            decided[pair] = True
            joined = self.joined(paths, pair, int(chosen[pair]))
            state = None if joined is None else (joined, chosen, decided)
        return None

    def _root(self) -> tuple[Ints, Ints, npt.NDArray[np.bool_]] | None:
        paths = start(self.space, self.p, self.q)
        chosen = self.space.listed.copy()
        decided = np.zeros(len(chosen), dtype=np.bool_)
        for pair in np.flatnonzero(self.space.fixed).tolist():
            paths = None if paths is None else self.joined(paths, pair, int(chosen[pair]))
            decided[pair] = True
        return None if paths is None else (paths, chosen, decided)

    def _branch(self, paths: Ints, chosen: Ints, decided: npt.NDArray[np.bool_]) -> None:
        self.budget.take()
        forced = self._propagate(paths, chosen, decided)
        if forced is None:
            return
        paths, chosen, decided, low, high = forced
        if self.limit is not None and latency(self.space, paths, self.q) > self.limit:
            return
        if decided.all():
            self.visit(paths, chosen)
            return
        pair = self._next(low, high, decided)
        listed = int(self.space.listed[pair])
        after = decided.copy()
        after[pair] = True
        values = range(int(low[pair]), int(high[pair]) + 1)
        for m in sorted(values, key=lambda m: (abs(m - listed), m)):
            joined = self.joined(paths, pair, m)
            if joined is not None:
                then = chosen.copy()
                then[pair] = m
                self._branch(joined, then, after)

    def _next(self, low: Ints, high: Ints, decided: npt.NDArray[np.bool_]) -> int:
        """The pair to decide: the one with the fewest ways left, or the first, if canonical."""
        if self.canonical:
            return int(np.flatnonzero(~decided)[0])
        return int(np.where(decided, _BOUNDLESS, high - low).argmin())

    def _propagate(
        self, paths: Ints, chosen: Ints, decided: npt.NDArray[np.bool_]
    ) -> tuple[Ints, Ints, npt.NDArray[np.bool_], Ints, Ints] | None:
        """Decide all pairs that have one way left; None if one has none."""
        chosen, decided = chosen.copy(), decided.copy()
        while True:
            self.budget.compute(CALL + 16 * len(chosen))
            low, high = self._ranges(paths)
            if ((low > high) & ~decided).any():
                return None
            forced = np.flatnonzero((low == high) & ~decided)
            if not forced.size:
                return paths, chosen, decided, low, high
            for pair in forced.tolist():
                joined = self.joined(paths, pair, int(low[pair]))
                if joined is None:
                    return None
                paths, chosen[pair], decided[pair] = joined, low[pair], True

    def _ranges(self, paths: Ints) -> tuple[Ints, Ints]:
        """The least and the greatest m of each pair that close no forbidden cycle."""
        listed = self.space.listed
        low = self._least(paths, self.space.forward)
        high = 1 - self._least(paths, self.space.backward)
        low = np.where(low <= -_BOUNDLESS, np.minimum(listed, high) - REACH, low)
        high = np.where(high >= _BOUNDLESS, np.maximum(listed, low) + REACH, high)
        return low, high

    def _least(self, paths: Ints, edges: Edges) -> Ints:
        """For each pair, the least distance that its edges of one direction can have."""
        back = paths[:, edges.target, edges.source]
        least = np.where(back[0] >= FAR // 2, -_BOUNDLESS - 1, 1 - back[0] - edges.distance)
        if self.p > 0:
            lacking = edges.duration * self.q - back[1] + self.strict
            slow = -(-lacking // self.p) - edges.distance
            least = np.maximum(least, np.where(back[1] >= FAR // 2, -_BOUNDLESS - 1, slow))
            if self.limit is not None:
                late = edges.duration * self.q - self.limit - self._around(paths, edges)
                least = np.maximum(least, -(-late // self.p) - edges.distance)
        result = np.full(len(self.space.pairs), -_BOUNDLESS - 1, dtype=np.int64)
        np.maximum.at(result, edges.pair, least)
        return result

    def _around(self, paths: Ints, edges: Edges) -> Ints:
        """The longest way to each edge's source and on from its target, negated."""
        to_source = paths[1].min(axis=0)
        onward = (paths[1] - self.q * self.space.durations[None, :]).min(axis=1)
        around: Ints = to_source[edges.source] + onward[edges.target]
        return around

    def joined(self, paths: Ints, pair: int, m: int) -> Ints | None:
        """The paths once a pair is decided, or None if that closes a forbidden cycle."""
        for edges, distance in ((self.space.forward, m), (self.space.backward, 1 - m)):
            for row in self._rows(edges, pair):
                joined = self._add(paths, edges, row, distance)
                if joined is None:
                    return None
                paths = joined
        return paths

    def _rows(self, edges: Edges, pair: int) -> Sequence[int]:
        first, last = np.searchsorted(edges.pair, (pair, pair + 1))
        return range(int(first), int(last))

    def _add(self, paths: Ints, edges: Edges, row: int, distance: int) -> Ints | None:
        source, target = int(edges.source[row]), int(edges.target[row])
        distance += int(edges.distance[row])
        slack = self.p * distance - self.q * int(edges.duration[row])
        if distance + int(paths[0, target, source]) < 1:
            return None
        if self.p > 0 and slack + int(paths[1, target, source]) < self.strict:
            return None
        if (paths[:, source, target] <= (distance, slack)).all():
            return paths  # implied already
        self.budget.compute(CALL + paths.size)
        edge = np.array([distance, slack], dtype=np.int64)[:, None, None]
        through = paths[:, :, source, None] + edge + paths[:, None, target, :]
        result: Ints = np.minimum(paths, through)
        return result


def latency(space: OrderSpace, paths: Ints, q: int) -> int:
    """The longest path between two ops of one step, to the end of the second (scaled, times q)."""
    slack = paths[1]
    ends = np.where(slack >= FAR // 2, -1, q * space.durations[None, :] - slack)
    return int(ends.max())
