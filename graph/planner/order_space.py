"""The orders a host thread may choose from, as one integer for each pair of its units.

For two units u and v of a thread there is exactly one m such that u(i) runs before v(i + m) and
v(i + m - 1) before u(i). Their edges (u → v, m) and (v → u, 1 - m) say so, on the thread and on
a stream that both launch on. An order with offsets is a consistent choice of all m, and
consistency is nothing but positive cycles, so a partial order is a graph like any other, whose
shortest paths bound what is left: its cycle ratio bounds the period from below.

A unit stays whole: the phases of a node run one after another, and so do launches that are to
stay together (`units.py`). So the choice is between units.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, cmp_to_key
from itertools import combinations

import numpy as np
import numpy.typing as npt

from ..plan import Placed
from ..step_graph import StepGraph
from .events import (
    Precedence,
    comm_edges,
    launch_edges,
    listing_programs,
    program_edges,
    with_streams,
)
from .paths import FAR, adjacency, closure
from .period import Delay, Scaled, delays, slowest_cycle
from .requirements import Requirement, gate, launch_order, reference_distance
from .units import Unit, units

Ints = npt.NDArray[np.int64]
REACH = 2  # where nothing bounds how far a node may run ahead: this many steps from the listing


@dataclass(frozen=True)
class Edges:
    """Edges as arrays: each delays the start of `target` by `duration` after that of `source`."""

    pair: Ints  # which decision brings the edge, -1 for none
    source: Ints
    target: Ints
    distance: Ints  # beyond that of the decision
    duration: Ints


@dataclass(frozen=True)
class OrderSpace:
    """All orders of one step graph: what is given, and what each decision adds."""

    graph: StepGraph
    size: int
    given: Edges
    forward: Edges  # at distance m
    backward: Edges  # at distance 1 - m
    units: tuple[Unit, ...]
    pairs: tuple[tuple[Unit, Unit], ...]
    listed: Ints  # the m of the listing
    fixed: npt.NDArray[np.bool_]  # pairs that must stay as listed: they share their stream
    durations: Ints
    scale: int
    bound: Fraction  # on the (scaled) period of every order

    @staticmethod
    def of(
        graph: StepGraph, needed: Sequence[Requirement], costs: Mapping[str, float]
    ) -> OrderSpace:
        """The space of orders within `needed`; `needed` must be orderable without any thread."""
        index = {name: number for number, name in enumerate(graph.vertices)}
        shared = shared_streams(graph)
        parts = units(graph)
        pairs = tuple((u, v) for u, v in combinations(parts, 2) if u.actor == v.actor)
        nearest: dict[tuple[str, str], int] = {}
        for source, target, distance in (gate(graph, r) for r in demands(graph, needed)):
            pair = (source, target)
            nearest[pair] = min(distance, nearest.get(pair, distance))
        waits = [Precedence(u, v, d, "wait") for (u, v), d in nearest.items()]
        given = delays(graph, [*structure(graph), *waits], costs)
        forward = [delays(graph, _ordered(u, v, shared), costs) for u, v in pairs]
        backward = [delays(graph, _ordered(v, u, shared), costs) for u, v in pairs]
        scaled = Scaled.of(index, given)
        return OrderSpace(
            graph=graph,
            size=len(index),
            given=_edges(index, [given], scaled.scale, first=-1),
            forward=_edges(index, forward, scaled.scale),
            backward=_edges(index, backward, scaled.scale),
            units=parts,
            pairs=pairs,
            listed=np.array([listed_distance(graph, u, v) for u, v in pairs], dtype=np.int64),
            fixed=np.array(
                [bool(shared & {*u.streams} and shared & {*v.streams}) for u, v in pairs],
                dtype=np.bool_,
            ),
            durations=np.array(
                [round(Fraction(costs[name]) * scaled.scale) for name in index], dtype=np.int64
            ),
            scale=scaled.scale,
            bound=max(slowest_cycle(scaled).ratio, *_loads(graph, costs, scaled.scale)),
        )

    @cached_property
    def one_way(self) -> frozenset[tuple[int, int]]:
        """Given edges between nodes that lie on no cycle of what is given."""
        vertices = list(self.graph.vertices.values())
        edges = list(zip(self.given.source.tolist(), self.given.target.tolist(), strict=True))
        paths = closure(adjacency(self.size, [(u, v, 1) for u, v in edges]))
        return frozenset(
            (u, v)
            for u, v in edges
            if vertices[u].node is not vertices[v].node and paths[v, u] >= FAR // 2
        )

    def programs(self, chosen: Sequence[int]) -> dict[str, tuple[Placed, ...]]:
        """The host threads' programs, one iteration each, that these decisions describe.

        An iteration starts with the thread's first listed unit (of a stream that threads share,
        if it launches on one), at its declared offset; so the listing describes itself.
        """
        before = {}
        for (u, v), m in zip(self.pairs, chosen, strict=True):
            before[u.name, v.name], before[v.name, u.name] = int(m), 1 - int(m)
        threads: dict[str, list[Unit]] = {}
        for unit in self.units:
            threads.setdefault(unit.actor, []).append(unit)
        shared = shared_streams(self.graph)
        programs: dict[str, tuple[Placed, ...]] = {}
        for thread, own in threads.items():
            anchor = next((unit for unit in own if shared & {*unit.streams}), own[0])
            offset = {
                unit.name: anchor.offset - before.get((anchor.name, unit.name), 0) for unit in own
            }

            def compare(u: Unit, v: Unit, offset: Mapping[str, int] = offset) -> int:
                first = before[u.name, v.name] <= offset[u.name] - offset[v.name]
                return -1 if first else 1

            programs[thread] = tuple(
                (op, offset[unit.name])
                for unit in sorted(own, key=cmp_to_key(compare))
                for op in unit.ops("host")
            )
        return programs


def shared_streams(graph: StepGraph) -> frozenset[str]:
    """Streams on which several host threads launch; the listing orders them."""
    threads: dict[str, set[str]] = {}
    for node in graph.nodes:
        if node.stream:
            threads.setdefault(node.stream, set()).add(node.actor)
    return frozenset(stream for stream, actors in threads.items() if len(actors) > 1)


def structure(graph: StepGraph) -> list[Precedence]:
    """What holds in every order: that within a unit, of launches, of ranks that meet, of streams
    that threads share.

    Together with the requirements it nearly decides whether there is an order at all: two units of
    a thread that it leaves undecided can be decided either way, since whatever is needed of two
    device ops is needed of their launches too; unless one must run between the other's ops.
    """
    events = launch_edges(graph) + comm_edges(graph)
    for unit in units(graph):
        for ops in (unit.ops("host"), *map(unit.ops_on, unit.streams)):
            events += program_edges([(op, 0) for op in ops])
    for program in _shared_programs(graph).values():
        events += program_edges(program)
    return events


def demands(graph: StepGraph, needed: Sequence[Requirement]) -> list[Requirement]:
    """The requirements, and what they and the shared streams ask of the launches."""
    return [*needed, *launch_order(graph, _shared_programs(graph), needed)]


def _shared_programs(graph: StepGraph) -> dict[str, tuple[Placed, ...]]:
    shared = shared_streams(graph)
    actors = with_streams(graph, listing_programs(graph))
    return {stream: actors[stream] for stream in actors if stream in shared}


def listed_distance(graph: StepGraph, u: Unit, v: Unit) -> int:
    """The m of two units in the listing."""
    first, then = graph.vertices[u.ops("host")[0]], graph.vertices[v.ops("host")[0]]
    return reference_distance(first, then)


def _ordered(u: Unit, v: Unit, shared: frozenset[str]) -> list[Precedence]:
    """u before v, at a distance yet to be decided."""
    events = [Precedence(u.ops("host")[-1], v.ops("host")[0], 0, "order")]
    for stream in u.streams:
        if stream in v.streams and stream not in shared:
            events.append(Precedence(u.ops_on(stream)[-1], v.ops_on(stream)[0], 0, "order"))
    return events


def _edges(
    index: Mapping[str, int], groups: Sequence[Sequence[Delay]], scale: int, first: int = 0
) -> Edges:
    whole = {us: round(Fraction(us) * scale) for us in {d.delay_us for g in groups for d in g}}
    rows = [
        (number, index[d.source], index[d.target], d.distance, whole[d.delay_us])
        for number, group in enumerate(groups, start=first)
        for d in group
    ]
    table = np.array(rows, dtype=np.int64).reshape(len(rows), 5).T
    return Edges(table[0], table[1], table[2], table[3], table[4])


def _loads(graph: StepGraph, costs: Mapping[str, float], scale: int) -> list[Fraction]:
    """What each actor has to do in a step, in whatever order."""
    loads: dict[str, int] = {}
    for name, vertex in graph.vertices.items():
        work = round(Fraction(costs[name]) * scale)
        loads[vertex.actor] = loads.get(vertex.actor, 0) + work
    return [Fraction(load) for load in loads.values()]


def start(space: OrderSpace, p: int, q: int) -> Ints | None:
    """Distances and slacks (p · distance - q · duration) of what is given; None if a cycle forbids.

    Both in one array of shape (2, ops, ops), with the empty path from each op to itself.
    """
    paths = np.full((2, space.size, space.size), FAR, dtype=np.int64)
    given = space.given
    slack = p * given.distance - q * given.duration
    np.minimum.at(paths[0], (given.source, given.target), given.distance)
    np.minimum.at(paths[1], (given.source, given.target), slack)
    for k in range(space.size):
        np.minimum(paths, paths[:, :, k, None] + paths[:, None, k, :], out=paths)
        np.maximum(paths, -FAR, out=paths)
    diagonal = np.diagonal(paths, axis1=1, axis2=2)
    if (diagonal[0] < 1).any() or (p > 0 and (diagonal[1] < 0).any()):
        return None
    paths[:, np.arange(space.size), np.arange(space.size)] = 0
    return paths
