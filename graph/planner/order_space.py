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
from .period import Scaled, delays, largest_ratio
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
    """All orders of one step graph: what is given, and what each decision adds.

    Units and ops are numbers: places in `units`, and in the reference order.
    """

    graph: StepGraph
    size: int
    given: Edges
    forward: Edges  # at distance m
    backward: Edges  # at distance 1 - m
    units: tuple[Unit, ...]
    pairs: Ints  # [pairs, 2]: two units of a thread, as listed
    pair_of: Ints  # [units, units]: the pair of two units, in either order; -1 for none
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
        nearest: dict[tuple[str, str], int] = {}
        for source, target, distance in (gate(graph, r) for r in demands(graph, needed)):
            pair = (source, target)
            nearest[pair] = min(distance, nearest.get(pair, distance))
        waits = [Precedence(u, v, d, "wait") for (u, v), d in nearest.items()]
        scaled = Scaled.of(index, delays(graph, [*structure(graph), *waits], costs))
        durations = np.array(
            [round(Fraction(costs[name]) * scaled.scale) for name in index], dtype=np.int64
        )
        parts, shared = units(graph), shared_streams(graph)
        pairs, pair_of = _paired(parts)
        lines = _lines(graph, parts, costs)
        first = [graph.vertices[unit.ops("host")[0]] for unit in parts]
        listed = [reference_distance(first[u], first[v]) for u, v in pairs.tolist()]
        on_shared = np.array(
            [not shared.isdisjoint(unit.streams) for unit in parts], dtype=np.bool_
        )
        none = np.full(len(scaled.source), -1, dtype=np.int64)
        return OrderSpace(
            graph=graph,
            size=len(index),
            given=Edges(none, scaled.source, scaled.target, scaled.distance, scaled.duration),
            forward=_ordered(lines, pair_of, durations),
            backward=_ordered(lines, pair_of, durations, turned=True),
            units=parts,
            pairs=pairs,
            pair_of=pair_of,
            listed=np.array(listed, dtype=np.int64),
            fixed=on_shared[pairs[:, 0]] & on_shared[pairs[:, 1]],
            durations=durations,
            scale=scaled.scale,
            bound=max(largest_ratio(scaled), *_loads(graph, costs, scaled.scale)),
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
        m = np.zeros((len(self.units), len(self.units)), dtype=np.int64)
        m[self.pairs[:, 0], self.pairs[:, 1]] = chosen
        m[self.pairs[:, 1], self.pairs[:, 0]] = 1 - np.asarray(chosen, dtype=np.int64)
        before = m.tolist()
        threads: dict[str, list[int]] = {}
        for number, unit in enumerate(self.units):
            threads.setdefault(unit.actor, []).append(number)
        shared = shared_streams(self.graph)
        programs: dict[str, tuple[Placed, ...]] = {}
        for thread, own in threads.items():
            anchors = (unit for unit in own if not shared.isdisjoint(self.units[unit].streams))
            anchor = next(anchors, own[0])
            start = self.units[anchor].offset
            offset = {unit: start - before[anchor][unit] for unit in own}

            def compare(u: int, v: int, offset: Mapping[int, int] = offset) -> int:
                return -1 if before[u][v] <= offset[u] - offset[v] else 1

            programs[thread] = tuple(
                (op, offset[unit])
                for unit in sorted(own, key=cmp_to_key(compare))
                for op in self.units[unit].ops("host")
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


def _paired(parts: Sequence[Unit]) -> tuple[Ints, Ints]:
    """All pairs of units of one thread, [pairs, 2], as listed; their numbers, [units, units]."""
    number = {actor: place for place, actor in enumerate({unit.actor: None for unit in parts})}
    threads = np.array([number[unit.actor] for unit in parts], dtype=np.int64)
    u, v = np.nonzero(np.triu(threads[:, None] == threads, 1))
    found = np.full((len(parts), len(parts)), -1, dtype=np.int64)
    found[u, v] = found[v, u] = np.arange(len(u))
    return np.stack([u, v], axis=1).astype(np.int64), found


@dataclass(frozen=True)
class _Line:
    """Units that run ops in turn, on a thread or on a stream, and what follows from that."""

    units: Ints
    first: Ints  # op of each unit there
    place: Ints  # of the line among those of each unit
    causes: tuple[Ints, ...]  # ops of each unit that delay whoever comes next there; -1 for none


def _lines(graph: StepGraph, parts: Sequence[Unit], costs: Mapping[str, float]) -> list[_Line]:
    """The threads, and each stream on which a single thread launches."""
    index = {name: number for number, name in enumerate(graph.vertices)}
    shared = shared_streams(graph)
    rows: dict[tuple[str, str], list[tuple[int, ...]]] = {}
    for number, unit in enumerate(parts):
        own = [(("host", unit.actor), unit.ops("host"))]
        own += [(("device", s), unit.ops_on(s)) for s in unit.streams if s not in shared]
        for place, (line, ops) in enumerate(own):
            onward = [Precedence(ops[-1], ops[-1], 0, "order")]
            causes = [index[delay.source] for delay in delays(graph, onward, costs)]
            row = (number, index[ops[0]], place, *causes, *[-1] * (2 - len(causes)))
            rows.setdefault(line, []).append(row)
    found = [np.array(each, dtype=np.int64).T for each in rows.values() if len(each) > 1]
    return [_Line(each[0], each[1], each[2], (each[3], each[4])) for each in found]


def _ordered(
    lines: Sequence[_Line], pair_of: Ints, durations: Ints, *, turned: bool = False
) -> Edges:
    """The first unit of each pair before the second, or `turned`, at distances yet to be chosen."""
    columns = [np.zeros((5, 0), dtype=np.int64)]
    for line in lines:
        u, v = np.triu_indices(len(line.units), 1)
        pair = pair_of[line.units[u], line.units[v]]
        if turned:
            u, v = v, u
        for rank, causes in enumerate(line.causes):
            rows = np.stack([pair, line.place[u], pair * 0 + rank, causes[u], line.first[v]])
            columns.append(rows[:, rows[3] >= 0])
    rows = np.concatenate(columns, axis=1)
    pair, _, _, source, target = rows[:, np.lexsort(rows[2::-1])]
    return Edges(pair, source, target, np.zeros_like(pair), durations[source])


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
