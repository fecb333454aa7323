"""Step graphs in a few words, for tests: `R("a", "b@-1")` reads a, and b of the step before."""

from __future__ import annotations

from collections.abc import Sequence

from stepweave.graph.node import Node, Op, Place, Read, Value
from stepweave.graph.step_graph import StepGraph


def R(*names: str) -> tuple[Read, ...]:
    pairs = (name.partition("@-") for name in names)
    return tuple(Read(name, int(back or 0)) for name, _, back in pairs)


def op(
    reads: str = "", writes: str = "", cost: float | None = None, phase: str | None = None
) -> Op:
    return Op(R(*reads.split()), tuple(writes.split()), phase=phase, cost_us=cost)


def host(name: str, *ops: Op, actor: str = "driver", offset: int = 0, line: int = 0) -> Node:
    return Node(name, ops or (Op(),), actor=actor, offset=offset, line=line or None)


def device(
    name: str,
    launch: Op | Sequence[Op],
    *ops: Op,
    stream: str = "compute",
    actor: str = "driver",
    offset: int = 0,
    latency: float | None = None,
) -> Node:
    return Node(
        name,
        (launch,) if isinstance(launch, Op) else tuple(launch),
        ops,
        actor=actor,
        stream=stream,
        offset=offset,
        launch_latency_us=latency,
    )


def value(name: str, place: Place = "host", slots: int | None = None, nbytes: int = 0) -> Value:
    return Value(name, place, Value.default_storage(place, slots), slots, nbytes)


def staged(slots: int | None = None, **overrides: object) -> StepGraph:
    """A host that fills a staging buffer, which a stream copies and computes with."""
    return StepGraph.build(
        [
            host("schedule", op(writes="batch", cost=300)),
            device(
                "prepare",
                op("batch", "staging", 400),
                op("staging sampled@-1", "inputs", 30),
            ),
            device("forward", op("batch", cost=150), op("inputs kv", "sampled kv", 4000)),
        ],
        [
            value("batch"),
            value("staging", "pinned", slots),
            value("inputs", "device"),
            value("sampled", "device"),
        ],
        ["kv"],
        order="keep",
    )


def waits(plan: object) -> list[str]:
    """The waits of a plan as text."""
    return [f"{w.source} → {w.target} +{w.distance}" for w in plan.waits]  # type: ignore[attr-defined]
