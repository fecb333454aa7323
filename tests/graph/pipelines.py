"""Small pipelines that the tests of this folder share."""

from __future__ import annotations

from stepweave.graph.node import Node, Op, Read, Value
from stepweave.graph.step_graph import StepGraph


def reads(*names: str) -> tuple[Read, ...]:
    """`reads("batch", "sampled@-1")`."""
    parts = [name.partition("@-") for name in names]
    return tuple(Read(name, int(carry or 0)) for name, _, carry in parts)


def device_node(
    name: str,
    stream: str,
    *,
    reads: tuple[Read, ...] = (),
    writes: tuple[str, ...] = (),
    cost_us: float = 100,
    host: Op | None = None,
    actor: str = "driver",
) -> Node:
    """A node with one host op, which launches, and one device op."""
    launch = host or Op(cost_us=10)
    return Node(name, (launch,), (Op(reads, writes, cost_us=cost_us),), actor, stream)


def decode(staging_slots: int | None = 2) -> StepGraph:
    """A decode step with its output copied back on a stream of its own; commit is a step late."""
    return StepGraph.build(
        [
            Node("schedule", (Op(reads("finished@-2"), ("batch",), cost_us=300),)),
            device_node(
                "prepare",
                "compute",
                host=Op(reads("batch"), ("staging",), cost_us=400),
                reads=reads("staging", "sampled@-1"),
                writes=("inputs",),
                cost_us=30,
            ),
            device_node(
                "forward",
                "compute",
                reads=reads("inputs", "kv"),
                writes=("sampled", "kv"),
                cost_us=4000,
            ),
            device_node("d2h_copy", "copy", reads=reads("sampled"), writes=("out",), cost_us=40),
            Node("commit", (Op(reads("out"), ("finished",), cost_us=500),), offset=1),
        ],
        [
            Value("batch"),
            Value("staging", "pinned", "slots", staging_slots),
            Value("inputs", "device", "slots"),
            Value("sampled", "device", "slots", 2),
            Value("out", "pinned", "slots", 2),
            Value("finished"),
        ],
        ["kv"],
        order="keep",
        name="decode",
    )
