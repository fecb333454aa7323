"""Shortest paths in the periodic event graph, as dense min-plus arithmetic.

u(i) is ordered before v(i + d) exactly if there is a path u ⇝ v of total distance ≤ d. With some
twenty ops a dense Floyd–Warshall in numpy takes a fraction of a millisecond, and takes whole
batches of candidate graphs at once (leading axes). Large graphs go vertex by vertex
(`sparse_paths.py`).

A weight is `distance · HOP + 1`, so the low digits count the hops: of equally near paths
the one with the fewest hops is the shortest, which makes witnesses short and deterministic.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from .sparse_paths import dense_closure, sparse_closure

DENSE = 160  # vertices up to which n³ steps at once are faster than a step for each edge
HOP = 1 << 16  # more than the hops of any simple path
FAR = 1 << 60  # no path
Weights = npt.NDArray[np.int64]


def weight(distance: int) -> int:
    """One edge of this distance."""
    return distance * HOP + 1


def unreached(size: int) -> Weights:
    """The graph without edges."""
    return np.full((size, size), FAR, dtype=np.int64)


def adjacency(size: int, edges: Iterable[tuple[int, int, int]]) -> Weights:
    """The nearest edge between any two of `size` vertices, from (source, target, distance)."""
    weights = unreached(size)
    for source, target, distance in edges:
        weights[source, target] = min(weights[source, target], weight(distance))
    return weights


def closure(weights: Weights) -> Weights:
    """The weight of the shortest path of at least one edge, between any two vertices.

    The diagonal holds the shortest cycle through each vertex. Where one is of distance ≤ 0 the
    rest is meaningless; ask `ordered` first.
    """
    if weights.shape[-1] > DENSE:
        if weights.ndim > 2:
            return np.stack([closure(one) for one in weights])
        found = sparse_closure(weights, FAR)
        return np.full_like(weights, -FAR) if found is None else found
    return dense_closure(weights, FAR)


def closure_cells(weights: Weights) -> int:
    """About how many cells the closure of a graph computes."""
    size = int(weights.shape[-1])
    edges = int((weights < FAR // 2).sum()) + 2 * size
    return size**3 if size <= DENSE else 16 * edges * size


def ordered(paths: Weights) -> npt.NDArray[np.bool_]:
    """Whether every cycle is of positive distance (for each graph of a batch)."""
    diagonal = np.diagonal(paths, axis1=-2, axis2=-1)
    return np.asarray((diagonal >= HOP).all(axis=-1), dtype=np.bool_)


def with_empty(paths: Weights) -> Weights:
    """The same with the path of no edge from each vertex to itself."""
    result = paths.copy()
    index = np.arange(paths.shape[-1])
    result[..., index, index] = 0
    return result


def reachable(paths: Weights) -> npt.NDArray[np.bool_]:
    """Where there is a path at all."""
    return paths < FAR // 2


def within(paths: Weights, source: int, target: int, distance: int) -> bool:
    """Whether a path of at most this distance exists."""
    return bool(paths[source, target] < (distance + 1) * HOP)


class ShortestPaths:
    """The vertices of shortest paths, ties by vertex number."""

    def __init__(self, weights: Weights, paths: Weights) -> None:
        """`paths` is the closure of `weights`."""
        self._paths = paths
        source, target = np.nonzero(reachable(weights))
        self._after: dict[int, list[tuple[int, int]]] = {}  # a vertex -> (next vertex, weight)
        edges = zip(source.tolist(), target.tolist(), weights[source, target].tolist(), strict=True)
        for u, v, step in edges:
            self._after.setdefault(u, []).append((v, step))

    def between(self, source: int, target: int) -> list[int]:
        """That of at least one edge from `source` to `target`, which there must be."""
        onward = self._paths[:, target].tolist()
        left, onward[target] = onward[source], 0
        found = [source]
        while True:
            here, step = next((v, w) for v, w in self._after[found[-1]] if w + onward[v] == left)
            left -= step
            found.append(here)
            if here == target and left == 0:
                return found


def tightest_cycle(weights: Weights) -> list[int] | None:
    """A cycle of total distance ≤ 0 with the fewest edges, or None if every cycle is positive.

    By number of edges: walks of one more edge at a time, until one closes. The first that
    closes repeats no vertex, since a part of it would have closed before.
    """
    size = weights.shape[0]
    before = [np.flatnonzero(weights[:, vertex] < FAR // 2) for vertex in range(size)]
    walks = weights
    for edges in range(size):
        closing = np.flatnonzero(np.diagonal(walks) < HOP)
        if closing.size:
            return _walk(weights, before, int(closing[0]), edges)
        walks, _ = _longer(walks, weights, before)
    return None


def _longer(
    walks: Weights, weights: Weights, before: Sequence[npt.NDArray[np.intp]]
) -> tuple[Weights, npt.NDArray[np.intp]]:
    """The nearest walks of one more edge, and the last vertex but one of each."""
    longer = np.full_like(walks, FAR)
    through = np.zeros(walks.shape, dtype=np.intp)
    for vertex, sources in enumerate(before):
        if len(sources):
            reached = walks[:, sources] + weights[sources, vertex]
            best = reached.argmin(axis=1)
            longer[:, vertex] = np.minimum(reached[np.arange(len(walks)), best], FAR)
            through[:, vertex] = sources[best]
    return longer, through


def _walk(
    weights: Weights, before: Sequence[npt.NDArray[np.intp]], start: int, edges: int
) -> list[int]:
    """The nearest walk of so many edges more than one from a vertex back to itself."""
    walks, steps = weights[start : start + 1], []
    for _ in range(edges):
        walks, through = _longer(walks, weights, before)
        steps.append(through[0])
    found, here = [], start
    for through_row in reversed(steps):
        here = int(through_row[here])
        found.append(here)
    return [start, *reversed(found)]
