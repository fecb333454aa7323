"""What keeps every op within a bounded number of steps of every other.

The requirements order conflicting accesses, and nothing else. So an op whose results nobody
overwrites may run ahead of those who read them, as a host thread does that launches work without
end, or that makes a fresh value for a slow reader: each version lives until it is read, and memory
grows with the lead. A plan is *bounded* if each two ops of a rank are ordered at some distance,
which is to say, of one rank, if its event graph is strongly connected. Where it is not, waits of a
distance that costs nothing are required in addition.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ..plan import Plan, Wait
from .paths import HOP, Weights, reachable, with_empty
from .period import period
from .requirements import Requirement
from .waits import Frame, Synchronization, synchronize

BOUND = 64  # steps that one op may be ahead of another where nothing else limits it
MOST = 1 << 14  # where even such a distance costs time, it is only the time of a launch


def bounded(
    frame: Frame, needed: Sequence[Requirement], found: Synchronization, costs: Mapping[str, float]
) -> tuple[list[Requirement], Synchronization]:
    """The requirements, with those that bound the plan, and the waits that meet them all.

    Their distance is `BOUND`, doubled until the period is that of the plan without them.
    """
    pairs = unbounded(frame, found.paths)
    if not pairs:
        return list(needed), found
    distance = least_bound(found.paths)
    free_us = period(frame.graph, found.orders(frame), costs).us
    while True:
        more = [Requirement(first, then, distance, "BOUND") for first, then in pairs]
        tied = synchronize(frame, [*needed, *more])
        if distance >= MOST or period(frame.graph, tied.orders(frame), costs).us <= free_us:
            return [*needed, *more], tied
        distance *= 2


def least_bound(paths: Weights) -> int:
    """The least of the distances `BOUND`, twice that, … that closes no cycle with these paths."""
    distance, nearest = BOUND, int(paths[reachable(paths)].min()) // HOP
    while distance + nearest < 1:
        distance *= 2
    return distance


def is_bound(wait: Wait) -> bool:
    """Whether a wait does nothing but limit a lead."""
    return bool(wait.protects) and all(each.hazard == "BOUND" for each in wait.protects)


def without_bounds(plan: Plan) -> Plan:
    """The plan as the requirements alone make it."""
    return replace(plan, waits=tuple(wait for wait in plan.waits if not is_bound(wait)))


def unbounded(frame: Frame, paths: Weights) -> list[tuple[str, str]]:
    """(u, v): orders that are missing; a host op v can run ahead of u without end.

    The ops among which all are ordered form *groups*. Each group that no other must follow needs an
    order to each that follows no other; those that are next to each other come first, and an order
    that others imply is left out. A group that follows no other has a host op, since each device op
    follows its launch. Ranks are looked at by themselves: no rank waits for an event of another.
    """
    vertices = frame.graph.vertices
    reach = reachable(with_empty(paths))
    by_rank: dict[int | None, list[str]] = {}
    for name in frame.index:
        by_rank.setdefault(vertices[name].node.rank, []).append(name)
    pairs: list[tuple[str, str]] = []
    for names in by_rank.values():
        ops = [frame.index[name] for name in names]
        own = reach[np.ix_(ops, ops)]
        pairs += _unbounded(names, own, {n for n in names if vertices[n].side == "host"})
    return pairs


def _unbounded(
    names: Sequence[str], reach: npt.NDArray[np.bool_], host: Collection[str]
) -> list[tuple[str, str]]:
    """Those of one rank, of whose ops `reach` says which are ordered."""
    mutual = reach & reach.T
    groups = [members for members in map(np.flatnonzero, mutual) if members.size]
    distinct = list({int(members[0]): members for members in groups}.values())
    onward = [g for g in distinct if not (reach[g[0]] & ~mutual[g[0]]).any()]
    first = [g for g in distinct if not (reach[:, g[0]] & ~mutual[g[0]]).any()]
    ends = [
        (int(last[-1]), next(int(op) for op in early if names[int(op)] in host))
        for last in onward
        for early in first
    ]
    if len(distinct) == 1:
        return []
    pairs: list[tuple[str, str]] = []
    for beside in (True, False):
        for source, target in ends:
            if bool(reach[target, source]) >= beside and not reach[source, target]:
                pairs.append((names[source], names[target]))
                reach |= np.outer(reach[:, source], reach[target])
    return pairs
