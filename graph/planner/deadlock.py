"""Printing a deadlock: the shortest cycle that no order of steps can satisfy, with its reasons.

An edge (u → v, d) puts u of step i before v of step i + d. Around a cycle of total distance ≤ 0
an op would have to be done before itself, or before an earlier step of itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..errors import DeadlockError
from ..step_graph import StepGraph
from .channels import capacities_that_do
from .events import Actors, Precedence
from .paths import adjacency, tightest_cycle
from .requirements import Gate, Requirement


def deadlock(
    graph: StepGraph,
    actors: Actors,
    free: Sequence[Precedence],
    needed: Sequence[Requirement],
    gates: Sequence[Gate],
    *,
    searched: bool = False,
) -> DeadlockError:
    """The error for a graph whose free edges and requirements close a cycle of distance ≤ 0.

    `searched` says that the actors' order is only one example of many that cannot be either.
    """
    names = list(graph.vertices)
    index = {name: number for number, name in enumerate(names)}
    nearest: dict[tuple[str, str], tuple[int, str, Requirement | None]] = {}
    for source, target, distance, kind in free:
        _keep_nearer(nearest, (source, target), (distance, kind, None))
    for requirement, (source, target, distance) in zip(needed, gates, strict=True):
        _keep_nearer(nearest, (source, target), (distance, str(requirement), requirement))
    edges = [(index[u], index[v], distance) for (u, v), (distance, _, _) in nearest.items()]
    weights = adjacency(len(names), edges)
    found = tightest_cycle(weights)
    assert found is not None, "asked to explain a deadlock in a graph without one"
    cycle = [names[number] for number in _from_least(found)]
    following = [*cycle[1:], cycle[0]]
    hops = [nearest[pair] for pair in zip(cycle, following, strict=True)]
    walk = "".join(
        f"{op} → (d={distance}, {reason}) "
        for op, (distance, reason, _) in zip(cycle, hops, strict=True)
    )
    advice = _advice(graph, actors, cycle, hops, searched, _late(graph, cycle, needed))
    lines = [graph.vertices[r.target].node.line for _, _, r in hops if r is not None]
    ends = list(zip(cycle, following, strict=True))
    meetings = [e for e, (_, reason, _) in zip(ends, hops, strict=True) if reason == "comm"]
    lines += [graph.vertices[stays].node.line for _, stays in meetings]
    asked = [*free, *(Precedence(*each, "wait") for each in gates)]
    enough = capacities_that_do(graph, asked, meetings)
    if meetings:
        advice = " ".join(filter(None, [_held(graph, meetings), _roomier(enough), advice]))
    return DeadlockError(
        f"no order can satisfy this cycle of total distance {sum(d for d, _, _ in hops)}: "
        f"{walk}{cycle[0]}. {advice}",
        [(op, distance) for op, (distance, _, _) in zip(cycle, hops, strict=True)],
        code="SW-CHANNEL" if enough else None,
        line=next((line for line in lines if line is not None), None),
    )


def _held(graph: StepGraph, meetings: Sequence[tuple[str, str]]) -> str:
    """Which rank stays in which meeting until which other rank comes."""
    held = []
    for enters, stays in meetings:
        here, there = (graph.vertices[op].node for op in (stays, enters))
        assert here.comm is not None, "meetings are of comm nodes"
        held.append(f"rank {here.rank} stays in {here.comm.name!r} until rank {there.rank} enters")
    return f"{', '.join(held)}.".capitalize()


def _roomier(enough: Mapping[str, int]) -> str:
    """Capacities that would do, in words."""
    said = " and ".join(f"a capacity of {k} for {name!r}" for name, k in enough.items())
    return f"{said} would do.".capitalize() if said else ""


Hop = tuple[int, str, "Requirement | None"]


def _keep_nearer(nearest: dict[tuple[str, str], Hop], pair: tuple[str, str], hop: Hop) -> None:
    if pair not in nearest or hop[0] < nearest[pair][0]:
        nearest[pair] = hop


def _from_least(cycle: list[int]) -> list[int]:
    start = cycle.index(min(cycle))
    return cycle[start:] + cycle[:start]


def _advice(
    graph: StepGraph,
    actors: Actors,
    cycle: list[str],
    hops: Sequence[Hop],
    searched: bool,
    late: str,
) -> str:
    """Which order cannot be: that of the host threads on the cycle, or the accesses themselves."""
    threads = [
        graph.vertices[op].actor
        for op, (_, reason, _) in zip(cycle, hops, strict=True)
        if reason == "order" and graph.vertices[op].side == "host"
    ]
    reused = [r.value for _, _, r in hops if r is not None and r.hazard in ("WAR", "WAW")]
    few = [name for name in dict.fromkeys(reused) if name in graph.values]
    advice = [f"More slots for {', '.join(map(repr, few))} would help."] if few else []
    if threads:
        orders = "; ".join(
            f"{thread!r} cannot run in the order {_program(actors, thread)}"
            for thread in dict.fromkeys(threads)
        )
        whole = "each node's phases"
        if graph.launches == "together":
            whole += ", and launches that are issued as one,"
        remedy = (
            f", nor in any other that keeps {whole} together."
            if searched
            else ". List or offset the nodes otherwise, or use `order: search`."
        )
        advice.append(f"Host order: {orders}{remedy}")
    elif not few and not any(reason == "comm" for _, reason, _ in hops):
        advice.append(
            late or "The accesses contradict each other: read one of these at a carry ≥ 1."
        )
    return " ".join(advice)


def _late(graph: StepGraph, cycle: Sequence[str], needed: Sequence[Requirement]) -> str:
    """Which nodes on the cycle read what a node that is listed after them writes in their step.

    To list the writer before them is no help where it makes that from what they write: then a value
    must be of an earlier step.
    """
    # Not at the top: it takes a fifth of `stepweave check`, and few graphs are in deadlock.
    from networkx import DiGraph, has_path

    listed = {node.name: place for place, node in enumerate(graph.nodes)}
    moved: dict[str, None] = {}
    carried: dict[str, None] = {}
    on_cycle = {graph.vertices[op].node.name for op in cycle}
    within = [each for each in needed if (each.hazard, each.carry) == ("RAW", 0)]
    made_from = DiGraph(
        (graph.vertices[each.source].node.name, graph.vertices[each.target].node.name)
        for each in within
        if each.value in graph.values
    )
    for each in within:
        writer, reader = (graph.vertices[op].node for op in (each.source, each.target))
        if (
            {writer.name, reader.name} <= on_cycle
            and writer.offset == reader.offset
            and listed[reader.name] < listed[writer.name]
        ):
            reads = f"{reader.name!r} reads {each.value!r}, which {writer.name!r} writes"
            if {reader.name, writer.name} <= made_from.nodes and has_path(
                made_from, reader.name, writer.name
            ):
                if each.value in graph.values:
                    carried[
                        f"{reads} in the same step from what {reader.name!r} has written: read it "
                        f"of the step before, as `{each.value}@-1`."
                    ] = None
            else:
                moved[f"{reads}, listed after it: list {writer.name!r} before {reader.name!r}."] = (
                    None
                )
    return " ".join(carried or moved)


def _program(actors: Actors, thread: str) -> str:
    return ", ".join(op if offset == 0 else f"{op}(t{-offset:+d})" for op, offset in actors[thread])
