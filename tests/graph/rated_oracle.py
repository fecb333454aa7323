"""Brute force for graphs with rates: the plain loop of the declared graph, firing by firing.

Nothing here unrolls a graph or knows a cycle but to read the names of a plan's ops. Firings are
listed in the order of the loop; each write counts as the next version of its value, which goes to
slot number mod K; a read looks the versions up. What touches one slot or state in the loop, one of
the two writing, must keep the loop's order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, pairwise, product
from math import lcm
from typing import Any, NamedTuple

import networkx as nx

from stepweave.graph.node import Node, Op, OpContext, Read, Run
from stepweave.graph.plan import Lease, Plan
from stepweave.graph.step_graph import StepGraph, Vertex

from .oracle import Instance, Order, Unrolled, padding_for


class At(NamedTuple):
    """One firing of an op of the declared graph."""

    op: str
    step: int
    turn: int


@dataclass(frozen=True)
class Loop:
    """The plain loop over steps `first` to `last`."""

    graph: StepGraph
    first: int
    last: int

    @cached_property
    def order(self) -> list[At]:
        """Every firing of every op, in the order of the loop."""
        found = []
        for _, group in groupby(enumerate(self.graph.nodes), key=_loop_of(self.graph)):
            body = list(group)
            start = body[0][0]
            for place, node in body:
                for step in range(self.first, self.last + 1):
                    if (step - node.first) % node.every:
                        continue
                    for turn in range(node.rate):
                        for index, op in enumerate(ops_of(node)):
                            key = (step + node.offset, start, turn, place, index)
                            found.append((key, At(op, step, turn)))
        return [at for _, at in sorted(found)]

    @cached_property
    def wrote(self) -> dict[str, list[At]]:
        """Who wrote each version of a value, by time."""
        found: dict[str, list[At]] = defaultdict(list)
        for at in sorted(self.order, key=lambda at: (at.step, at.turn)):
            for name in self.op(at).writes:
                if name in self.graph.values:
                    found[name].append(at)
        return found

    @cached_property
    def number(self) -> dict[tuple[str, At], int]:
        """The number of each version: 0 is the first of step 0 or later."""
        found = {}
        for name, writers in self.wrote.items():
            zero = sum(at.step < 0 for at in writers)
            found.update({(name, at): place - zero for place, at in enumerate(writers)})
        return found

    def vertex(self, at: At) -> Vertex:
        return self.graph.vertices[at.op]

    def op(self, at: At) -> Op:
        return self.vertex(at).op

    def version(self, at: At, read: Read) -> int | None:
        """The version that a firing reads; None if it lies before the steps looked at."""
        writers = self.wrote.get(read.name, [])
        if not writers:
            return None
        mine, its = self.vertex(at).node.rate, self.vertex(writers[0]).node.rate
        if read.firing is not None:
            seen = [w for w in writers if (w.step, w.turn) == (at.step - read.carry, read.firing)]
        elif mine == its and mine > 1:  # firing by firing
            seen = [w for w in writers if (w.step, w.turn) <= (at.step, at.turn)]
            seen = seen[: len(seen) - read.carry]
        else:  # those begun when the firing's part of the step ends, `carry` steps ago
            seen = [
                w
                for w in writers
                if w.step < at.step - read.carry
                or (w.step == at.step - read.carry and w.turn * mine < (at.turn + 1) * its)
            ]
        return self.number[read.name, seen[-1]] if seen else None

    def accesses(self, at: At, slots: dict[str, int | None]) -> Iterator[tuple[Any, Any, bool]]:
        """(cell, when, writes) of each access of a firing; `when` orders those of one cell."""
        places = self.places
        for read in self.op(at).reads:
            if read.name in self.graph.states:
                yield self._keys(read.name, at), (places[at],), False
            elif (version := self.version(at, read)) is not None:
                yield self._cell(read.name, version, slots), (version, 1), False
        for name in self.op(at).writes:
            if name in self.graph.states:
                yield self._keys(name, at), (places[at],), True
            else:
                version = self.number[name, at]
                yield self._cell(name, version, slots), (version, 0), True

    def _keys(self, state: str, at: At) -> tuple[str, str]:
        """What of a state a firing touches: of one with keys, those of its class of users."""
        keyed = self.graph.states[state].keys is not None
        return state, self.op(at).class_of(state) if keyed else ""

    @cached_property
    def places(self) -> dict[At, int]:
        return {at: place for place, at in enumerate(self.order)}

    def _cell(self, name: str, version: int, slots: dict[str, int | None]) -> tuple[str, int]:
        count = slots[name]
        return name, version if count is None else version % count

    def conflicts(
        self, slots: dict[str, int | None], steps: range | None = None
    ) -> list[tuple[At, At]]:
        """Every two firings, both of these steps, that must keep an order; the first one first."""
        cells: dict[Any, list[tuple[Any, At, bool]]] = defaultdict(list)
        for at in self.order:
            if steps is not None and at.step not in steps:
                continue
            for cell, when, writes in self.accesses(at, slots):
                cells[cell].append((when, at, writes))
        return [
            (at, other)
            for touches in cells.values()
            for when, at, writes in touches
            for then, other, rewrites in touches
            if when < then and (writes or rewrites)
        ]


def ops_of(node: Node) -> tuple[str, ...]:
    return (*node.op_names("host"), *(node.op_names("device") if node.device else ()))


def _loop_of(graph: StepGraph) -> Any:
    """A key for groupby: nodes of one rate above 1 that follow each other, else each alone."""
    return lambda each: each[1].rate if each[1].rate > 1 else -each[0]


def steps_of_cycle(graph: StepGraph) -> int:
    return lcm(*(node.every for node in graph.nodes))


def instance(graph: StepGraph, at: At) -> Instance:
    """What a plan calls a firing: by counting the firings of its node in a cycle."""
    cycle, node = steps_of_cycle(graph), graph.vertices[at.op].node
    within = [
        (step, turn)
        for step in range(cycle)
        if (step - node.first) % node.every == 0
        for turn in range(node.rate)
    ]
    number = within.index((at.step % cycle, at.turn))
    name = node.name if len(within) == 1 else f"{node.name}#{number}"
    return Instance(name + at.op[len(node.name) :], at.step // cycle)


def declared_slots(plan: Plan) -> dict[str, int | None]:
    """The slots of each declared value; all that share them must say the same number."""
    assert plan.graph.declared is not None
    found: dict[str, int | None] = {}
    for name in plan.graph.declared.values:
        counts = {k for each, k in plan.slots.items() if each.partition("#")[0] == name}
        assert len(counts) == 1, (name, counts)
        found[name] = counts.pop()
    return found


def unordered(plan: Plan) -> list[tuple[At, At]]:
    """Every two firings that the plan leaves in no order, or feeds to a stream in none.

    It looks at as many cycles as the plan's requirements reach. A stuck plan gives one firing with
    itself.
    """
    cycles = 1 + max([1, *(edge.distance for edge in plan.edges if edge.hazard != "BOUND")])
    graph = plan.graph.declared
    assert graph is not None
    cycle = steps_of_cycle(graph)
    padding = 3 + max(
        [1, *(abs(d) for e in (*plan.edges, *plan.launch_order) for _, d in e.witness)]
    )
    order = Order(Unrolled(plan, cycles, padding))
    if order.stuck:
        return [(At("stuck", 0, 0), At("stuck", 0, 0))]
    loop = Loop(graph, -padding * cycle, (cycles + padding) * cycle)
    found: list[tuple[At, At]] = []
    asked = loop.conflicts(declared_slots(plan), range(cycles * cycle))
    known = {at: instance(graph, at) for at in loop.order if at.step in range(cycles * cycle)}
    found += [(at, then) for at, then in asked if not order.before(known[at], known[then])]
    near = range(-1, cycles + 1)
    for u, v in order.unrecorded:
        if u.step in near and v.step in near:
            found.append((At(u.op, u.step, 0), At(v.op, v.step, 0)))
    ops = plan.graph.vertices
    for actor in plan.actors:
        for u, v in pairwise(order.unrolled.program(actor)):
            one, two = ops[u.op].launch, ops[v.op].launch
            if one is None or two is None or u.step not in near or v.step not in near:
                continue
            fed = Instance(one, u.step), Instance(two, v.step)
            if fed[0] != fed[1] and not order.before(*fed):
                found.append((At(u.op, u.step, 0), At(v.op, v.step, 0)))
    return found


class Keys:
    """The unrolled order of a plan, and who touches which keys in the plain loop.

    Leases count cycles; who has a key has it to any step of one, and the next from so many steps
    on.
    """

    def __init__(self, plan: Plan) -> None:
        assert plan.graph.declared is not None
        self.graph, self.cycle = plan.graph.declared, plan.graph.cycle
        self.middle = 3 + max((abs(each.steps) for each in plan.leases), default=0)
        self.order = Order(Unrolled(plan, 2 * self.middle, padding_for(plan)))
        loop = Loop(self.graph, 0, 2 * self.middle * self.cycle - 1)
        self.touching: dict[Any, list[tuple[int, Instance, bool]]] = defaultdict(list)
        for place, at in enumerate(loop.order):
            op, each = loop.op(at), instance(self.graph, at)
            for state in {*op.writes, *(read.name for read in op.reads)} & self.graph.states.keys():
                key = state, op.class_of(state), at.step
                self.touching[key].append((place, each, state in op.writes))

    def meet(self, lease: Lease) -> bool:
        """Whether two accesses may meet on a key that passes on as soon as a lease permits."""
        cycle, steps = self.cycle, lease.steps * self.cycle
        start = self.middle * cycle
        passes = [(last, last + steps) for last in range(start, start + cycle)]
        passes.append((start + cycle - 1, start + steps))
        return any(
            (wrote or writes) and (place >= other or not self.order.before(at, then))
            for last, first in passes
            for step, later in product(range(cycle), repeat=2)
            for place, at, wrote in self.touching[lease.state, lease.source, last - step]
            for other, then, writes in self.touching[lease.state, lease.target, first + later]
        )


def can_be_ordered(graph: StepGraph, cycles: int = 6) -> bool:
    """Whether the listing order of all actors, and all that the loop asks, has no cycle.

    Where slots are open there are as many as it likes.
    """
    cycle = steps_of_cycle(graph)
    loop = Loop(graph, -cycles * cycle, cycles * cycle)
    slots = {name: value.slots for name, value in graph.values.items()}
    arcs: set[tuple[At, At]] = set()
    programs: dict[str, list[At]] = defaultdict(list)
    for at in loop.order:
        programs[loop.vertex(at).actor].append(at)

    def launch(at: At) -> At | None:
        op = loop.vertex(at).launch
        return None if op is None else replace_op(at, op)

    needed = loop.conflicts(slots)
    for actor, program in programs.items():
        arcs.update(pairwise(program))
        if loop.vertex(program[0]).side == "device" and actor:
            needed += list(pairwise(program))
    for first, then in needed:
        one, two = launch(first), launch(then)
        if two is None:
            arcs.add((first, then))
        elif one is None:
            arcs.update({(first, two)} if first != two else set())
        else:
            arcs.add((first, then))
            arcs.update({(one, two)} if one != two else set())
    arcs.update((launched, at) for at in loop.order if (launched := launch(at)) is not None)
    found: bool = nx.is_directed_acyclic_graph(nx.DiGraph(sorted(arcs)))
    return found


def replace_op(at: At, op: str) -> At:
    return at._replace(op=op)


# --- what ops see ----------------------------------------------------------------------------


def recording(graph: StepGraph) -> StepGraph:
    """The graph with ops that write what they have seen, and note their firing in each state."""

    def body(vertex: Vertex) -> Run:
        op = vertex.op

        def run(context: OpContext) -> None:
            me = (vertex.name, context.step, context.firing)
            seen: list[object] = [me]
            for read in op.reads:
                if read.name in graph.states:
                    seen.append(tuple(context.state(read.name)))
                else:
                    seen.append(context.read(str(read)))
            for name in op.writes:
                if name in graph.states:
                    context.state(name).append(me)
                else:
                    context.write(name, hash((name, *seen)))

        return run

    return graph.with_ops(lambda vertex: replace(vertex.op, run=body(vertex)))


def plain_loop(graph: StepGraph, steps: int) -> tuple[dict[str, list[int]], dict[str, list[Any]]]:
    """What `recording` must give: all versions of each value, and the states at the end."""
    loop = Loop(graph, -8 * steps_of_cycle(graph), steps - 1)
    logs: dict[str, list[Any]] = {state: [] for state in graph.states}
    heard: dict[tuple[At, str], tuple[Any, ...]] = {}
    for at in loop.order:
        if at.step < 0:
            continue
        for read in loop.op(at).reads:
            if read.name in logs:
                heard[at, read.name] = tuple(logs[read.name])
        for name in loop.op(at).writes:
            if name in logs:
                logs[name].append((at.op, at.step, at.turn))
    made: dict[At, tuple[Any, ...]] = {}

    def saw(at: At) -> tuple[Any, ...]:
        if at not in made:
            found: list[Any] = [(at.op, at.step, at.turn)]
            for read in loop.op(at).reads:
                if read.name in logs:
                    found.append(heard[at, read.name])
                    continue
                version = loop.version(at, read)
                real = version is not None and version >= 0
                found.append(value(read.name, version) if real and version is not None else None)
            made[at] = tuple(found)
        return made[at]

    def value(name: str, version: int) -> int:
        zero = sum(at.step < 0 for at in loop.wrote[name])
        return hash((name, *saw(loop.wrote[name][version + zero])))

    versions = {
        name: [value(name, loop.number[name, at]) for at in writers if at.step >= 0]
        for name, writers in loop.wrote.items()
    }
    return versions, logs
