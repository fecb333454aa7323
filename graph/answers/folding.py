"""A plan of firings folded back: each declared node once, to be drawn with its rate."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ..node import Node
from ..plan import Edge, Placed, Plan, Protected, Wait
from ..ranks import declared_name
from ..step_graph import StepGraph


def rate_words(node: Node) -> str:
    """`3 times a step`, `every 4 steps`; nothing for a node that fires once a step."""
    if node.rate > 1:
        return f"{node.rate} times a step"
    return f"every {node.every} steps" if node.every > 1 else ""


def folded(plan: Plan) -> Plan:
    """The plan in the words of the declared graph, distances in steps; itself without rates.

    What is the same for several firings is there once. A picture, not a plan that could run.
    """
    graph = plan.graph
    if graph.declared is None:
        return plan
    edges = (
        replace(
            edge,
            source=declared_name(graph, edge.source),
            target=declared_name(graph, edge.target),
            value=declared_name(graph, edge.value),
            distance=_steps(graph, edge.source, edge.target, edge.distance),
            event=edge.event and declared_name(graph, edge.event),
            witness=(),
        )
        for edge in plan.edges
    )
    return replace(
        plan,
        graph=graph.declared,
        actors={
            actor: _programs(graph, graph.declared, program)
            for actor, program in plan.actors.items()
        },
        waits=tuple(w for w, _ in folded_waits(plan) if w.source != w.target),
        edges=_once(edges),
        launch_order=(),
        slots=plan.declared_slots,
        critical_cycle=_cycle(graph, plan.critical_cycle),
        costs={declared_name(graph, op): us for op, us in plan.costs.items()},
        period_us=plan.step_us,
    )


def folded_waits(plan: Plan) -> tuple[tuple[Wait, tuple[Wait, ...]], ...]:
    """Each wait in the words of the declared graph, with the waits of all firings that are it.

    Without rates, each wait with itself.
    """
    graph = plan.graph
    if graph.declared is None:
        return tuple((wait, (wait,)) for wait in plan.waits)
    alike: dict[tuple[str, str, int], list[Wait]] = {}
    for wait in plan.waits:
        source, target = (declared_name(graph, op) for op in (wait.source, wait.target))
        distance = _steps(graph, wait.source, wait.target, wait.distance)
        alike.setdefault((source, target, distance), []).append(wait)
    return tuple(
        (
            Wait(
                *key,
                tuple(dict.fromkeys(_protected(graph, p) for each in waits for p in each.protects)),
            ),
            tuple(waits),
        )
        for key, waits in alike.items()
    )


def _steps(graph: StepGraph, source: str, target: str, cycles: int) -> int:
    """A distance between two firings in steps."""
    first, then = (graph.vertices[op].node.firing for op in (source, target))
    assert first is not None, "an unrolled graph has firings only"
    assert then is not None, "an unrolled graph has firings only"
    return cycles * graph.cycle + then.step - first.step


def _protected(graph: StepGraph, each: Protected) -> Protected:
    names = (declared_name(graph, name) for name in (each.value, each.before, each.after))
    return Protected(each.hazard, *names)


def _once(found: Iterable[Edge]) -> tuple[Edge, ...]:
    """Without loops, and one of several between the same two ops at one distance."""
    known = {(each.source, each.target, each.distance): each for each in found}
    return tuple(each for each in known.values() if each.source != each.target)


def _programs(
    graph: StepGraph, declared: StepGraph, program: Iterable[Placed]
) -> tuple[Placed, ...]:
    names = dict.fromkeys(declared_name(graph, op) for op, _ in program)
    return tuple((name, declared.vertices[name].offset) for name in names)


def _cycle(graph: StepGraph, cycle: tuple[Placed, ...]) -> tuple[Placed, ...]:
    following = [*cycle[1:], *cycle[:1]]
    return tuple(
        (declared_name(graph, op), _steps(graph, op, then, distance))
        for (op, distance), (then, _) in zip(cycle, following, strict=True)
    )
