"""Shortest paths in the periodic event graph, as dense min-plus arithmetic.

u(i) is ordered before v(i + d) exactly if there is a path u ⇝ v of total distance ≤ d. With some
twenty ops a dense Floyd–Warshall in numpy takes a fraction of a millisecond, and takes whole
batches of candidate graphs at once (leading axes).

A weight is `distance · HOP + 1`, so the low digits count the hops: of equally near paths
the one with the fewest hops is the shortest, which makes witnesses short and deterministic.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce

import numpy as np
import numpy.typing as npt

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
    paths = weights.copy()
    for k in range(weights.shape[-1]):
        through = paths[..., :, k, None] + paths[..., None, k, :]
        np.minimum(paths, through, out=paths)
        np.maximum(paths, -FAR, out=paths)  # a negative cycle doubles at each turn
    return paths


def with_edge(paths: Weights, source: int, target: int, distance: int) -> Weights:
    """The closure once an edge is added, from that without: n² where `closure` takes n³.

    Exact where no cycle of the result has distance ≤ 0: a shortest path takes the edge once.
    """
    to, onward = paths[:, source].copy(), paths[target].copy()
    to[source] = onward[target] = 0
    joined: Weights = np.minimum(paths, to[:, None] + weight(distance) + onward[None, :])
    return joined


def without_each(
    paths: Weights, edges: Sequence[tuple[int, int, int]]
) -> Iterator[tuple[tuple[int, int, int], Weights]]:
    """Each edge with the closure over `paths` and all edges but it.

    By halves: what is added for one half serves all edges of the other, so n edges take
    n log n additions.
    """
    if len(edges) == 1:
        yield edges[0], paths
    elif edges:
        middle = len(edges) // 2
        for part, others in ((edges[:middle], edges[middle:]), (edges[middle:], edges[:middle])):
            yield from without_each(reduce(lambda p, e: with_edge(p, *e), others, paths), part)


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


def shortest(weights: Weights, paths: Weights, source: int, target: int) -> list[int]:
    """The vertices of the shortest path (of at least one edge), ties by vertex number."""
    reach = with_empty(paths)
    found, here, left = [source], source, paths[source, target]
    while True:
        onward = weights[here] + reach[:, target]
        here = int(np.flatnonzero(onward == left)[0])
        left = left - weights[found[-1], here]
        found.append(here)
        if here == target and left == 0:
            return found


def tightest_cycle(weights: Weights) -> list[int] | None:
    """A cycle of total distance ≤ 0 with the fewest edges, or None if every cycle is positive.

    By number of edges: walks of one more edge at a time, until one closes. The first that
    closes repeats no vertex, since a part of it would have closed before.
    """
    size = weights.shape[0]
    walks = weights
    steps: list[npt.NDArray[np.intp]] = []
    for _ in range(size):
        closing = np.flatnonzero(np.diagonal(walks) < HOP)
        if closing.size:
            return _walk(int(closing[0]), steps)
        longer = walks[:, :, None] + weights[None, :, :]
        steps.append(longer.argmin(axis=1))
        walks = np.minimum(longer.min(axis=1), FAR)
    return None


def _walk(start: int, steps: list[npt.NDArray[np.intp]]) -> list[int]:
    found, here = [], start
    for before in reversed(steps):
        here = int(before[start, here])
        found.append(here)
    return [start, *reversed(found)]
