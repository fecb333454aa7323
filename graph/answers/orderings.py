"""Questions about what a plan orders: how soon, by which path, and what if a wait were gone.

u(i) is before v(i + d) exactly if a path u ⇝ v of total distance ≤ d exists. A path is told as
`Hop`s, and for people as `Leg`s: what one actor's program orders in a row is one leg.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from ..plan import Edge, Plan, Wait
from ..planner.events import Kind, plan_edges
from ..planner.paths import FAR, HOP, ShortestPaths, adjacency, closure, within
from ..planner.requirements import Gate, Requirement, gate


class Hop(NamedTuple):
    """`target` of step i + `total` follows, because of a program, a launch or a wait."""

    source: str
    target: str
    total: int
    kind: Kind


class Leg(NamedTuple):
    """Hops of one kind in a row that lead to `target` of step i + `total`."""

    target: str
    total: int
    kind: Kind
    actor: str

    @property
    def reason(self) -> str:
        return f"program of {self.actor}" if self.kind == "order" else self.kind


class Orderings:
    """All-pairs shortest paths of a plan, with `without` left out."""

    def __init__(self, plan: Plan, without: Wait | None = None) -> None:
        self._plan = plan
        self._index = {name: number for number, name in enumerate(plan.graph.vertices)}
        self._names = list(self._index)
        self._kinds: dict[tuple[str, str], tuple[int, Kind]] = {}
        for u, v, d, kind in plan_edges(plan):
            if kind == "wait" and without is not None and (u, v, d) == _key(without):
                continue
            known = self._kinds.get((u, v))
            if known is None or d < known[0]:
                self._kinds[u, v] = (d, kind)
        edges = [(self._index[u], self._index[v], d) for (u, v), (d, _) in self._kinds.items()]
        self._weights = adjacency(len(self._names), edges)
        self._paths = closure(self._weights)
        self._shortest = ShortestPaths(self._weights, self._paths)

    def distance(self, source: str, target: str) -> int | None:
        """The least d such that source(i) is before target(i + d); None: never ordered."""
        least = int(self._paths[self._index[source], self._index[target]])
        return None if least >= FAR // 2 else least // HOP

    def path(self, source: str, target: str) -> tuple[Hop, ...]:
        """A path of that distance with the fewest hops; empty if there is none."""
        if self.distance(source, target) is None:
            return ()
        ends = self._index[source], self._index[target]
        ops = [self._names[n] for n in self._shortest.between(*ends)]
        hops: list[Hop] = []
        total = 0
        for u, v in pairwise(ops):
            distance, kind = self._kinds[u, v]
            total += distance
            hops.append(Hop(u, v, total, kind))
        return tuple(hops)

    def meets(self, edge: Edge) -> bool:
        """Whether the requirement is ordered."""
        at = self._gate(edge)
        return within(self._paths, self._index[at.source], self._index[at.target], at.distance)

    def proof(self, edge: Edge) -> tuple[Hop, ...]:
        """The path that orders the requirement; a host op reaches a device op by its launch."""
        at = self._gate(edge)
        if not self.meets(edge):
            return ()
        vertices = self._plan.graph.vertices
        launched = vertices[edge.source].side == "host" and vertices[edge.target].side == "device"
        own = launched and at.source == at.target
        hops = () if own else self.path(at.source, at.target)
        if not launched:
            return hops
        total = hops[-1].total if hops else 0
        phases = vertices[edge.target].node.op_names("device")
        ops = [at.target, *phases[: phases.index(edge.target) + 1]]
        tail = [
            Hop(u, v, total, "order" if place else "launch")
            for place, (u, v) in enumerate(pairwise(ops))
        ]
        return (*hops, *tail)

    def told(self, path: Sequence[tuple[str, int]]) -> tuple[Hop, ...]:
        """The hops of a path given as (op, total distance so far), as a plan's witnesses are."""
        actors = {name: vertex.actor for name, vertex in self._plan.graph.vertices.items()}
        hops = []
        for (u, before), (v, total) in pairwise(path):
            free: Kind = "order" if actors[u] == actors[v] else "launch"
            distance, kind = self._kinds.get((u, v), (None, free))
            # where a nearer wait stands between the same two, the path may still take the free edge
            hops.append(Hop(u, v, total, kind if distance == total - before else free))
        return tuple(hops)

    def through(self, wait: Wait, edge: Edge) -> bool:
        """Whether some path that meets the requirement takes this wait."""
        at = self._gate(edge)
        before = 0 if at.source == wait.source else self.distance(at.source, wait.source)
        after = 0 if at.target == wait.target else self.distance(wait.target, at.target)
        if before is None or after is None:
            return False
        return before + wait.distance + after <= edge.distance

    def _gate(self, edge: Edge) -> Gate:
        needed = Requirement(edge.source, edge.target, edge.distance, "RAW", edge.value)
        return gate(self._plan.graph, needed)


def legs_of(plan: Plan, hops: Sequence[Hop]) -> tuple[Leg, ...]:
    """The hops with each actor's program in one piece."""
    found: list[Leg] = []
    for hop in hops:
        leg = Leg(hop.target, hop.total, hop.kind, plan.graph.vertices[hop.target].actor)
        if found and hop.kind == "order" == found[-1].kind and found[-1].actor == leg.actor:
            found.pop()
        found.append(leg)
    return tuple(found)


def _key(wait: Wait) -> tuple[str, str, int]:
    return wait.source, wait.target, wait.distance
