"""commit: settle what a step produced, in two phases."""

from __future__ import annotations

from ...graph.node import Node, Op, Read, Value
from ..kind import Built, NodeKind, NodeSpec
from ..later import later
from ..machine import Machine


def build(spec: NodeSpec, machine: Machine) -> Built:
    structured = spec.shape.structured
    states = ("requests", "matchers") if structured else ("requests",)
    return Built(
        Node(
            spec.name,
            host=(
                Op(
                    reads=(Read("batch"), Read("host_sampled"), *map(Read, states)),
                    writes=(*states, "settled"),
                    phase="advance",
                    run=later("stepweave.nodes.commit:run_advance", structured),
                ),
                Op(
                    reads=(Read("settled"), Read("requests")),
                    writes=("requests",),
                    phase="finish",
                    run=later("stepweave.nodes.commit:run_finish"),
                ),
            ),
        ),
        values=(Value("settled"),),
        states=states,
    )


KIND = NodeKind("commit", "settle tokens, advance grammars, stream text, end requests", build)
