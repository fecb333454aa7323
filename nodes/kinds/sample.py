"""sample: verify the draft window and draw the next token, on the device."""

from __future__ import annotations

from ...graph.node import Node, Op, Read, Value
from ..kind import Built, NodeKind, NodeSpec
from ..later import later
from ..machine import Machine


def build(spec: NodeSpec, machine: Machine) -> Built:
    shape = spec.shape
    reads = [
        Read("inputs"),
        Read("logits"),
        Read("prompt_logits"),
        Read("tails", 1),
        Read("history"),
    ]
    if shape.structured:
        reads.append(Read("mask"))
    if shape.draws:
        reads.append(Read("draft_probs"))
    op = Op(
        reads=tuple(reads),
        writes=("sampled", "tails", "history"),
        run=later("stepweave.nodes.sample:run", machine, shape),
    )
    return Built(
        Node(spec.name, host=(Op(),), device=(op,), stream="compute"),
        values=(
            Value(
                "sampled", "device", "slots", nbytes=8 * shape.max_rows * (shape.draft_tokens + 3)
            ),
            Value(
                "tails",
                "device",
                "slots",
                nbytes=16 * shape.max_rows,
                initial=later("stepweave.nodes.sample:first_tails", machine, shape),
            ),
        ),
        states=("history", "draft_probs") if shape.draws else ("history",),
    )


KIND = NodeKind("sample", "mask, verify the draft window, draw the next token", build)
