"""forward: the target model over the step's tokens, on the paged KV cache."""

from __future__ import annotations

from ...graph.node import Node, Op, Read, Value
from ..kind import Built, NodeKind, NodeSpec
from ..later import later
from ..machine import Machine


def build(spec: NodeSpec, machine: Machine) -> Built:
    shape = spec.shape
    writes = ["kv", "logits", "prompt_logits"] + (["hidden"] if shape.features else [])
    logits_bytes = 4 * 131072 * shape.max_rows * (shape.draft_tokens + 1)
    values = [
        Value("logits", "device", "slots", nbytes=logits_bytes),
        Value("prompt_logits", "device", "slots", nbytes=4 * 131072 * shape.token_budget),
    ]
    if shape.features:
        values.append(Value("hidden", "device", "slots", nbytes=2 * 12288 * shape.token_budget))
    op = Op(
        reads=(Read("inputs"), Read("kv")),
        writes=tuple(writes),
        run=later("stepweave.nodes.forward:run", machine, shape),
    )
    return Built(
        Node(spec.name, host=(Op(),), device=(op,), stream="compute"),
        values=tuple(values),
        states=("kv",),
    )


KIND = NodeKind("forward", "run the target model; logits [S, W, V] of the sampling rows", build)
