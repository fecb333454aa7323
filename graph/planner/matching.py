"""Whether the calls on each communicator are in one order on all ranks that make them.

A library matches the n-th call of every member. Each call changes the communicator, a state, so a
plan has the calls of a rank in its reference order. Two calls x and y stand in the same order on
two ranks exactly if the least d at which x(i) stands before y(i + d) is the same there.
"""

from __future__ import annotations

from itertools import combinations

from ..errors import GraphError
from ..node import Node
from ..ranks import ends
from ..step_graph import StepGraph
from .requirements import reference_distance


def check_matching(graph: StepGraph) -> None:
    """Raise `GraphError` (`SW-MATCH`) for two calls that two ranks would make in two orders."""
    for communicator, calls in _calls(graph).items():
        for (x, by_rank), (y, others) in combinations(calls.items(), 2):
            both = [rank for rank in by_rank if rank in others]
            distances = {r: _distance(graph, by_rank[r], others[r]) for r in both}
            odd = [rank for rank in both if distances[rank] != distances[both[0]]]
            if odd:
                first, then = both[0], odd[0]
                raise GraphError(
                    f"communicator {communicator!r}: {_order(x, y, distances[first])} on rank "
                    f"{first}, and {_order(x, y, distances[then])} on rank {then}. Its members "
                    "match calls by their order, so these two would be taken for each other: give "
                    "both ranks the same listing and offsets, or one of the two a communicator of "
                    "its own.",
                    code="SW-MATCH",
                    line=others[then].line,
                )


def _calls(graph: StepGraph) -> dict[str, dict[str, dict[int, Node]]]:
    """By communicator: the ends of each comm node that uses it."""
    found: dict[str, dict[str, dict[int, Node]]] = {}
    for name, nodes in ends(graph).items():
        for node in nodes.values():
            assert node.comm is not None, "these are comm nodes"
            found.setdefault(node.comm.communicator, {}).setdefault(name, nodes)
    return found


def _distance(graph: StepGraph, x: Node, y: Node) -> int:
    """Between the calls: a stream's are made by the launches."""
    first, then = (graph.vertices[node.op_names("host")[-1]] for node in (x, y))
    return reference_distance(first, then)


def _order(x: str, y: str, distance: int) -> str:
    """`'x' of step i is called before 'y' of step i+1`, whichever way round is said more simply."""
    if distance > 0:
        x, y, distance = y, x, 1 - distance
    when = f"step i{distance:+d}" if distance else "the same step"
    return f"{x!r} is called before {y!r} of {when}"
