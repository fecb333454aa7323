"""bitmask: fill the grammar masks of a step while its forward runs, and cut invalid drafts."""

from __future__ import annotations

from ...graph.node import Node, Op, Read, Value
from ..kind import Built, NodeKind, NodeSpec
from ..later import later
from ..machine import Machine


def build(spec: NodeSpec, machine: Machine) -> Built:
    shape = spec.shape
    speculates = shape.draft_tokens > 0
    reads = [Read("batch"), Read("matchers")] + ([Read("host_drafts", 1)] if speculates else [])
    mask_bytes = 131072 // 8 * shape.max_rows * (shape.draft_tokens + 1)
    fill = Op(
        reads=tuple(reads),
        writes=("matchers", "mask_host"),
        run=later("stepweave.nodes.bitmask:fill", shape),
    )
    copy = Op(
        reads=(Read("mask_host"),),
        writes=("mask",),
        run=later("stepweave.nodes.bitmask:copy", machine),
    )
    return Built(
        Node(spec.name, host=(fill,), device=(copy,), stream="compute"),
        values=(
            Value(
                "mask_host",
                "pinned",
                "slots",
                nbytes=mask_bytes,
                allocate=later("stepweave.nodes.bitmask:new_buffer", machine, shape),
            ),
            Value("mask", "device", "slots", nbytes=mask_bytes),
        ),
        states=("matchers",),
    )


KIND = NodeKind(
    "bitmask", "fill grammar masks per draft position; cut drafts that break them", build
)
