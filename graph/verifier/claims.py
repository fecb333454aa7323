"""Whether what a plan says of itself is so: its requirements, and the witness of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from ..plan import Edge, Plan
from ..violation import Violation
from .firings import needs_of
from .order import Arc, Distances, Need, feeds_of
from .reports import access_of
from .words import edge_text, instant


def wrong_claims(plan: Plan, distance: Distances) -> Iterator[Violation]:
    """Requirements that the plan does not state as strongly as they must be met, by value.

    Raises nothing.
    """
    stated: dict[tuple[str, str, str, str, int], int] = {}
    for edge in (*plan.edges, *plan.launch_order):
        key = (edge.source, edge.target, edge.value, edge.hazard, edge.carry)
        stated[key] = min(edge.distance, stated.get(key, edge.distance))
    poor: dict[str, list[tuple[Need, str]]] = {}
    for need in (*needs_of(plan), *feeds_of(plan)):
        claimed = stated.get((need.before, need.after, need.value, need.hazard, need.carry))
        if claimed is None:
            poor.setdefault(need.value, []).append((need, "no edge states the requirement"))
        elif claimed > need.distance:
            problem = f"an edge at distance {claimed} weakens the requirement"
            poor.setdefault(need.value, []).append((need, problem))
    for value, found in poor.items():
        need, problem = found[0]
        yield Violation(
            "SW-WITNESS",
            f"{problem} {need}",
            need.hazard,
            value,
            access_of(plan, need.before, "touches", value),
            access_of(plan, need.after, "touches", value),
            need.distance,
            distance(need.before, need.after),
            also=tuple(str(other) for other, _ in found[1:]),
        )


def wrong_witnesses(
    plan: Plan, arcs: Sequence[Arc], distance: Distances, broken: bool
) -> Iterator[Violation]:
    """Witnesses that prove nothing, one report per reason.

    Only if `broken`, those in which a step is missing: where there is a race, that is its echo.
    Raises nothing.
    """
    least: dict[tuple[str, str], int] = {}
    for u, v, d in arcs:
        least[u, v] = min(d, least.get((u, v), d))
    reasons: dict[str, list[Edge]] = {}
    for edge in (*plan.edges, *plan.launch_order):
        reason = _malformed(plan, edge) or (_gap(plan, edge, least) if broken else None)
        if reason:
            reasons.setdefault(reason, []).append(edge)
    for reason, edges in reasons.items():
        edge = edges[0]
        yield Violation(
            "SW-WITNESS",
            f"the witness of {edge_text(edge)} is no proof: {reason}",
            edge.hazard,
            edge.value,
            access_of(plan, edge.source, "touches", edge.value),
            access_of(plan, edge.target, "touches", edge.value),
            edge.distance,
            distance(edge.source, edge.target)
            if {edge.source, edge.target} <= plan.graph.vertices.keys()
            else None,
            also=tuple(edge_text(other) for other in edges[1:]),
        )


def _gap(plan: Plan, edge: Edge, least: Mapping[tuple[str, str], int]) -> str | None:
    """A step of the witness that the plan does not order."""
    if edge.event is not None and edge.event not in plan.records:
        return f"it names the event of {edge.event!r}, which no op records"
    for (u, at), (v, then) in pairwise(edge.witness):
        if least.get((u, v), then - at + 1) > then - at:
            return f"the plan has no ordering {instant(u, v, then - at)}"
    return None


def _malformed(plan: Plan, edge: Edge) -> str | None:
    """Why an edge's witness would prove nothing even if each of its steps were ordered."""
    ops = plan.graph.vertices
    path = edge.witness
    for op in (edge.source, edge.target, *(op for op, _ in path)):
        if op not in ops:
            return f"{op!r} is no op of the graph"
    if len(path) < 2 or path[0] != (edge.source, 0) or path[-1][0] != edge.target:
        return f"it does not lead from {edge.source!r} to {edge.target!r}"
    if path[-1][1] > edge.distance:
        return f"it is longer ({path[-1][1]}) than the distance ({edge.distance})"
    launch = ops[edge.target].launch
    if (
        ops[edge.source].side == "host"
        and launch is not None
        and not any(op == launch and total <= edge.distance for op, total in path)
    ):
        return f"host work reaches {edge.target!r} only through its launch {launch!r}"
    if (edge.from_stream, edge.to_stream) != (ops[edge.source].actor, ops[edge.target].actor):
        return f"it names the actors {edge.from_stream!r} and {edge.to_stream!r}"
    return None
