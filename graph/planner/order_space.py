"""The orders a host thread may choose from, as one integer for each pair of its nodes.

For two nodes u and v of a thread there is exactly one m such that u(i) runs before v(i + m) and
v(i + m - 1) before u(i). Their edges (u → v, m) and (v → u, 1 - m) say so, on the thread and on
a stream that both launch on. An order with offsets is a consistent choice of all m, and
consistency is nothing but positive cycles, so a partial order is a graph like any other, whose
shortest paths bound what is left: its cycle ratio bounds the period from below.

A node stays whole: its host phases run one after another, and so do its device phases.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, cmp_to_key
from itertools import combinations

import numpy as np
import numpy.typing as npt

from ..node import Node
from ..plan import Placed
from ..step_graph import StepGraph
from .events import Event, launch_edges, listing_programs, program_edges, with_streams
from .paths import FAR, adjacency, closure
from .period import Delay, Scaled, delays, slowest_cycle
from .requirements import Requirement, gate, launch_order, reference_distance

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
    pairs: tuple[tuple[Node, Node], ...]
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
        pairs = tuple((u, v) for u, v in combinations(graph.nodes, 2) if u.actor == v.actor)
        nearest: dict[tuple[str, str], int] = {}
        for source, target, distance in (gate(graph, r) for r in demands(graph, needed)):
            pair = (source, target)
            nearest[pair] = min(distance, nearest.get(pair, distance))
        waits = [Event(u, v, d, "wait") for (u, v), d in nearest.items()]
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
            pairs=pairs,
            listed=np.array([listed_distance(graph, u, v) for u, v in pairs], dtype=np.int64),
            fixed=np.array(
                [u.stream in shared and v.stream in shared for u, v in pairs], dtype=np.bool_
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

        An iteration starts with the thread's first listed node (of a stream that threads share,
        if it launches on one), at its declared offset; so the listing describes itself.
        """
        before = {}
        for (u, v), m in zip(self.pairs, chosen, strict=True):
            before[u.name, v.name], before[v.name, u.name] = int(m), 1 - int(m)
        threads: dict[str, list[Node]] = {}
        for node in self.graph.nodes:
            threads.setdefault(node.actor, []).append(node)
        shared = shared_streams(self.graph)
        programs: dict[str, tuple[Placed, ...]] = {}
        for thread, nodes in threads.items():
            anchor = next((node for node in nodes if node.stream in shared), nodes[0])
            offset = {
                node.name: anchor.offset - before.get((anchor.name, node.name), 0) for node in nodes
            }

            def compare(u: Node, v: Node, offset: Mapping[str, int] = offset) -> int:
                first = before[u.name, v.name] <= offset[u.name] - offset[v.name]
                return -1 if first else 1

            programs[thread] = tuple(
                (op, offset[node.name])
                for node in sorted(nodes, key=cmp_to_key(compare))
                for op in node.op_names("host")
            )
        return programs


def shared_streams(graph: StepGraph) -> frozenset[str]:
    """Streams on which several host threads launch; the listing orders them."""
    threads: dict[str, set[str]] = {}
    for node in graph.nodes:
        if node.stream:
            threads.setdefault(node.stream, set()).add(node.actor)
    return frozenset(stream for stream, actors in threads.items() if len(actors) > 1)


def structure(graph: StepGraph) -> list[Event]:
    """What holds in every order: phases of a node, launches, and streams that threads share.

    Together with the requirements it nearly decides whether there is an order at all: two nodes of
    a thread that it leaves undecided can be decided either way, since whatever is needed of two
    device ops is needed of their launches too; unless one must run between the other's phases.
    """
    events = launch_edges(graph)
    for node in graph.nodes:
        for ops in (node.op_names("host"), node.op_names("device")):
            events += program_edges([(op, 0) for op in ops]) if ops else []
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


def listed_distance(graph: StepGraph, u: Node, v: Node) -> int:
    """The m of two nodes in the listing."""
    first, then = graph.vertices[u.op_names("host")[0]], graph.vertices[v.op_names("host")[0]]
    return reference_distance(first, then)


def _ordered(u: Node, v: Node, shared: frozenset[str]) -> list[Event]:
    """u before v, at a distance yet to be decided."""
    events = [Event(u.op_names("host")[-1], v.op_names("host")[0], 0, "order")]
    if u.stream and u.stream == v.stream and u.stream not in shared:
        events.append(Event(u.op_names("device")[-1], v.op_names("device")[0], 0, "order"))
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
