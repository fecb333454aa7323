"""d2h_counts: how many tokens each row got, on the host, before the drafter is launched."""

from __future__ import annotations

from ...graph.node import Node, Op, Read, Value
from ..kind import Built, NodeKind, NodeSpec
from ..later import later
from ..machine import Machine


def build(spec: NodeSpec, machine: Machine) -> Built:
    rows = spec.shape.max_rows
    op = Op(
        reads=(Read("sampled"),),
        writes=("host_counts",),
        run=later("stepweave.nodes.d2h_counts:run"),
    )
    return Built(
        Node(spec.name, host=(Op(),), device=(op,), stream="copy"),
        values=(
            Value(
                "host_counts",
                "pinned",
                "slots",
                nbytes=8 * rows,
                allocate=later("stepweave.nodes.d2h_counts:new_counts", machine, rows),
            ),
        ),
    )


KIND = NodeKind(
    "d2h_counts", "copy the number of sampled tokens to the host, for the drafter", build
)
