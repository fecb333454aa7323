"""Which requirements each wait protects: those that nothing would order without it.

Paths without one wait are wanted for every wait. Between waits a path follows free edges, whose
paths are known, so it is enough to join waits to each other: a matrix with a row for where each
wait ends and a column for where each begins. The waits are left out by halves: what is joined for
one half serves all waits of the other, so that w waits take w · log w additions instead of w².
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from .paths import FAR, HOP, Weights, weight, with_empty

Edge = tuple[int, int, int]  # source, target, distance


def broken_without(
    free: Weights, paths: Weights, waits: Sequence[Edge], gates: Sequence[Edge]
) -> list[list[int]]:
    """For each wait, the gates by number that no path orders once it is removed.

    `free` are the paths of the free edges, `paths` those of all waits too, which order every gate.
    """
    if not waits or not gates:
        return [[] for _ in waits]
    a, b, most = np.array(gates, dtype=np.int64).T
    s, t, distance = np.array(waits, dtype=np.int64).T
    limit = (most + 1) * HOP
    open_gates = np.flatnonzero(free[a, b] >= limit)
    a, b, limit = a[open_gates], b[open_gates], limit[open_gates]
    reach, steps = with_empty(free), distance * HOP + 1
    whole = with_empty(paths)
    to, onward = reach[a][:, s] + steps, reach[t][:, b].T  # a row for each gate
    direct = to + onward
    found: list[list[int]] = [[] for _ in waits]
    for wait, joined in _without_each(reach[t][:, s], waits, range(len(waits))):
        through = whole[a, s[wait]] + steps[wait] + whole[t[wait], b] < limit
        direct_wait, direct[:, wait] = direct[:, wait].copy(), limit
        suspects = np.flatnonzero(through)
        suspects = suspects[(direct[suspects] >= limit[suspects, None]).all(axis=1)]
        direct[:, wait] = direct_wait
        others = np.arange(len(waits)) != wait
        between = joined[others][:, others] + steps[others]
        for gate in suspects.tolist():
            last = (to[gate, others, None] + between).min(axis=0, initial=FAR)
            if (last + onward[gate, others] >= limit[gate]).all():
                found[wait].append(int(open_gates[gate]))
    return found


def _without_each(
    joined: Weights, waits: Sequence[Edge], left: Sequence[int]
) -> Iterator[tuple[int, Weights]]:
    """Each wait of `left` with the paths between waits over all others of them."""
    if len(left) == 1:
        yield left[0], joined
        return
    middle = len(left) // 2
    for part, others in ((left[:middle], left[middle:]), (left[middle:], left[:middle])):
        paths = joined.copy()
        for wait in others:
            over = paths[:, wait, None] + (paths[wait] + weight(waits[wait][2]))
            np.minimum(paths, over, out=paths)
        yield from _without_each(paths, waits, part)
