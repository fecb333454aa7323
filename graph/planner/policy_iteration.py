"""The cycle of the largest ratio by policy iteration (Howard 1960; Cochet-Terrasson et al. 1998).

Each vertex follows one edge out of it, so it ends up in one cycle. Edges that lead to a better
cycle, or along a longer way to the same one, are followed instead, until there are none. It takes
a few rounds where cycles found one at a time, each a little better than the last, take hundreds.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
ROUNDS = 200


@dataclass(frozen=True)
class Arcs:
    """A graph whose cycles all have a positive distance, as arrays with an entry for each edge."""

    size: int
    source: Ints
    target: Ints
    distance: Ints
    duration: Ints


@dataclass(frozen=True)
class _Worth:
    """What each vertex gets by a policy: the rank of its cycle's ratio, and the way there."""

    ratios: list[Fraction]  # ascending; a rank is a place in this list
    rank: Ints
    value: Ints
    best: list[int]  # the edges of a cycle of the last ratio


def policy_cycle(arcs: Arcs) -> list[int] | None:
    """The edges of a cycle of the largest ratio; None if `ROUNDS` rounds do not settle."""
    edges = _on_cycles(arcs)
    if not len(edges):
        return None
    first = np.flatnonzero(np.r_[True, np.diff(arcs.source[edges]) > 0])
    follow = np.full(arcs.size, -1, dtype=np.int64)
    follow[arcs.source[edges][first]] = edges[first]
    for _ in range(ROUNDS):
        worth = _evaluated(arcs, follow)
        if not _improve(arcs, follow, edges, worth):
            return worth.best
    return None


def _on_cycles(arcs: Arcs) -> Ints:
    """The edges by source, without those that lead to a dead end."""
    edges = np.argsort(arcs.source, kind="stable")
    while len(edges):
        leaving = np.bincount(arcs.source[edges], minlength=arcs.size)
        lasting = leaving[arcs.target[edges]] > 0
        if lasting.all():
            break
        edges = edges[lasting]
    return edges


def _improve(arcs: Arcs, follow: Ints, edges: Ints, worth: _Worth) -> bool:
    """Follow better edges in place: towards a better cycle first, else along a longer way."""
    u, v = arcs.source[edges], arcs.target[edges]
    p = np.array([ratio.numerator for ratio in worth.ratios], dtype=np.int64)[worth.rank[v]]
    q = np.array([ratio.denominator for ratio in worth.ratios], dtype=np.int64)[worth.rank[v]]
    gain = arcs.duration[edges] * q - arcs.distance[edges] * p + worth.value[v]
    better = worth.rank[v] > worth.rank[u]
    longer = (worth.rank[v] == worth.rank[u]) & (gain > worth.value[u])
    take, key = (better, worth.rank[v]) if better.any() else (longer, gain)
    chosen = np.flatnonzero(take)
    chosen = chosen[np.lexsort((chosen, -key[chosen], u[chosen]))]
    chosen = chosen[np.diff(u[chosen], prepend=-1) > 0]  # the best of each vertex
    follow[u[chosen]] = edges[chosen]
    return bool(len(chosen))


def _evaluated(arcs: Arcs, follow: Ints) -> _Worth:
    cycles, order = _followed(np.where(follow >= 0, arcs.target[np.maximum(follow, 0)], -1))
    found = [
        Fraction(int(arcs.duration[edges].sum()), int(arcs.distance[edges].sum()))
        for edges in (follow[cycle] for cycle in cycles)
    ]
    ratios = sorted(set(found))
    rank, value = np.zeros(arcs.size, dtype=np.int64), np.zeros(arcs.size, dtype=np.int64)
    roots = {cycle[0]: ratios.index(ratio) for cycle, ratio in zip(cycles, found, strict=True)}
    for vertex in order:
        if vertex in roots:
            rank[vertex] = roots[vertex]
            continue
        edge = follow[vertex]
        after = arcs.target[edge]
        ratio = ratios[rank[after]]
        rank[vertex] = rank[after]
        gain = int(arcs.duration[edge]) * ratio.denominator
        value[vertex] = value[after] + gain - int(arcs.distance[edge]) * ratio.numerator
    best = cycles[found.index(ratios[-1])]
    return _Worth(ratios, rank, value, follow[best].tolist())


def _followed(following: Ints) -> tuple[list[list[int]], list[int]]:
    """The cycles in which all vertices end up; and the vertices, each after the one it follows.

    The first vertex of a cycle follows nothing in that sense.
    """
    onward = following.tolist()
    seen, done = [False] * len(onward), [vertex < 0 for vertex in onward]
    cycles: list[list[int]] = []
    order: list[int] = []
    for start in range(len(onward)):
        walk, here = [], start
        while not (seen[here] or done[here]):
            seen[here] = True
            walk.append(here)
            here = onward[here]
        if not done[here]:
            cycles.append(walk[walk.index(here) :])
            order.append(here)
            walk.remove(here)
            done[here] = True
        order += reversed(walk)
        for vertex in walk:
            done[vertex] = True
    return cycles, order
