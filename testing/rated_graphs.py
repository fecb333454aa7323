"""Random step graphs whose nodes fire at several rates, some in ways that cannot be ordered."""

from __future__ import annotations

from random import Random
from typing import Literal

from ..graph.node import Node, Op, Place, Read, Value
from ..graph.step_graph import StepGraph

RATES = ((1, 1), (1, 1), (1, 1), (2, 1), (3, 1), (1, 2), (1, 3))  # rate, every
MOST_NODES = 5


def random_rated_graph(random: Random, *, order: Literal["keep", "search"] = "keep") -> StepGraph:
    """Two to five nodes on up to two threads and two streams, with values, states and offsets.

    Two in three read only what the listing has written before, or what an earlier step wrote.
    """
    wild = random.random() < 0.33
    streams = [None, *["compute", "copy"][: random.randint(0, 2)]]
    threads = ["driver", "helper"][: random.choice((1, 1, 2))]
    offsets = random.choice(((0,), (0,), (0, 0, 1), (0, 1, -1)))
    states = ["s0", "s1"][: random.choice((0, 0, 1, 2))]
    values: list[Value] = []
    wrote: list[int] = []  # the node that writes each value
    nodes: list[Node] = []
    shapes = [
        _shape(random, f"n{place}", streams, threads, offsets)
        for place in range(random.randint(2, MOST_NODES))
    ]
    for place, shape in enumerate(shapes):
        for _ in range(random.choice((0, 1, 1, 1, 2))):
            values.append(_value(random, len(values), shape.stream is not None))
            wrote.append(place)
    for place, shape in enumerate(shapes):
        far = "host" if shape.stream else "device"
        near = [k for k, value in enumerate(values) if value.place != far]
        reads: dict[Read, None] = {}
        for k in random.sample(near, min(len(near), random.randint(0, 3))):
            reads[_read(random, values[k].name, wrote[k], place, shapes, wild)] = None
        writes = [value.name for k, value in enumerate(values) if wrote[k] == place]
        for state in states:
            access = random.choice(("", "", "read", "write", "both"))
            if access in ("read", "both"):
                reads[Read(state)] = None
            if access in ("write", "both"):
                writes.append(state)
        op = Op(tuple(reads), tuple(writes), cost_us=float(random.choice((1, 5, 10, 40))))
        launch = Op(cost_us=float(random.choice((1, 5))))
        nodes.append(_with(shape, op, launch))
    touched = {n for node in nodes for op in (*node.host, *node.device) for n in _names(op)}
    return StepGraph.build(
        nodes, values, [state for state in states if state in touched], order=order, name="rated"
    )


def _shape(
    random: Random,
    name: str,
    streams: list[str | None],
    threads: list[str],
    offsets: tuple[int, ...],
) -> Node:
    rate, every = random.choice(RATES)
    return Node(
        name,
        actor=random.choice(threads),
        stream=random.choice(streams),
        offset=random.choice(offsets),
        rate=rate,
        every=every,
        first=random.randrange(every),
    )


def _value(random: Random, number: int, on_device: bool) -> Value:
    place: Place = random.choice(("device", "pinned") if on_device else ("host", "pinned"))
    slots = random.choice((None, None, None, 1, 2, 3, 5))
    storage = Value.default_storage(place, slots)
    return Value(f"v{number}", place, storage, slots)


def _read(
    random: Random, value: str, writer: int, reader: int, nodes: list[Node], wild: bool
) -> Read:
    """Of what is listed below, a step before; where the offsets ask for more, so much more."""
    least = max(0, nodes[writer].offset - nodes[reader].offset + (writer >= reader))
    carry = random.choice((0, 1)) if wild and writer != reader else least
    carry += random.choice((0, 0, 0, 1))
    rate = nodes[writer].rate
    firing = random.randrange(rate) if rate > 1 and random.random() < 0.3 else None
    return Read(value, carry, firing)


def _with(shape: Node, op: Op, launch: Op) -> Node:
    host, device = ((op,), ()) if shape.stream is None else ((launch,), (op,))
    return Node(
        shape.name,
        host,
        device,
        actor=shape.actor,
        stream=shape.stream,
        offset=shape.offset,
        rate=shape.rate,
        every=shape.every,
        first=shape.first,
    )


def _names(op: Op) -> set[str]:
    return {*op.writes, *(read.name for read in op.reads)}
