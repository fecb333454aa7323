"""How many messages a channel must hold: the least that costs no time, or that opens a cycle.

A capacity k enters only through one edge: the receiver enters before the sender leaves k steps
later. More of it never orders anything more, as with slots (`slots.py`), so the least period is
that of endless channels. Capacities are raised where they lie on a cycle that must not be, and
then each is lowered as far as the others let it: none can have one less.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

from ..node import Node
from ..ranks import ends
from ..step_graph import StepGraph
from .events import Actors, Precedence, free_edges, meeting_ops
from .paths import adjacency, tightest_cycle
from .period import Scaled, delays, slowest_cycle
from .requirements import gate, launch_order, requirements

Pair = tuple[str, str]


def derive_capacities(
    graph: StepGraph,
    actors: Actors,
    costs: Mapping[str, float],
    pins: Mapping[str, int | None],
) -> tuple[StepGraph, tuple[str, ...]]:
    """The graph with a capacity for each channel that is open, and what to note of them.

    What no capacity makes possible is left for the compilation to explain.
    """
    named = {node.comm.name: node.comm for node in graph.nodes if node.comm}
    channels = {name: 0 for name in _back_edges(graph) if named[name].capacity is None}
    if not channels:
        return graph, ()
    needed = requirements(graph, pins)
    gates = [gate(graph, each) for each in (*needed, *launch_order(graph, actors, needed))]
    edges = [*free_edges(graph, actors), *(Precedence(*each, "wait") for each in gates)]
    found = _least(graph, edges, channels, costs)
    if found is None:
        return with_capacities(graph, channels), ()
    said = ", ".join(f"{name!r} {k}" for name, k in found.items())
    return with_capacities(graph, found), (f"capacities: the least that cost no time: {said}",)


def capacities_that_do(
    graph: StepGraph, edges: Iterable[Precedence], cycle: Iterable[Pair]
) -> Mapping[str, int]:
    """What messages must hold to open a deadlock, of those that need more than they have.

    `cycle`: the ends of its edges. Empty where no capacity on it would do.
    """
    back = _back_edges(graph)
    if not set(back.values()) & set(cycle):
        return {}
    comms = {node.comm.name: node.comm for node in graph.nodes if node.comm}
    declared = {name: k for name in back if (k := comms[name].capacity) is not None}
    backward = set(back.values())
    rest = [edge for edge in edges if (edge.source, edge.target) not in backward]
    found = _least(graph, rest, declared, None) or {}
    return {name: k for name, k in found.items() if k > declared[name]}


def with_capacities(graph: StepGraph, capacities: Mapping[str, int]) -> StepGraph:
    """The graph with these capacities of messages, by name."""

    def changed(node: Node) -> Node:
        if node.comm is None or node.comm.name not in capacities:
            return node
        return replace(node, comm=replace(node.comm, capacity=capacities[node.comm.name]))

    return replace(graph, nodes=tuple(map(changed, graph.nodes)))


def _back_edges(graph: StepGraph) -> dict[str, Pair]:
    """By message: where its receiver enters, and where its sender leaves."""
    found = {}
    for name, nodes in ends(graph).items():
        comm = next(iter(nodes.values())).comm
        if comm is not None and comm.kind == "message" and len(nodes) == len(comm.members):
            sender, receiver = (nodes[rank] for rank in comm.members)
            found[name] = (meeting_ops(receiver)[0], meeting_ops(sender)[-1])
    return found


def _least(
    graph: StepGraph,
    edges: Sequence[Precedence],
    known: Mapping[str, int],
    costs: Mapping[str, float] | None,
) -> dict[str, int] | None:
    """The least capacities from the known ones up; None where none would do.

    `edges` are all others. With `costs` the period must be that of endless channels.
    """
    if _wrong_cycle(graph, edges, None, Fraction(0)) is not None:
        return None  # and it is another matter, whatever the channels hold
    back = {name: _back_edges(graph)[name] for name in known}
    limit = _ratio(graph, edges, costs)[0]

    def wrong(capacities: Mapping[str, int]) -> list[Pair] | None:
        more = [Precedence(*back[name], k, "comm") for name, k in capacities.items()]
        return _wrong_cycle(graph, [*edges, *more], costs, limit)

    found = dict(known)
    while (cycle := wrong(found)) is not None:
        on_it = next((name for name in found if back[name] in cycle), None)
        if on_it is None:
            return None
        found[on_it] += 1
    for name in reversed(found):
        while found[name] > known[name] and wrong({**found, name: found[name] - 1}) is None:
            found[name] -= 1
    return found


def _wrong_cycle(
    graph: StepGraph,
    edges: Sequence[Precedence],
    costs: Mapping[str, float] | None,
    limit: Fraction,
) -> list[Pair] | None:
    """The edges of a cycle of total ≤ 0, or of one that is slower than the limit, by their ends."""
    names = list(graph.vertices)
    index = {name: number for number, name in enumerate(names)}
    weights = adjacency(len(names), [(index[e.source], index[e.target], e.distance) for e in edges])
    tight = tightest_cycle(weights)
    if tight is not None:
        return list(pairwise([*(names[k] for k in tight), names[tight[0]]]))
    ratio, cycle = _ratio(graph, edges, costs)
    return cycle if ratio > limit else None


def _ratio(
    graph: StepGraph, edges: Sequence[Precedence], costs: Mapping[str, float] | None
) -> tuple[Fraction, list[Pair]]:
    """The period in µs, and the edges of the cycle that sets it, by their ends; 0 without costs."""
    if costs is None:
        return Fraction(0), []
    index = {name: number for number, name in enumerate(graph.vertices)}
    found = delays(graph, edges, costs)
    scaled = Scaled.of(index, found)
    slowest = slowest_cycle(scaled)
    ends = [(found[edge].via or found[edge].source, found[edge].target) for edge in slowest.edges]
    return slowest.ratio / scaled.scale, ends
