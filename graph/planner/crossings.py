"""What must be ordered between the steps of one plan and those of the plan that follows it.

The serial program of a switch runs the iterations of both plans side by side: op u of the plan
before in iteration step + offset, op v of the plan after so many iterations later as the switch is
delayed, and within an iteration by place in one listing that keeps both plans' own. Between two
accesses of a state that conflict, all pairs of steps are ordered as there: forward from a least
distance on, backward below it. Of these infinitely many pairs the nearest imply the rest, by the
order of each op's own steps, so finitely many are left.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

from ..errors import GraphError
from ..node import Read
from ..plan import Hazard, Plan
from ..step_graph import StepGraph, Vertex
from ..switch import Crossing, Instance

Place = tuple[int, int, int]


@dataclass(frozen=True)
class Pair:
    """Two plans of which the second follows the first. Raises `GraphError` where it cannot."""

    before: Plan
    after: Plan

    def __post_init__(self) -> None:
        for plan in self.plans:
            what = "nodes with rates" if plan.graph.declared else "several ranks"
            if plan.graph.declared is not None or plan.graph.ranks:
                raise _refused(f"{plan.graph.name!r} has {what}", "Switch plans without them.")
            if any(wait.modes is not None for wait in plan.waits):
                what = f"{plan.graph.name!r} has waits that depend on the mode"
                raise _refused(what, "Switch plans without them.")
        for name in self.before.graph.states.keys() & self.after.graph.states.keys():
            if self.before.graph.states[name].keys != self.after.graph.states[name].keys:
                raise _refused(f"state {name!r} has keys of two pools", "Name the same pool.")
        _ = self.listing

    @property
    def plans(self) -> tuple[Plan, Plan]:
        return self.before, self.after

    @property
    def graphs(self) -> tuple[StepGraph, StepGraph]:
        return self.before.graph, self.after.graph

    def vertex(self, at: Instance) -> Vertex:
        return self.graphs[at.part].vertices[at.op]

    @cached_property
    def listing(self) -> Mapping[str, int]:
        """The place of each node in one listing that keeps the order of both."""
        first, then = ([node.name for node in graph.nodes] for graph in self.graphs)
        common = [name for name in first if name in then]
        if common != [name for name in then if name in first]:
            again = [name for name in then if name in first]
            one, other = next(pair for pair in zip(common, again, strict=True) if len({*pair}) > 1)
            raise _refused(
                f"the plan before lists {one!r} before {other!r}, the plan after does not",
                "List them in the same order.",
            )
        merged: list[str] = []
        for name in [*common, None]:
            for names in (first, then):
                end = len(names) if name is None else names.index(name)
                merged += [each for each in names[:end] if each not in merged]
            merged += [] if name is None else [name]
        return {name: place for place, name in enumerate(merged)}

    def place(self, part: int, op: str) -> Place:
        """Where the op stands in the serial program of an iteration."""
        vertex = self.graphs[part].vertices[op]
        phases = vertex.node.op_names(vertex.side)
        return self.listing[vertex.node.name], int(vertex.side == "device"), phases.index(op)

    def least(self, source: str, target: str, delay: int) -> int:
        """The least d at which `source` of step i, before, is ahead of `target` of step i + d."""
        first, then = (graph.vertices for graph in self.graphs)
        later = int(self.place(0, source) > self.place(1, target))
        return first[source].offset - then[target].offset - delay + later

    @property
    def soonest(self) -> int:
        """The least delay at which every op that both plans have comes to its steps in order."""
        first, then = (graph.vertices for graph in self.graphs)
        apart = [first[op].offset - then[op].offset - 1 for op in first if op in then]
        return max([-self.spread - 1, *apart])

    @property
    def spread(self) -> int:
        """The greatest difference of two offsets."""
        offsets = [v.offset for graph in self.graphs for v in graph.vertices.values()]
        return max(offsets, default=0) - min(offsets, default=0)


def _refused(problem: str, advice: str) -> GraphError:
    return GraphError(
        f"these plans cannot follow each other: {problem}. {advice}", code="SW-SWITCH"
    )


def crossings(pair: Pair, delay: int) -> list[Crossing]:
    """Every requirement between the two plans that the nearest others do not imply."""
    found = [*_of_values(pair)]
    for state in pair.before.graph.states:
        if state in pair.after.graph.states:
            found += _of_state(pair, state, delay)
    found += [each for crossing in found for each in launched(pair, crossing)]
    return list(dict.fromkeys(found))


def _of_values(pair: Pair) -> Iterator[Crossing]:
    """Versions of steps before the switch that the plan after reads, in the slots where they are.

    The plan before must have written one, and must not write its slot again too soon.
    """
    for vertex, read, writer in _borrowed(pair):
        for step in range(read.carry):
            target = Instance(1, vertex.name, step)
            source = Instance(0, writer, step - read.carry)
            yield crossing(pair, source, target, "RAW", read.name)
            slots = pair.before.slots.get(read.name)
            if slots is not None and step - read.carry + slots < 0:
                again = replace_step(source, source.step + slots)
                yield crossing(pair, target, again, "WAR", read.name)


def _borrowed(pair: Pair) -> Iterator[tuple[Vertex, Read, str]]:
    """Reads of the plan after that go back to versions of the plan before, and who writes those."""
    first, then = pair.graphs
    writers = {name: v.name for v in first.vertices.values() for name in v.op.writes}
    for vertex in then.vertices.values():
        for read in vertex.op.reads:
            if read.name not in first.values or read.name not in then.values:
                continue
            if read.name in writers and read.carry and not then.values[read.name].external:
                yield vertex, read, writers[read.name]


def last_users(pair: Pair) -> list[Instance]:
    """After these nothing touches slots of the plan before: its own ops, readers of the next."""
    own = [Instance(0, op, -1) for op in pair.before.graph.vertices]
    return [*own, *(Instance(1, v.name, read.carry - 1) for v, read, _ in _borrowed(pair))]


def replace_step(at: Instance, step: int) -> Instance:
    """The same op in another step."""
    return Instance(at.part, at.op, step)


def _of_state(pair: Pair, state: str, delay: int) -> Iterator[Crossing]:
    for u, v in product(users(pair.graphs[0], state), users(pair.graphs[1], state)):
        if u.op.class_of(state) != v.op.class_of(state):
            continue  # a key changes hands by a lease
        least = pair.least(u.name, v.name, delay)
        for one, other in product(_accesses(u, state), _accesses(v, state)):
            if one == other == "R":
                continue
            for i, j in ahead(least):
                source, target = Instance(0, u.name, i), Instance(1, v.name, j)
                yield crossing(pair, source, target, _HAZARDS[one, other], state)
            for j, i in behind(least):
                source, target = Instance(1, v.name, j), Instance(0, u.name, i)
                yield crossing(pair, source, target, _HAZARDS[other, one], state)


_HAZARDS: Mapping[tuple[str, str], Hazard] = {
    ("W", "R"): "RAW",
    ("R", "W"): "WAR",
    ("W", "W"): "WAW",
}


def ahead(least: int) -> list[tuple[int, int]]:
    """The steps (i, j) of the nearest pairs in which the plan before comes first."""
    return [(min(-1, j - least), j) for j in range(max(1, least))]


def behind(least: int) -> list[tuple[int, int]]:
    """The steps (j, i) of the nearest pairs in which the plan after comes first."""
    return [(j, j - least + 1) for j in range(least - 1)]


def users(graph: StepGraph, state: str) -> list[Vertex]:
    """The ops that access a state, in the order of the listing."""
    return [vertex for vertex in graph.vertices.values() if _accesses(vertex, state)]


def _accesses(vertex: Vertex, state: str) -> Sequence[str]:
    reads = "R" if any(read.name == state for read in vertex.op.reads) else ""
    return reads + ("W" if state in vertex.op.writes else "")


def crossing(
    pair: Pair, source: Instance, target: Instance, hazard: Hazard, value: str
) -> Crossing:
    """The requirement, and where it is met: at the launch, of a device op after a host op."""
    u, v = pair.vertex(source), pair.vertex(target)
    at = target
    if u.side == "host" and v.side == "device":
        at = Instance(target.part, v.launch or "", target.step)
    return Crossing(source, target, hazard, value, at)


def launched(pair: Pair, needed: Crossing) -> list[Crossing]:
    """What a stream needs in order to wait: the record is enqueued first, so launched first."""
    first, then = pair.vertex(needed.source).launch, pair.vertex(needed.target).launch
    if first is None or then is None:
        return []
    source = Instance(needed.source.part, first, needed.source.step)
    target = Instance(needed.target.part, then, needed.target.step)
    return [Crossing(source, target, "LAUNCH", "", target)]


def bound(pair: Pair, source: Instance, target: Instance) -> Crossing:
    """That the plan after does not run ahead of the end of the plan before without end."""
    return replace(crossing(pair, source, target, "WAR", ""), hazard="BOUND")
