"""Slots that several firings share: version n of a value is in slot n mod K, whoever writes it.

How many of them wait for what depends on K in no simple way, so slots are chosen as if each firing
had its own. Then they are folded: K is the least number for which the orders of that plan imply all
WAR and WAW of the shared slots. With the greatest of the firings' own numbers for each of them they
are implied, so there is one, and folding costs neither a wait nor any time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..plan import Plan
from ..step_graph import StepGraph
from .events import plan_edges
from .paths import adjacency, closure, within
from .requirements import Requirement, gate, value_requirements


def with_slots_apart(graph: StepGraph, pins: Mapping[str, int | None]) -> StepGraph:
    """The graph with slots of its own for each version of a cycle, where their number is open."""
    if all(value.turn is None for value in graph.values.values()):
        return graph
    return replace(
        graph,
        values={
            name: value if name in pins else replace(value, turn=None)
            for name, value in graph.values.items()
        },
    )


def shared_slots(graph: StepGraph, apart: Plan) -> dict[str, int | None]:
    """The slots of every value, given a plan in which each version of a cycle has its own."""
    met, found = _Met(apart), dict(apart.slots)
    groups: dict[str, list[str]] = {}
    for name, value in graph.values.items():
        if value.turn is not None and apart.graph.values[name].turn is None:
            groups.setdefault(value.turn.value, []).append(name)
    for names in groups.values():
        if apart.slots[names[0]] is not None:
            found.update(dict.fromkeys(names, _fewest(graph, names, met)))
    return found


def _fewest(graph: StepGraph, names: list[str], met: _Met) -> int:
    """The fewest slots whose reuse is ordered anyway."""
    slots = 1
    while not all(
        met(needed)
        for name in names
        for needed in value_requirements(graph, name, slots)
        if needed.hazard != "RAW"
    ):
        slots += 1
    return slots


class _Met:
    """Whether a plan orders what is asked."""

    def __init__(self, plan: Plan) -> None:
        self._graph = plan.graph
        self._index = {name: number for number, name in enumerate(plan.graph.vertices)}
        edges = [(self._index[u], self._index[v], d) for u, v, d, _ in plan_edges(plan)]
        self._paths = closure(adjacency(len(self._index), edges))

    def __call__(self, needed: Requirement) -> bool:
        at = gate(self._graph, needed)
        return within(self._paths, self._index[at.source], self._index[at.target], at.distance)
