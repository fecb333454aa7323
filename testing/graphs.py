"""Random step graphs, for tests of anything that takes a graph or a plan.

The graphs are small, valid and nasty: several host threads and streams, carried values, pinned
slot counts, phases, offsets, states. Two in three follow their listing order and so have a plan;
of the wild rest, many cannot be ordered by any set of waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Literal, Protocol, TypeVar

from ..graph import arguments
from ..graph.node import Node, Op, Read, Side, Storage, Value
from ..graph.step_graph import StepGraph

T = TypeVar("T")


class Pick(Protocol):
    """Choose one of several options: a seeded generator, or a property-test library's draw."""

    def __call__(self, options: Sequence[T], /) -> T: ...


def random_step_graph(
    seed: int, *, most_nodes: int = 7, order: Literal["keep", "search"] = "keep"
) -> StepGraph:
    """A random valid graph; the same seed gives the same graph on every machine.

    Raises `GraphError` if `most_nodes` is not a whole number from 1 on.
    """
    arguments.whole("random_step_graph", "most_nodes", most_nodes, 1)
    random = Random(seed)

    def pick(options: Sequence[T], /) -> T:
        return options[random.randrange(len(options))]

    return grow_step_graph(pick, most_nodes=most_nodes, order=order)


@dataclass
class _Sketch:
    """An op while it grows."""

    node: int
    side: Side
    offset: int
    reads: list[Read] = field(default_factory=list)
    writes: list[str] = field(default_factory=list)


def grow_step_graph(
    pick: Pick, *, most_nodes: int = 7, order: Literal["keep", "search"] = "keep"
) -> StepGraph:
    """A random valid graph from a source of choices; the first options are the simplest."""
    wild = pick([False, False, True])
    threads = ["driver", "helper"][: pick([1, 1, 2])]
    streams = ["compute", "copy", "side"][: pick([0, 1, 2, 2, 3])]
    offsets = pick([[0], [0], [0, 0, 0, 1], [0, 0, -1, 1, 2]])
    nodes: list[Node] = []
    ops: list[_Sketch] = []
    for index in range(pick(range(2, most_nodes + 1))):
        stream = pick([None, *streams, *streams])
        nodes.append(
            Node(
                name=f"n{index}",
                actor=pick(threads),
                stream=stream,
                offset=pick(offsets),
            )
        )
        for side, there in (("host", True), ("device", stream is not None)):
            for _ in range(pick([1, 1, 1, 2]) if there else 0):
                ops.append(
                    _Sketch(index, "device" if side == "device" else "host", nodes[-1].offset)
                )
    values = _grow_values(pick, ops)
    states = ["s0", "s1"][: pick([0, 0, 1, 2])]
    for op in ops:
        _grow_reads(pick, op, ops, values, wild)
        for state in states:
            access = pick(["", "", "read", "write", "both"])
            if access in ("read", "both"):
                op.reads.append(Read(state))
            if access in ("write", "both"):
                op.writes.append(state)
    return StepGraph.build(
        [
            replace(
                node,
                host=_phases(pick, [op for op in ops if (op.node, op.side) == (index, "host")]),
                device=_phases(pick, [op for op in ops if (op.node, op.side) == (index, "device")]),
            )
            for index, node in enumerate(nodes)
        ],
        values,
        [state for state in states if any(_touches(op, state) for op in ops)],
        order=order,
        name="random",
    )


def _grow_values(pick: Pick, ops: Sequence[_Sketch]) -> list[Value]:
    values: list[Value] = []
    for op in ops:
        for _ in range(pick([1, 0, 1, 2])):
            name = f"v{len(values)}"
            op.writes.append(name)
            place = pick(["host", "pinned"]) if op.side == "host" else pick(["device", "pinned"])
            slots = pick([None, None, None, None, 2, 3, 1])
            storage: Storage = Value.default_storage("host" if place == "host" else "device", slots)
            if place == "device" and slots is None and pick([False, True]):
                storage = "fresh"
            values.append(
                Value(
                    name,
                    place="host"
                    if place == "host"
                    else "pinned"
                    if place == "pinned"
                    else "device",
                    storage=storage,
                    slots=slots,
                    nbytes=pick([0, 8, 64]),
                )
            )
    return values


def _grow_reads(
    pick: Pick, op: _Sketch, ops: Sequence[_Sketch], values: Sequence[Value], wild: bool
) -> None:
    """Unless wild, only reads that the listing order serves without any wait."""
    reach = ("host", "pinned") if op.side == "host" else ("device", "pinned")
    near = [value for value in values if value.place in reach]
    here = next(place for place, other in enumerate(ops) if other is op)
    for _ in range(pick([1, 0, 2, 3]) if near else 0):
        value = pick(near)
        wrote = next(place for place, other in enumerate(ops) if value.name in other.writes)
        ahead = ops[wrote].offset - op.offset
        least, most = ahead + (wrote >= here), (value.slots or 9) + ahead - (wrote <= here)
        carry = max(least, 0) + pick([0, 0, 0, 1])
        if wild:
            carry = pick([1, 2] if wrote == here else [0, 0, 1, 2])
        elif carry > most:
            continue  # too few slots
        if Read(value.name, carry) not in op.reads:
            op.reads.append(Read(value.name, carry))


def _phases(pick: Pick, sketches: Sequence[_Sketch]) -> tuple[Op, ...]:
    return tuple(
        Op(
            reads=tuple(sketch.reads),
            writes=tuple(sketch.writes),
            phase=None if len(sketches) == 1 else f"p{index}",
            cost_us=float(pick([10, 1, 5, 40, 200])),
        )
        for index, sketch in enumerate(sketches)
    )


def _touches(op: _Sketch, state: str) -> bool:
    return state in op.writes or any(read.name == state for read in op.reads)
