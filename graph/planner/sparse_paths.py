"""Shortest paths between all vertices of a large graph with few edges.

Floyd–Warshall takes n³ steps whatever the number of edges; a plan of 400 nodes has some three edges
for each op. Here the distances from all sources at once are relaxed along the edges, vertex by
vertex, until nothing changes: edges · n steps for each sweep. With the vertices in a topological
order of the edges that potentials (Johnson 1977) make as short as can be, a shortest path needs
another sweep only where it goes back in that order, which few do.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def sparse_closure(weights: Ints, far: int, unit: int) -> Ints | None:
    """The least weight of a path of at least one edge between any two vertices of (n, n) weights.

    `far` stands for no edge and for no path; `unit` is the weight of a distance of one. None if
    some cycle is negative.
    """
    size = len(weights)
    source, target = np.nonzero(weights < far // 2)
    edges = weights[source, target]
    if not len(edges):
        return weights.copy()
    heights = _potentials(size, source, target, edges)
    if heights is None:
        return None
    tight = (edges + heights[source] - heights[target]) // unit == 0
    by_target = np.argsort(target, kind="stable")
    starts = np.searchsorted(target[by_target], np.arange(size + 1))
    order = [
        (vertex, source[rows], edges[rows, None])
        for vertex in _topological(size, source[tight], target[tight])
        if len(rows := by_target[starts[vertex] : starts[vertex + 1]])
    ]
    paths = np.ascontiguousarray(weights.T)  # a row for each target
    changed = True
    while changed:
        changed = False
        for vertex, before, steps in order:
            reached = (paths[before] + steps).min(axis=0)
            if (reached < paths[vertex]).any():
                np.minimum(paths[vertex], reached, out=paths[vertex])
                changed = True
    paths[paths >= far // 2] = far
    return np.ascontiguousarray(paths.T)


def _potentials(size: int, source: Ints, target: Ints, edges: Ints) -> Ints | None:
    """Heights that make each edge non-negative (Bellman–Ford); None if a cycle is negative."""
    by_target = np.argsort(target, kind="stable")
    source, target, edges = source[by_target], target[by_target], edges[by_target]
    starts = np.flatnonzero(np.r_[True, target[1:] != target[:-1]])
    heads = target[starts]
    heights = np.zeros(size, dtype=np.int64)
    for _ in range(size + 1):
        reached = np.minimum.reduceat(heights[source] + edges, starts)
        if (reached >= heights[heads]).all():
            return heights
        heights[heads] = np.minimum(heights[heads], reached)
    return None


def _topological(size: int, source: Ints, target: Ints) -> Sequence[int]:
    """All vertices, each after its predecessors unless they lie on a cycle."""
    missing = np.bincount(target, minlength=size).tolist()
    onward: list[list[int]] = [[] for _ in range(size)]
    for u, v in zip(source.tolist(), target.tolist(), strict=True):
        onward[u].append(v)
    order = [vertex for vertex in range(size) if not missing[vertex]]
    for vertex in order:  # grows as it goes
        for after in onward[vertex]:
            missing[after] -= 1
            if not missing[after]:
                order.append(after)
    return [*order, *(vertex for vertex in range(size) if missing[vertex] > 0)]
