"""Keys that pass between classes of users, as values that their histories show.

A key is handed on as soon as the plan's leases permit: of two accesses of which one writes, the old
users' of step i comes before the new users' of step i + lease. So each such pair gets a value that
the one writes and the other reads, in a cell of its own for each step. What users of one class do
with their keys is a state of theirs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import replace

from ...graph.modes import Mode
from ...graph.node import Op, Read, State, Value
from ...graph.plan import Plan
from ...graph.step_graph import StepGraph, Vertex


def with_keys(plan: Plan) -> Plan:
    """The plan, with keys that change hands among what its ops access. As it is without classes."""
    if not plan.has_classes:
        return plan
    graph, values = plan.graph, dict(plan.graph.values)
    reads: dict[str, list[Read]] = defaultdict(list)
    writes: dict[str, list[str]] = defaultdict(list)
    for old, new, state, steps in _handed_on(plan):
        name = f"key of {state} from {old} to {new}"
        values[name] = Value(name, storage="fresh")
        writes[old].append(name)
        reads[new].append(Read(name, steps))
    keyed = {name for name, state in graph.states.items() if state.keys is not None}

    def apart(vertex: Vertex) -> Op:
        def own(name: str) -> str:
            return f"{name} of {vertex.op.class_of(name)}" if name in keyed else name

        op = vertex.op
        return replace(
            op,
            reads=(*(Read(own(r.name), r.carry) for r in op.reads), *reads[vertex.name]),
            writes=(*map(own, op.writes), *writes[vertex.name]),
        )

    changed = graph.with_ops(apart)
    every = [name for v in changed.vertices.values() for name in (*v.op.writes, *_read(v.op))]
    states = {name: State(name) for name in every if name not in values}
    modes = tuple(_by_class(mode, graph, keyed) for mode in graph.modes)
    return replace(plan, graph=replace(changed, values=values, states=states, modes=modes))


def _by_class(mode: Mode, graph: StepGraph, keyed: Collection[str]) -> Mode:
    """The mode, with what it leaves untouched under the names that it has by class."""
    untouched = {}
    for op, names in mode.untouched.items():
        own = graph.vertices[op].op
        untouched[op] = tuple(f"{n} of {own.class_of(n)}" if n in keyed else n for n in names)
    return replace(mode, untouched=untouched)


def _read(op: Op) -> list[str]:
    return [read.name for read in op.reads]


def _handed_on(plan: Plan) -> Iterator[tuple[str, str, str, int]]:
    """(op of the old users, op of the new ones, state, steps between them)."""
    for lease in plan.leases:
        users: dict[str, list[str]] = defaultdict(list)
        for name, vertex in plan.graph.vertices.items():
            if lease.state in (*vertex.op.writes, *_read(vertex.op)):
                users[vertex.op.class_of(lease.state)].append(name)
        for old in users[lease.source]:
            for new in users[lease.target]:
                ops = plan.graph.vertices
                if lease.state in (*ops[old].op.writes, *ops[new].op.writes):
                    yield old, new, lease.state, lease.steps
