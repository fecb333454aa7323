"""bias_logits: add a bias to the logits of some tokens, between `forward` and `sample`.

A whole node kind of somebody else's. It says what it reads and writes; where it waits, and for
what, is derived like that of every other node.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from stepweave import Node, Op, OpContext, Read, Value
from stepweave.nodes import Built, NodeKind, NodeSpec, Options
from stepweave.nodes.machine import Machine


class BiasOptions(Options):
    """Which tokens are biased, and by how much."""

    tokens: tuple[int, ...] = Field(description="The ids of the tokens.")
    bias: float = Field(default=1.0, description="What is added to their logits.")


def build(spec: NodeSpec, machine: Machine) -> Built:
    options = spec.options
    assert isinstance(options, BiasOptions)

    def run(ctx: OpContext) -> None:
        logits: Tensor | None = ctx.read("logits")
        if logits is None:
            return  # no row of this step samples: write nothing, which is an explicit none
        with torch.inference_mode():
            added = logits.new_zeros(logits.shape[-1])
            added[torch.tensor(options.tokens, dtype=torch.long)] = options.bias
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
    "bias_logits", "add a bias to the logits of some tokens", build, options=BiasOptions
)
