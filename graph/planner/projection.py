"""The plan of one rank of several: its actors, in the order and with the slots of the whole."""

from __future__ import annotations

from .. import arguments
from ..errors import GraphError
from ..plan import Plan
from ..ranks import part_of
from .compile import plan_for


def project(plan: Plan, rank: int) -> Plan:
    """What a rank does of a plan, as a plan of its own. Raises `GraphError` for no such rank.

    Orders that the whole leaves to other ranks are waits here, so that a rank is sound whoever the
    others are. They are implied by the whole, so they close no cycle with the other ranks.
    """
    arguments.a("project", "plan", plan, Plan, arguments.A_PLAN)
    if rank not in plan.graph.ranks:
        known = ", ".join(map(str, plan.graph.ranks)) or "none"
        raise GraphError(f"project: there is no rank {rank!r} (ranks: {known}).", code="SW-RANK")
    graph = part_of(plan.graph, rank)
    actors = {
        actor: program
        for actor, program in plan.actors.items()
        if plan.graph.vertices[program[0][0]].node.rank == rank
    }
    costs = {op: us for op, us in plan.costs.items() if op in graph.vertices}
    slots = {name: plan.slots[name] for name in graph.values}
    return plan_for(graph, actors, costs, slots)
