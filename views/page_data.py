"""What a page knows about a plan: the plan itself, its declarations, and everything in words."""

from __future__ import annotations

from typing import Any

from ..graph.answers.explain import WaitExplanation, explain_wait
from ..graph.answers.requirement_words import broken_words, needed_words, title
from ..graph.plan import Edge, Plan
from ..graph.planner.events import plan_edges
from ..graph.planner.paths import HOP, adjacency, closure, reachable
from .words import carried


def page_data(plan: Plan) -> dict[str, Any]:
    """All of it as JSON: what the page's script reads.

    `requirements` holds the words of `plan.edges`, then of `plan.launch_order`. `nearest[u][v]`
    is the least d for which u of step i is done before v of step i + d starts, None without one.
    """
    return {
        "plan": plan.to_json(),
        "ops": {name: _op(plan, name) for name in plan.graph.vertices},
        "values": {name: _value(plan, name) for name in plan.graph.values},
        "states": list(plan.graph.states),
        "waits": [_wait(explain_wait(plan, wait)) for wait in plan.waits],
        "requirements": [_requirement(plan, edge) for edge in (*plan.edges, *plan.launch_order)],
        "nearest": nearest(plan),
    }


def nearest(plan: Plan) -> dict[str, dict[str, int | None]]:
    """Shortest paths over everything that orders ops of this plan (Floyd and Warshall, 1962)."""
    ops = list(plan.graph.vertices)
    index = {op: k for k, op in enumerate(ops)}
    edges = [(index[e.source], index[e.target], e.distance) for e in plan_edges(plan)]
    paths = closure(adjacency(len(ops), edges))
    there = reachable(paths)
    return {
        u: {v: int(paths[i, j] // HOP) if there[i, j] else None for j, v in enumerate(ops)}
        for i, u in enumerate(ops)
    }


def _op(plan: Plan, name: str) -> dict[str, Any]:
    vertex = plan.graph.vertices[name]
    return {
        "node": vertex.node.name,
        "actor": vertex.actor,
        "side": vertex.side,
        "launch": vertex.launch,
        "cost_us": plan.costs.get(name),
        "reads": [[read.name, read.carry] for read in vertex.op.reads],
        "writes": list(vertex.op.writes),
    }


def _value(plan: Plan, name: str) -> dict[str, Any]:
    value = plan.graph.values[name]
    return {
        "place": value.place,
        "slots": plan.slots.get(name),
        "nbytes": value.nbytes,
        "external": value.external,
    }


def _wait(explained: WaitExplanation) -> dict[str, Any]:
    return {
        "headline": explained.headline,
        "realized": explained.realized,
        "protects": [
            {"title": reason.title, "needed": reason.needed, "without": reason.without}
            for reason in explained.protects
        ],
        "also": [
            f"{reason.title} ({reason.edge.source} → {reason.edge.target}): {reason.ordered_by}"
            for reason in explained.incidental
        ],
        "cost": explained.cost,
    }


def _requirement(plan: Plan, edge: Edge) -> dict[str, Any]:
    return {
        "title": title(edge),
        "value": carried(edge),
        "needed": needed_words(plan, edge),
        "without": broken_words(plan, edge),
    }
