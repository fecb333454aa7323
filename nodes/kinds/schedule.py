"""schedule: choose the rows of a step, and grant rows and KV blocks, before the step begins."""

from __future__ import annotations

from ...graph.node import Node, Op, Read, Value
from ..kind import Built, NodeKind, NodeSpec
from ..later import later
from ..machine import Machine


def build(spec: NodeSpec, machine: Machine) -> Built:
    op = Op(
        reads=(Read("requests"),),
        writes=("requests", "batch"),
        run=later("stepweave.nodes.schedule:schedule", machine),
    )
    return Built(Node(spec.name, host=(op,)), values=(Value("batch"),), states=("requests",))


KIND = NodeKind(
    "schedule",
    "choose the rows of a step; grant device rows and KV blocks, or preempt",
    build,
    runs_ahead=True,
)
