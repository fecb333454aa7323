"""The order of a host thread that does itself what it launches: ops of older steps first.

A launch that returns at once had better come before an op that waits for the device. Where a launch
lasts as long as its work, every op behind it waits that long, also those of an older step whose
inputs are there. So these go ahead of younger steps, as far as the plan can bear it.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product

from ..plan import Placed, Plan
from ..planner.events import Actors, free_edges, plan_edges
from ..planner.paths import HOP, Weights, adjacency, closure, ordered, within
from ..planner.requirements import Requirement, gate

Program = tuple[Placed, ...]


def older_first(plan: Plan) -> Actors:
    """Another order of one host thread, by its name; empty where nothing can go ahead.

    The thread may take either order, and take it anew in each iteration: what the plan requires
    holds by what the two orders have in common. It is of one thread, since the two orders of two
    could wait for each other. Not of plans with waits that depend on the mode of a step.
    """
    if plan.always is not plan:
        return {}
    for actor, program in plan.actors.items():
        moved = _Loose(plan, actor).moved()
        if moved != program:
            return {actor: moved}
    return {}


class _Loose:
    """What a plan keeps of its orders if one actor takes its program in one of two orders."""

    def __init__(self, plan: Plan, actor: str) -> None:
        self._plan, self._actor = plan, actor
        self._index = {name: number for number, name in enumerate(plan.graph.vertices)}
        self._before = self._closure([(u, v, d) for u, v, d, _ in plan_edges(plan)])
        launches = {vertex.launch for vertex in plan.graph.vertices.values()}
        meets = {v.name for v in plan.graph.vertices.values() if v.node.comm is not None}
        self._fixed = meets | {op for op, _ in plan.actors[actor] if op in launches}
        self._meets = meets

    def moved(self) -> Program:
        """Its program, in which ops that launch nothing have gone ahead of younger steps."""
        program = self._plan.actors[self._actor]
        if self._plan.graph.vertices[program[0][0]].side == "device":
            return program
        for start in range(1, len(program)):
            place = start
            while place and self._may_swap(*program[place - 1 : place + 1]):
                other = (*program[: place - 1], program[place], program[place - 1])
                other += program[place + 1 :]
                if not self._bears(other):
                    break
                program, place = other, place - 1
        return program

    def _may_swap(self, younger: Placed, older: Placed) -> bool:
        return (
            older[1] > younger[1] and older[0] not in self._fixed and younger[0] not in self._meets
        )

    def _bears(self, other: Program) -> bool:
        """Whether the plan goes on by this order, and what it requires holds by what is common."""
        plan, graph = self._plan, self._plan.graph
        alone = replace(plan, actors={**plan.actors, self._actor: other})
        if not ordered(self._closure([(u, v, d) for u, v, d, _ in plan_edges(alone)])):
            return False
        rank = {op: place for place, (op, _) in enumerate(other)}
        program = plan.actors[self._actor]
        others = {name: ops for name, ops in plan.actors.items() if name != self._actor}
        common = [(u, v, d) for u, v, d, _ in free_edges(graph, others)]
        common += [(wait.source, wait.target, wait.distance) for wait in plan.waits]
        common += [
            (u, v, at_u - at_v)
            for (u, at_u), (v, at_v) in combinations(program, 2)
            if rank[u] < rank[v]
        ]
        common += [(u, v, at_u - at_v + 1) for (u, at_u), (v, at_v) in product(program, program)]
        paths = self._closure(common)
        return all(within(paths, self._index[u], self._index[v], d) for u, v, d in self._required())

    def _required(self) -> list[tuple[str, str, int]]:
        """All that a plan requires, and how far apart the users of fresh values are: by that their
        versions in flight are counted."""
        graph = self._plan.graph
        edges = (*self._plan.edges, *self._plan.launch_order)
        found: list[tuple[str, str, int]] = [
            gate(graph, Requirement(e.source, e.target, e.distance, "RAW", e.value)) for e in edges
        ]
        for name, value in graph.values.items():
            if name in graph.writers and value.storage == "fresh":
                writer = graph.writers[name]
                for reader, _ in graph.reads.get(name, ()):
                    least = int(self._before[self._index[reader], self._index[writer]])
                    if reader != writer:
                        found.append((reader, writer, least // HOP))
        return found

    def _closure(self, edges: list[tuple[str, str, int]]) -> Weights:
        numbered = [(self._index[u], self._index[v], d) for u, v, d in edges]
        return closure(adjacency(len(self._index), numbered))
