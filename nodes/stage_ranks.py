"""The steps of all stages as one graph of several ranks, for whoever checks or simulates them.

Each rank runs the plan of its own stage. What lies between them, who waits for whom across ranks
and how long a step takes, is a property of all together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..graph.node import Comm, Node, Read
from ..graph.plan import Plan
from ..graph.planner.period import op_costs
from ..graph.ranks import Ranked, ranked_graph, without_rank
from ..graph.step_graph import StepGraph
from .registry import kind
from .values import ARRIVED, DRAFTS, HIDDEN, PROGRESS, SAMPLED

_TOLD = {"tell": (SAMPLED.name, PROGRESS.name), "tell_drafts": (DRAFTS.name,)}
_HEARD = {"tell": "hear", "tell_drafts": "hear_drafts"}


def all_stages(graphs: Sequence[StepGraph]) -> StepGraph:
    """One graph of the graphs of all stages, in their order.

    Two ends of a message are one node: `send0` hands on from stage 0 to 1, `tell0` tells stage 0.
    Raises `GraphError`.
    """
    count, last = len(graphs), len(graphs) - 1
    declared: list[Ranked] = []
    listing: dict[int, list[str]] = {}
    for stage, graph in enumerate(graphs):
        listing[stage] = names = []
        for node in graph.nodes:
            if node.kind == "receive":
                names.append(f"send{stage - 1}")
            elif node.kind in ("hear", "hear_drafts"):
                told = next(each for each, heard in _HEARD.items() if heard == node.kind)
                names.append(f"{told}{stage}")
            elif node.kind == "send":
                made = _message(node, stage, stage + 1, (HIDDEN.name,), (ARRIVED.name,))
                declared.append(replace(made, node=replace(made.node, name=f"send{stage}")))
                names.append(f"send{stage}")
            elif node.kind in _TOLD:
                what = _TOLD[node.kind]
                for other in range(last):
                    made = _message(node, last, other, what, what)
                    name = f"{node.kind}{other}"
                    declared.append(replace(made, node=replace(made.node, name=name)))
                    names.append(name)
            else:
                declared.append(Ranked(node, ranks=(stage,)))
                names.append(node.name)
    values = {name: value for graph in graphs for name, value in graph.values.items()}
    states = {name: state for graph in graphs for name, state in graph.states.items()}
    first = graphs[0]
    return ranked_graph(
        declared,
        values.values(),
        states.values(),
        ranks=count,
        listing=listing,
        order=first.order,
        name=first.name,
        launches=first.launches,
    )


def _message(
    node: Node, sender: int, receiver: int, reads: tuple[str, ...], writes: tuple[str, ...]
) -> Ranked:
    """The node as a message. Each has a communicator and a stream of its own, as when it runs."""
    name = f"{node.kind}_{sender}_{receiver}"
    [op] = node.device
    part = replace(op, reads=tuple(map(Read, reads)), writes=writes)
    comm = Comm(name, "message", (sender, receiver), name, capacity=None, concurrent=True)
    return Ranked(replace(node, device=(part,), stream=name), comm=comm)


def costs_of_stages(graph: StepGraph, costs: Mapping[str, float]) -> dict[str, float]:
    """Costs in µs of each rank's ops, of those of one rank or of each.

    What is said of the op that runs the model on one rank is divided among the stages; others take
    their time on every rank that has them. What is said of the op of one rank, as of
    `forward@1.device`, is as it is.
    """
    found = {}
    for name, vertex in graph.vertices.items():
        if name in costs:
            found[name] = costs[name]
        elif (cost := costs.get(without_rank(graph, name))) is not None:
            divided = vertex.side == "device" and kind(vertex.node.kind).stages == "each"
            found[name] = cost / len(graph.ranks) if divided else cost
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
