"""When a key of a pool may change hands: KV blocks, request rows, generations.

A state has contents, which ops read and write in place and the requirements order, and a pool of
keys to its parts, which the host hands out. Taking a key back touches only the pool;
declared as a write to the contents it would put the host on the critical cycle. The hazard
that remains is between the old owner's last access and the new owner's first.

If the old owner was last scheduled in step s (a request that has ended may still run in steps
scheduled before its end was known), its accesses are over before those of every step ≥ s + r,
where r is the longest of the shortest paths between two ops that access the contents: whichever
op of step s came last, and whichever of step s + r comes first, the plan orders the two. So
`schedule(j)` may grant the key from j = s + r on. On one stream r is 1: at once. Bounds do not
count: they order any two ops, but so late that a pool would run dry.
"""

from __future__ import annotations

from ..errors import GraphError, did_you_mean
from ..plan import Plan
from .bounds import without_bounds
from .events import plan_edges
from .paths import HOP, adjacency, closure, reachable
from .requirements import Requirement, gate


def reuse_distance(plan: Plan, state: str) -> int:
    """After how many steps a key of this state may be granted anew, at least 1.

    Raises `GraphError` for an unknown state, and where nothing orders its uses.
    """
    graph = plan.graph
    if state not in graph.states:
        raise GraphError(
            f"there is no state {state!r}{did_you_mean(state, graph.states)}.",
            code="SW-UNKNOWN-NAME",
        )
    users = [
        name
        for name, vertex in graph.vertices.items()
        if state in vertex.op.writes or any(read.name == state for read in vertex.op.reads)
    ]
    index = {name: number for number, name in enumerate(graph.vertices)}
    edges = [(index[u], index[v], d) for u, v, d, _ in plan_edges(without_bounds(plan))]
    paths = closure(adjacency(len(index), edges))
    farthest = 1
    for old in users:
        for new in users:
            met = gate(graph, Requirement(old, new, 0, "WAR", state))  # as any other requirement
            path = paths[index[met.source], index[met.target]]
            if not reachable(path):
                raise GraphError(
                    f"keys of {state!r} can never be granted anew: nothing orders {old!r} before "
                    f"{new!r} of any later step. Declare what writes {state!r}.",
                    code="SW-UNORDERED",
                )
            farthest = max(farthest, int(path) // HOP - met.distance)
    return farthest
