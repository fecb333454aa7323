"""What a plan puts before what, as vector clocks: from its programs, launches and waits alone.

The clock of op v in step j has an entry for each op u: the last step of u that is done when v(j)
begins. In a plan that repeats from step to step this is j − d, where d is the least distance over
all paths from u to v; so the clocks of all steps are one table. It takes nothing from what the plan
claims about itself, its requirements and witnesses.

An order counts only as far as a stream can keep it. A stream that waits for an event which has not
been recorded does not wait, and it runs its ops as they were launched: so an order between two
device ops holds if their launches are ordered the same way, by what is left.

Waits that only some modes need are there where the modes of the run have them. The table is of all
other orders; between two steps those waits are looked at one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...graph.plan import Plan
from ...graph.verifier.order import Arc, Distances, arcs_of


class Clocks:
    """Which of two ops, each of one step, the plan puts first.

    `mode_of`: the mode of a step, as far as it is known.
    """

    def __init__(self, plan: Plan, mode_of: Callable[[int], str | None] | None = None) -> None:
        self._mode_of = mode_of or (lambda step: None)
        self._launch = {name: vertex.launch for name, vertex in plan.graph.vertices.items()}
        self._waits = [wait for wait in plan.waits if wait.modes is not None]
        self._table = self._distances(plan.always)
        self._most = self._distances(plan) if self._waits else self._table

    def _distances(self, plan: Plan) -> dict[str, dict[str, int | None]]:
        """By op and op, after how many steps the one is done when the other begins."""
        ops, arcs = list(self._launch), list(arcs_of(plan))
        while True:
            far = Distances(ops, arcs)
            kept = [arc for arc in arcs if self._holds(arc, far)]
            if len(kept) == len(arcs):
                return {u: {v: far(u, v) for v in ops} for u in ops}
            arcs = kept

    def before(self, first: str, step: int, then: str, later: int) -> bool:
        """Whether `first` of `step` is done before `then` of step `later` begins."""
        distance = self._table[first][then]
        if distance is not None and distance <= later - step:
            return True
        return bool(self._waits) and self._by_waits(first, step, then, later)

    def _by_waits(self, first: str, step: int, then: str, later: int) -> bool:
        """The same by a path with waits that only some modes have."""
        pending = [(first, step)]
        seen = set(pending)
        for op, at in pending:
            for wait in self._waits:
                begin, end = (
                    _least(self._table, op, wait.source),
                    _least(self._most, wait.target, then),
                )
                if begin is None or end is None:
                    continue
                certain = _least(self._table, wait.target, then)
                for source in range(at + begin, later - end - wait.distance + 1):
                    reached = wait.target, source + wait.distance
                    if reached in seen or not wait.takes_place(source, self._mode_of):
                        continue
                    if certain is not None and reached[1] + certain <= later:
                        return True
                    seen.add(reached)
                    pending.append(reached)
        return False

    def _holds(self, arc: Arc, far: Distances) -> bool:
        u, v, distance = arc
        first, then = self._launch[u], self._launch[v]
        if first is None or then is None or (first == then and distance >= 0):
            return True
        return far.ordered(first, then, distance)


def _least(table: Mapping[str, Mapping[str, int | None]], first: str, then: str) -> int | None:
    """The distance of two ops, of which the second may also be the first."""
    return 0 if first == then else table[first][then]
