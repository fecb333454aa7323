"""forward: the target model over the step's tokens, on the paged KV cache."""

from __future__ import annotations

import torch

from ..graph.node import OpContext
from ..models.attention import AttentionBatch
from .kind import Shape
from .machine import Machine
from .prepare_inputs import Inputs


def run(machine: Machine, shape: Shape, ctx: OpContext) -> None:
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
        long=inputs.long,
    )
    sample, prompt = inputs.sample, inputs.prompt
    wanted = [] if sample is None else [sample.logit_index.flatten()]
    if prompt is not None:
        wanted.append(prompt.lines)
    lines = torch.cat(wanted) if wanted else inputs.ids.new_empty(0)
    with torch.inference_mode():
        logits, hidden = machine.model.forward(inputs.ids, batch, lines)
        if sample is not None:
            index = sample.logit_index
            ctx.write("logits", logits[: index.numel()].view(*index.shape, -1))
        if prompt is not None:
            ctx.write("prompt_logits", logits[len(logits) - len(prompt.lines) :])
    if shape.features:
        ctx.write("hidden", hidden)
