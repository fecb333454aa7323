"""The plan of one rank of several: its actors, in the order and with the slots of the whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .. import arguments
from ..errors import GraphError
from ..plan import Edge, Plan
from ..ranks import at_rank, declared_name, part_of, without_ranks
from .compile import plan_for


def project(plan: Plan, rank: int) -> Plan:
    """What a rank does of a plan, as a plan of its own, which a process can run.

    Its names are those that were declared, without the rank. Orders that the whole leaves to other
    ranks are waits here, so that a rank is sound whoever the others are. They are implied by the
    whole, so they close no cycle with the other ranks. Raises `GraphError` for no such rank.
    """
    arguments.a("project", "plan", plan, Plan, arguments.A_PLAN)
    if rank not in plan.graph.ranks:
        known = ", ".join(map(str, plan.graph.ranks)) or "none"
        raise GraphError(f"project: there is no rank {rank!r} (ranks: {known}).", code="SW-RANK")
    own = part_of(plan.graph, rank)

    def plain(name: str) -> str:
        return declared_name(own, name)

    graph = without_ranks(own)
    actors = {
        plain(actor): tuple((plain(op), offset) for op, offset in program)
        for actor, program in plan.actors.items()
        if plan.graph.vertices[program[0][0]].node.rank == rank
    }
    costs = {plain(op): plan.costs[op] for op in own.vertices if op in plan.costs}
    slots = {plain(name): plan.slots[name] for name in own.values}
    return plan_for(graph, actors, costs, slots)


def parts(plan: Plan) -> list[Plan]:
    """What each rank does of a plan, in their order, by `project`.

    All ranks hand out keys alike, so one of them changes hands when it may on every rank: after the
    longest of their leases. Raises nothing.
    """
    own = [project(plan, rank) for rank in plan.graph.ranks]
    longest: dict[tuple[str | None, str, str], int] = {}
    for part in own:
        for lease in part.leases:
            move = (part.graph.states[lease.state].keys, lease.source, lease.target)
            longest[move] = max(lease.steps, longest.get(move, lease.steps))

    def alike(part: Plan) -> Plan:
        leases = (
            replace(lease, steps=longest[state.keys, lease.source, lease.target])
            for lease in part.leases
            for state in [part.graph.states[lease.state]]
        )
        return replace(part, leases=tuple(leases))

    return [alike(part) for part in own]


def together(plan: Plan, parts: Sequence[Plan]) -> Plan:
    """The plan as it runs where each rank runs its part: with the waits of the parts, and what they
    say of themselves. A part may let keys change hands by another wait than the whole.

    `parts` are of all ranks in their order. Whoever verifies it verifies what runs. Raises nothing.
    """
    graph = plan.graph
    names = {
        (vertex.node.rank, declared_name(graph, op)): op for op, vertex in graph.vertices.items()
    }

    def placed(rank: int, edge: Edge) -> Edge:
        return replace(
            edge,
            source=names[rank, edge.source],
            target=names[rank, edge.target],
            value=edge.value and at_rank(edge.value, rank),
            from_stream=at_rank(edge.from_stream, rank),
            to_stream=at_rank(edge.to_stream, rank),
            event=edge.event and names[rank, edge.event],
            witness=tuple((names[rank, op], distance) for op, distance in edge.witness),
        )

    each = [*zip(graph.ranks, parts, strict=True)]
    waits = (
        replace(wait, source=names[rank, wait.source], target=names[rank, wait.target])
        for rank, part in each
        for wait in part.waits
    )
    leases = (
        replace(lease, state=at_rank(lease.state, rank))
        for rank, part in each
        for lease in part.leases
    )
    return replace(
        plan,
        waits=tuple(waits),
        edges=tuple(placed(rank, edge) for rank, part in each for edge in part.edges),
        launch_order=tuple(placed(rank, edge) for rank, part in each for edge in part.launch_order),
        leases=tuple(leases),
    )
