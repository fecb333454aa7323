"""Shortest paths between all vertices of a large graph with few edges.

Floyd–Warshall takes n³ steps whatever the number of edges; a plan of 400 nodes has some three edges
for each op. Here vertices with few neighbours are taken out one by one: a way through one becomes
an edge between its neighbours. What is left in the end is dense, and Floyd–Warshall's. Then they
come back, the last one first: a path from a vertex begins with an edge to a neighbour that it had
when it was taken out, and everything about those is known by then (Planken, de Weerdt and van der
Krogt 2012, "Computing all-pairs shortest paths by leveraging low treewidth").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Neighbours = dict[int, int]  # and the weights of the edges to them, or from them
_WAY = 150  # cells that numpy computes while Python joins two edges


def sparse_closure(weights: Ints, far: int) -> Ints | None:
    """The least weight of a path of at least one edge between any two vertices of (n, n) weights.

    `far` stands for no edge and for no path. None if some cycle is negative.
    """
    source, target = np.nonzero(weights < far // 2)
    edges = weights[source, target]
    parts = _Parts.of(len(weights), source.tolist(), target.tolist(), edges.tolist())
    if not parts.take_out():
        return None
    core = dense_closure(parts.core(far), far)
    if (np.diagonal(core) < 0).any():
        return None
    paths = parts.brought_back(core, far)
    cycles = np.full(len(weights), far, dtype=np.int64)
    np.minimum.at(cycles, source, edges + paths[target, source])
    np.fill_diagonal(paths, cycles)
    paths[paths >= far // 2] = far
    return paths


def dense_closure(weights: Ints, far: int) -> Ints:
    """The same for any number of graphs, (…, n, n), by Floyd and Warshall.

    Where some cycle is negative, the diagonal has a number below 0, and the rest no meaning.
    """
    paths = weights.copy()
    for k in range(weights.shape[-1]):
        through = paths[..., :, k, None] + paths[..., None, k, :]
        np.minimum(paths, through, out=paths)
        np.maximum(paths, -far, out=paths)  # a negative cycle doubles at each turn
    return paths


@dataclass(frozen=True)
class _Parts:
    """The vertices that are still there, and those that were taken out."""

    onward: list[Neighbours]
    before: list[Neighbours]
    left: dict[int, None]
    out: list[int]

    @staticmethod
    def of(size: int, source: Sequence[int], target: Sequence[int], edges: Sequence[int]) -> _Parts:
        onward: list[Neighbours] = [{} for _ in range(size)]
        before: list[Neighbours] = [{} for _ in range(size)]
        for u, v, weight in zip(source, target, edges, strict=True):
            onward[u][v] = before[v][u] = weight
        return _Parts(onward, before, dict.fromkeys(range(size)), [])

    def take_out(self) -> bool:
        """All vertices for which that is less work than Floyd–Warshall; False if a cycle is
        negative."""
        onward, before, left = self.onward, self.before, self.left
        for vertex, ways in enumerate(onward):
            if before[vertex].pop(vertex, 0) < 0:
                return False
            ways.pop(vertex, None)
        queue = [(len(onward[v]) * len(before[v]), v) for v in left]
        heapify(queue)
        while queue:
            ways_through, vertex = heappop(queue)
            if vertex not in left or ways_through != len(onward[vertex]) * len(before[vertex]):
                continue
            if ways_through * _WAY > len(left) ** 2:
                break
            del left[vertex]
            self.out.append(vertex)
            if not self._join(vertex):
                return False
            for other in {**onward[vertex], **before[vertex]}:
                heappush(queue, (len(onward[other]) * len(before[other]), other))
        return True

    def _join(self, vertex: int) -> bool:
        """Edges between the neighbours of a vertex, which they lose; False for a negative cycle."""
        after, into = self.onward[vertex], self.before[vertex]
        for v in after:
            del self.before[v][vertex]
        for u, first in into.items():
            ways = self.onward[u]
            del ways[vertex]
            for v, then in after.items():
                total = first + then
                if u == v:
                    if total < 0:
                        return False
                elif v not in ways or total < ways[v]:
                    ways[v] = self.before[v][u] = total
        return True

    def core(self, far: int) -> Ints:
        """The graph that is left, with the empty path from each vertex to itself."""
        place = {vertex: number for number, vertex in enumerate(self.left)}
        core = np.full((len(place), len(place)), far, dtype=np.int64)
        np.fill_diagonal(core, 0)
        for u, number in place.items():
            for v, weight in self.onward[u].items():
                core[number, place[v]] = weight
        return core

    def brought_back(self, core: Ints, far: int) -> Ints:
        """The paths between all vertices, from those of the core; empty from each to itself."""
        size, order = len(self.onward), [*self.left, *reversed(self.out)]
        place = [0] * size
        for number, vertex in enumerate(order):
            place[vertex] = number
        paths = np.full((size, size), far, dtype=np.int64)
        paths[: len(core), : len(core)] = core
        np.fill_diagonal(paths, 0)
        turned = paths.T.copy()  # so that paths to a vertex lie side by side, too
        for here, vertex in enumerate(order[len(core) :], start=len(core)):
            for lines, columns, edges in (
                (paths, turned, self.onward[vertex]),
                (turned, paths, self.before[vertex]),
            ):
                if edges:
                    others = lines[[place[other] for other in edges], :here]
                    others += np.array([*edges.values()], dtype=np.int64)[:, None]
                    lines[here, :here] = columns[:here, here] = others.min(axis=0)
        return paths[np.ix_(place, place)]
