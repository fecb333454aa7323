"""prepare_inputs: turn a scheduled batch into model inputs, on the device."""

from __future__ import annotations

from ...graph.node import Node, Op, Read, Value
from ..kind import Built, NodeKind, NodeSpec
from ..later import later
from ..machine import Machine


def build(spec: NodeSpec, machine: Machine) -> Built:
    shape = spec.shape
    reads = [Read("staging"), Read("tails", 1), Read("history")]
    if shape.draft_tokens > 0:
        reads.append(Read("drafts", 1))
    return Built(
        Node(
            spec.name,
            host=(
                Op(
                    reads=(Read("batch"),),
                    writes=("staging",),
                    run=later("stepweave.nodes.prepare_inputs:stage"),
                ),
            ),
            device=(
                Op(
                    reads=tuple(reads),
                    writes=("inputs", "history"),
                    run=later("stepweave.nodes.prepare_inputs:run", machine, shape),
                ),
            ),
            stream="compute",
        ),
        values=(
            Value(
                "staging",
                "pinned",
                "slots",
                nbytes=40 * shape.token_budget + 2048 * shape.max_rows,
                allocate=later("stepweave.nodes.prepare_inputs:new_staging", machine),
            ),
            Value("inputs", "device", "slots", nbytes=48 * shape.token_budget),
        ),
        states=("history",),
    )


KIND = NodeKind(
    "prepare_inputs", "stage the batch and build model inputs from the device hand-off", build
)
