"""What a plan would be under other durations, slots or settings, and what that gains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from .. import arguments
from ..node import Op
from ..plan import Plan
from ..planner.events import plan_edges
from ..planner.period import period
from ..step_graph import StepGraph

CHANGED = ", changed here"


def with_costs(plan: Plan, costs: Mapping[str, float]) -> Plan:
    """The same orders, waits and slots with other durations: their period and critical cycle.

    `costs` are µs by op; ops that it does not name keep theirs. Raises `GraphError` if `plan` is
    not a plan, or `costs` not a number from 0 by op.
    """
    arguments.a("with_costs", "plan", plan, Plan, arguments.A_PLAN)
    arguments.mapping("with_costs", "costs", costs, "op names to µs", "SW-COST")
    for op, us in costs.items():
        arguments.one_of("with_costs", "each key of costs", op, plan.graph.vertices)
        arguments.number("with_costs", f"costs[{op!r}]", us)
    durations = {**plan.costs, **costs}
    found = period(plan.graph, plan_edges(plan), durations)
    changed = plan if durations == plan.costs else replace(plan, costs_from=altered(plan))
    return replace(changed, costs=durations, period_us=found.us, critical_cycle=found.critical)


def altered(plan: Plan) -> str:
    """Where the costs of a plan come from once some of them are changed to see what happens."""
    return plan.costs_from if plan.costs_from.endswith(CHANGED) else f"{plan.costs_from}{CHANGED}"


def scaled(costs: Mapping[str, float], factors: Mapping[str, float]) -> dict[str, float]:
    """Durations with those of some ops multiplied."""
    return {op: us * factors.get(op, 1.0) for op, us in costs.items()}


def bound_by(plan: Plan) -> str:
    """The actors that the critical cycle runs through: `compute`, `driver → compute → copy`."""
    vertices = plan.graph.vertices
    actors = [vertices[op].actor for op, _ in plan.critical_cycle]
    if len(actors) > 1 and actors[0] == actors[-1]:  # begin where the cycle comes to an actor
        turn = next((k for k, actor in enumerate(actors) if actor != actors[0]), 0)
        actors = actors[turn:] + actors[:turn]
    return " → ".join(actor for actor, _ in groupby(actors)) or "nothing: no op takes time"


def without_classes(graph: StepGraph) -> StepGraph:
    """The graph as if all users of a keyed state were of one class: each two that conflict wait."""

    def plain(op: Op) -> Op:
        return replace(op, classes=())

    nodes = (
        replace(node, host=tuple(map(plain, node.host)), device=tuple(map(plain, node.device)))
        for node in graph.nodes
    )
    states = {name: replace(state, leases=()) for name, state in graph.states.items()}
    return replace(graph, nodes=tuple(nodes), states=states)


@dataclass(frozen=True, slots=True)
class Point:
    """One value of a sweep, or one pair of values, and the plan that it leads to.

    `plan` is None where the planner refused; `refused` then says why.
    """

    values: tuple[str, ...]
    plan: Plan | None
    refused: str = ""

    def to_json(self, base: Plan) -> dict[str, Any]:
        """As `whatif --json` prints it; `speedup` is against `base`."""
        if self.plan is None:
            return {"values": list(self.values), "refused": self.refused}
        return {"values": list(self.values), **outcome(self.plan, base)}


def speedup(before: Plan, after: Plan) -> float:
    """How many times the steps per second; infinite where nothing takes time any more."""
    if before.step_us == after.step_us:
        return 1.0
    return before.step_us / after.step_us if after.period_us else float("inf")


def outcome(plan: Plan, base: Plan) -> dict[str, Any]:
    """Period, speed-up, bound, waits and slots of a plan, as JSON."""
    found = plan.to_json()
    gain = speedup(base, plan)
    return {
        **({} if plan.graph.declared is None else {"cycle": plan.graph.cycle}),
        "period_us": plan.period_us,
        "step_us": plan.step_us,
        "costs_from": plan.costs_from,
        "speedup": gain if gain != float("inf") else None,
        "bound_by": bound_by(plan),
        "critical_cycle": found["critical_cycle"],
        "waits": [{key: w[key] for key in ("from", "to", "distance")} for w in found["waits"]],
        "slots": found["slots"],
    }
