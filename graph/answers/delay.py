"""Whether an op may be held back at no cost, by what the plan waits for after it."""

from __future__ import annotations

from ..plan import Plan
from ..planner.events import plan_edges
from ..planner.paths import adjacency, closure, within


def delayable(plan: Plan, op: str, waiter: str) -> bool:
    """Whether a delay of `op` comes off the wait of `waiter`, which follows it on its actor.

    It does if nothing that this wait is for comes after `op` itself. At depth 1 it does come
    after it: commit waits for the very step that was scheduled, and a delay would only add to
    the period.
    """
    index = {name: number for number, name in enumerate(plan.graph.vertices)}
    edges = [(index[u], index[v], d) for u, v, d, _ in plan_edges(plan)]
    paths = closure(adjacency(len(index), edges))
    actor = next(ops for ops in plan.actors.values() if op in dict(ops))
    places = {name: (place, offset) for place, (name, offset) in enumerate(actor)}
    if waiter not in places:
        return False
    (place, offset), (later_place, later_offset) = places[op], places[waiter]
    ahead = offset - later_offset + (later_place < place)  # steps from op's to the waiter's
    waits = [wait for wait in plan.waits if wait.target == waiter]
    return bool(waits) and not any(
        within(paths, index[op], index[wait.source], ahead - wait.distance) for wait in waits
    )
