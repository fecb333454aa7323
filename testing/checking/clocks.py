"""What a plan puts before what, as vector clocks: from its programs, launches and waits alone.

The clock of op v in step j has an entry for each op u: the last step of u that is done when v(j)
begins. In a plan that repeats from step to step this is j − d, where d is the least distance over
all paths from u to v; so the clocks of all steps are one table. It takes nothing from what the plan
claims about itself, its requirements and witnesses.

An order counts only as far as a stream can keep it. A stream that waits for an event which has not
been recorded does not wait, and it runs its ops as they were launched: so an order between two
device ops holds if their launches are ordered the same way, by what is left.
"""

from __future__ import annotations

from ...graph.plan import Plan
from ...graph.verifier.order import Arc, Distances, arcs_of


class Clocks:
    """Which of two ops, each of one step, the plan puts first."""

    def __init__(self, plan: Plan) -> None:
        self._launch = {name: vertex.launch for name, vertex in plan.graph.vertices.items()}
        ops, arcs = list(self._launch), list(arcs_of(plan))
        while True:
            far = Distances(ops, arcs)
            kept = [arc for arc in arcs if self._holds(arc, far)]
            if len(kept) == len(arcs):
                break
            arcs = kept
        self._table = {u: {v: far(u, v) for v in ops} for u in ops}

    def before(self, first: str, step: int, then: str, later: int) -> bool:
        """Whether `first` of `step` is done before `then` of step `later` begins."""
        distance = self._table[first][then]
        return distance is not None and distance <= later - step

    def _holds(self, arc: Arc, far: Distances) -> bool:
        u, v, distance = arc
        first, then = self._launch[u], self._launch[v]
        if first is None or then is None or (first == then and distance >= 0):
            return True
        return far.ordered(first, then, distance)
