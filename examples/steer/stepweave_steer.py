"""bias_logits: add a bias to the logits of some tokens, between `forward` and `sample`.

A whole node kind of somebody else's. It says what it reads and writes; where it waits, and for
what, is derived like that of every other node.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stepweave.graph.errors import GraphError
from stepweave.graph.node import Node, Op, OpContext, Read, Value
from stepweave.nodes.kind import Built, NodeKind, NodeSpec
from stepweave.nodes.machine import Machine


def build(spec: NodeSpec, machine: Machine) -> Built:
    """Options: `tokens`, a list of ids; `bias`, added to their logits (default 1)."""
    tokens, bias = spec.options.get("tokens", []), spec.options.get("bias", 1.0)
    if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
        raise GraphError(
            f"node {spec.name!r}: `tokens` must be a list of token ids, not {tokens!r}",
            code="SW-OPTION",
            line=spec.line,
        )

    def run(ctx: OpContext) -> None:
        logits: Tensor | None = ctx.read("logits")
        if logits is None:
            return  # no row of this step samples: write nothing, which is an explicit none
        with torch.inference_mode():
            added = logits.new_zeros(logits.shape[-1])
            added[torch.tensor(tokens, dtype=torch.long)] = float(bias)
            ctx.write("biased", logits + added)  # anew: what a node reads it must not change

    return Built(
        Node(
            spec.name,
            device=(Op(reads=(Read("logits"),), writes=("biased",), run=run),),
            stream="compute",
        ),
        values=(Value("biased", "device", "slots"),),
    )


KIND = NodeKind(
    "bias_logits", "add a bias to the logits of some tokens", build, options=("tokens", "bias")
)
