"""Planning one of several equal ranks in place of all of them.

If all ranks have the same nodes and meet in collectives of all of them only, every path between
ranks goes from copy to copy at distance 0, and so is a path of one rank of the same total. Then a
plan of one rank, repeated, is the plan of all, however many they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..node import Node
from ..plan import Edge, Plan, Protected, Wait
from ..ranks import at_rank, declared_name, part_of
from ..step_graph import StepGraph

_RANK = re.compile(r"@\d+")


def one_of_equal_ranks(
    graph: StepGraph, costs: Mapping[str, float], pins: Mapping[str, int | None]
) -> StepGraph | None:
    """The graph of the first rank, if all others are equal to it; else None."""
    if len(graph.ranks) < 2 or any(not _meets_all(graph, node) for node in graph.nodes):
        return None
    first, *others = (_signature(graph, rank, costs, pins) for rank in graph.ranks)
    return part_of(graph, graph.ranks[0]) if all(each == first for each in others) else None


def _meets_all(graph: StepGraph, node: Node) -> bool:
    comm = node.comm
    return comm is None or (comm.kind == "collective" and {*comm.members} == {*graph.ranks})


def _signature(
    graph: StepGraph, rank: int, costs: Mapping[str, float], pins: Mapping[str, int | None]
) -> object:
    """All that the plan of a rank depends on, without the names of the rank."""
    part = part_of(graph, rank)

    def plain(name: str) -> str:
        return declared_name(graph, name)

    def ops(node: Node) -> Sequence[object]:
        return [
            (
                *(op.phase, [(plain(r.name), r.carry) for r in op.reads], [*map(plain, op.writes)]),
                [(plain(state), users) for state, users in op.classes],
            )
            for op in (*node.host, *node.device)
        ]

    return (
        [
            (
                *(plain(n.name), plain(n.actor), plain(n.stream or ""), n.offset, n.comm),
                *(ops(n), n.launch_latency_us, len(n.device)),
            )
            for n in part.nodes
        ],
        [replace(v, name=plain(name), initial=None) for name, v in part.values.items()],
        [(plain(name), state.keys, state.leases) for name, state in part.states.items()],
        {plain(name): costs[name] for name in part.vertices},
        {plain(name): pins[name] for name in part.values if name in pins},
    )


def lifted(plan: Plan, graph: StepGraph, costs: Mapping[str, float]) -> Plan:
    """The plan of the first rank, repeated on all ranks of the graph."""
    copies = [_on(plan, rank) for rank in graph.ranks]
    count = len(graph.ranks)
    note = f"ranks: {count} equal ones; proved for one of them, and so for any number"
    return replace(
        plan,
        graph=graph,
        actors={actor: program for copy in copies for actor, program in copy.actors.items()},
        waits=tuple(wait for copy in copies for wait in copy.waits),
        edges=tuple(edge for copy in copies for edge in copy.edges),
        launch_order=tuple(edge for copy in copies for edge in copy.launch_order),
        slots={name: k for copy in copies for name, k in copy.slots.items()},
        notes=(*plan.notes, note),
        costs=costs,
        leases=tuple(lease for copy in copies for lease in copy.leases),
    )


def _on(plan: Plan, rank: int) -> Plan:
    """The same plan with the names of another rank."""

    def name(old: str) -> str:
        base = _RANK.sub("\0", old)
        return base.replace("\0", at_rank("", rank))

    def edge(old: Edge) -> Edge:
        return replace(
            old,
            source=name(old.source),
            target=name(old.target),
            value=name(old.value),
            from_stream=name(old.from_stream),
            to_stream=name(old.to_stream),
            event=None if old.event is None else name(old.event),
            witness=tuple((name(op), total) for op, total in old.witness),
        )

    def wait(old: Wait) -> Wait:
        protects = (
            Protected(p.hazard, name(p.value), name(p.before), name(p.after)) for p in old.protects
        )
        return Wait(name(old.source), name(old.target), old.distance, tuple(protects))

    return replace(
        plan,
        actors={
            name(actor): tuple((name(op), at) for op, at in program)
            for actor, program in plan.actors.items()
        },
        waits=tuple(map(wait, plan.waits)),
        edges=tuple(map(edge, plan.edges)),
        launch_order=tuple(map(edge, plan.launch_order)),
        slots={name(value): k for value, k in plan.slots.items()},
        leases=tuple(replace(lease, state=name(lease.state)) for lease in plan.leases),
    )
