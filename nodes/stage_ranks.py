"""The steps of all stages as one graph of several ranks: what is proved, and what each rank runs.

What lies between the stages, who waits for whom across ranks and how long a step takes, is a
property of all together. So there is one plan, of this graph, and each rank runs its part of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ..graph.node import Comm, Node, State
from ..graph.plan import Plan
from ..graph.planner.period import op_costs
from ..graph.ranks import Ranked, declared_name, ranked_graph
from ..graph.step_graph import StepGraph
from .registry import BETWEEN_STAGES, kind

_BROADCASTS = ("tell", "hear", "tell_drafts", "hear_drafts")
FEEDBACK = "feedback"
"""The communicator of what the last stage tells."""


def all_stages(graphs: Sequence[StepGraph], own: int | None = None) -> StepGraph:
    """One graph of the graphs of all stages, in their order, named as `nodes.stages` names them.

    `own`: the stage that runs in this process, whose values and states have what makes them.
    Raises `GraphError`.
    """
    everyone = tuple(range(len(graphs)))
    meeting: dict[str, dict[int, Node]] = {}
    for stage, graph in enumerate(graphs):
        for node in graph.nodes:
            if node.kind in BETWEEN_STAGES:
                meeting.setdefault(node.name, {})[stage] = node
    comms = {name: _comm(name, nodes, everyone) for name, nodes in meeting.items()}
    declared: list[Ranked] = []
    for stage, graph in enumerate(graphs):
        for node in graph.nodes:
            if node.name not in comms:
                declared.append(Ranked(node, ranks=(stage,)))
            elif stage == min(meeting[node.name]):
                ends = meeting[node.name]
                declared.append(Ranked(node, comm=comms[node.name], ends=ends))
    ordered = list(graphs) if own is None else [*graphs, graphs[own]]  # what is said last counts
    values = {name: value for graph in ordered for name, value in graph.values.items()}
    states = {name: state for graph in ordered for name, state in graph.states.items()}
    calls = {comm.communicator for comm in comms.values()}
    first = graphs[0]
    return ranked_graph(
        declared,
        values.values(),
        [*states.values(), *(State(name, make=_kept_by_the_library) for name in sorted(calls))],
        ranks=len(graphs),
        listing={stage: [node.name for node in each.nodes] for stage, each in enumerate(graphs)},
        order=first.order,
        name=first.name,
        launches=first.launches,
    )


def _comm(name: str, nodes: Mapping[int, Node], everyone: tuple[int, ...]) -> Comm:
    """How the ends meet, as `distributed.stage_links` makes it.

    Each pair of neighbours has a communicator, and all have one for the feedback. A message is a
    rendezvous: what runs without a buffer runs with any. Those of other streams go on meanwhile.
    """
    if any(node.kind in _BROADCASTS for node in nodes.values()):
        return Comm(name, "collective", everyone, FEEDBACK, concurrent=True)
    first, then = sorted(nodes)
    return Comm(name, "message", (first, then), name, capacity=0, concurrent=True)


def _kept_by_the_library() -> None:
    """Of a communicator, a step has nothing: the state is the order of its calls."""


def model_ops(graph: StepGraph) -> tuple[str, ...]:
    """The device ops that run the model: one, or one of each stage in their order."""
    return tuple(
        name
        for name, vertex in graph.vertices.items()
        if vertex.side == "device" and kind(vertex.node.kind).stages == "each"
    )


def costs_of_stages(graph: StepGraph, costs: Mapping[str, float]) -> dict[str, float]:
    """Costs in µs of each rank's ops, of those of one rank or of each.

    What is said of the op that runs the model on one rank is divided among the stages; others take
    their time on every rank that has them. What is said of the op of one rank, as of
    `forward@1.device`, is as it is.
    """
    found, divided = {}, model_ops(graph)
    for name in graph.vertices:
        if name in costs:
            found[name] = costs[name]
        elif (cost := costs.get(declared_name(graph, name))) is not None:
            found[name] = cost / len(graph.ranks) if name in divided else cost
    return found


def bubble(plan: Plan, groups: int) -> str:
    """How long each stage waits in a step of `plan`, where `groups` steps are in flight, and why.

    The period is the time of the slowest stage, or that of a token's way through all stages and
    back over the steps in flight, whichever is longer. Raises nothing.
    """
    period = plan.period_us
    costs = op_costs(plan.graph, plan.costs)
    busy = [0.0] * len(plan.graph.ranks)
    for ops in plan.actors.values():
        vertices = [plan.graph.vertices[op] for op, _ in ops]
        if vertices and vertices[0].side == "device":
            rank = vertices[0].node.rank or 0
            busy[rank] = max(busy[rank], sum(costs[vertex.name] for vertex in vertices))
    most = max(busy)
    parts = (max(0.0, 1 - us / period) if period else 0.0 for us in busy)
    waits = ", ".join(f"{part:.0%} at {rank}" for rank, part in enumerate(parts))
    if period <= most * (1 + _ALIKE):
        why = f"stage {busy.index(most)} takes the longest, and tokens are back in time for it"
    else:
        way = period * groups
        why = (
            f"tokens are back after {way:,.0f} µs, and the longest stage takes {most:,.0f}: "
            f"`depth: {math.ceil(way / most)}` would hide their way"
        )
    return f"stages: of each step they wait for {waits}; {why}"


_ALIKE = 1e-3
