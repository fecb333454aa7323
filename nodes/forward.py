"""forward: the target model over the step's tokens, on the paged KV cache."""

from __future__ import annotations

import torch

from ..graph.node import Node, Op, OpContext, Read, Value
from ..models.attention import AttentionBatch
from .kind import Built, NodeKind, NodeSpec
from .machine import Machine
from .prepare_inputs import Inputs


def build(spec: NodeSpec, machine: Machine) -> Built:
    def run(ctx: OpContext) -> None:
        inputs: Inputs | None = ctx.read("inputs")
        cache = ctx.state("kv")
        if inputs is None:
            return
        batch = AttentionBatch(
            query_lens=inputs.query_lens,
            block_tables=inputs.blocks,
            positions=inputs.positions,
            slots=inputs.slots,
            cache=cache,
        )
        sample = inputs.sample
        wanted = inputs.ids.new_empty(0) if sample is None else sample.logit_index.flatten()
        with torch.inference_mode():
            logits, _ = machine.model.forward(inputs.ids, batch, wanted)
        if sample is not None:
            ctx.write("logits", logits.view(*sample.logit_index.shape, -1))

    return Built(
        Node(
            spec.name,
            host=(Op(),),
            device=(Op(reads=(Read("inputs"), Read("kv")), writes=("kv", "logits"), run=run),),
            stream="compute",
        ),
        values=(
            Value(
                "logits",
                "device",
                "slots",
                nbytes=4 * 131072 * spec.shape.max_rows * (spec.shape.draft_tokens + 1),
            ),
        ),
        states=("kv",),
    )


KIND = NodeKind("forward", "run the target model; logits [S, k + 1, V] of the sampling rows", build)
