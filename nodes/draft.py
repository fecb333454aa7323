"""draft: propose k tokens per row with a smaller causal LM, on its own paged cache.

The drafter shares the target's block tables, so blocks are granted once for both. What a row is
offered is a function of its own tokens alone: each round feeds the last two tokens (the one
before last was never fed if every draft was accepted), then the proposals one by one. A row that
cannot be drafted for gets −1, an explicit none.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..graph.node import Node, Op, OpContext, Read, Value
from ..models.attention import AttentionBatch
from ..models.paged_cache import PagedCache
from ..policies.noise import Purpose, gumbel
from ..policies.sampling import filtered_log_probs
from .kind import Built, NodeKind, NodeSpec
from .machine import Machine
from .prepare_inputs import Inputs, SampleRows, slots_of
from .sample import Sampled
from .tails import DraftTable


def follow_prompts(machine: Machine, inputs: Inputs, cache: PagedCache) -> None:
    """Give the drafter the prompt chunks of this step."""
    lens = inputs.query_lens[inputs.decodes :]
    if not lens:
        return
    first = len(inputs.ids) - sum(lens)
    positions = inputs.positions[first:]
    beyond = positions >= machine.drafter.context_length
    batch = AttentionBatch(
        query_lens=lens,
        block_tables=inputs.blocks[inputs.decodes :],
        positions=torch.where(beyond, -1, positions),
        slots=torch.where(beyond, 0, inputs.slots[first:]),
        cache=cache,
    )
    machine.drafter.forward(inputs.ids[first:], batch, inputs.ids.new_empty(0))


def propose(machine: Machine, inputs: Inputs, sampled: Sampled, cache: PagedCache) -> Tensor:
    """Drafts `[S, k]` that continue the sampled tokens; −1 from the first impossible one on."""
    sample = inputs.sample
    assert sample is not None, "tokens were sampled for these rows"
    limits = machine.limits
    rows = len(sample.base)
    # The row's tokens from the window's first input on; `counts` of them were settled now.
    sequence = torch.cat([sample.first[:, None], sampled.tokens], dim=1)
    ends = torch.stack([sampled.counts - 1, sampled.counts], dim=1)
    ids = sequence.gather(1, ends).clamp_min(0)
    positions = sample.base[:, None] + ends
    reach = min(limits.context_length, machine.drafter.context_length)
    last = torch.arange(1, rows + 1, device=ids.device)
    blocks = inputs.blocks[sample.lines]
    alive = torch.ones(rows, dtype=torch.bool, device=ids.device)
    drafts: list[Tensor] = []
    for _ in range(limits.draft_tokens):
        width = ids.shape[1]
        masked = torch.where(positions < reach, positions, -1).flatten()
        lines = torch.arange(rows, device=ids.device).repeat_interleave(
            width, output_size=rows * width
        )
        batch = AttentionBatch(
            query_lens=(width,) * rows,
            block_tables=blocks,
            positions=masked,
            slots=slots_of(blocks, lines, masked, limits.block_size),
            cache=cache,
        )
        logits, _ = machine.drafter.forward(ids.flatten(), batch, last * width - 1)
        alive = alive & (positions[:, -1] < reach)
        chosen = _choose(machine, sample, logits[:, : machine.vocab_size], positions[:, -1] + 1)
        drafts.append(torch.where(alive, chosen, -1))
        ids, positions = chosen[:, None], positions[:, -1:] + 1
    return torch.stack(drafts, dim=1)


def _choose(machine: Machine, sample: SampleRows, logits: Tensor, positions: Tensor) -> Tensor:
    """The drafter's token for each row at absolute `positions[S]`.

    Where the acceptance rule couples target and drafter, the draft is drawn with the very noise
    that the target will use at that position, so that equal distributions agree always.
    """
    if sample.greedy or not machine.couples_drafts:
        return logits.argmax(dim=-1)
    log_probs = filtered_log_probs(logits, sample.temperature, sample.top_k, sample.top_p)
    noise = gumbel(sample.seeds, positions - sample.prompt, Purpose.TARGET, logits.shape[1])
    drawn = (log_probs + noise).argmax(dim=-1)
    return torch.where(sample.temperature > 0, drawn, logits.argmax(dim=-1))


def build(spec: NodeSpec, machine: Machine) -> Built:
    shape = spec.shape
    rows, k = shape.max_rows, shape.draft_tokens

    def run(ctx: OpContext) -> None:
        inputs: Inputs | None = ctx.read("inputs")
        sampled: Sampled | None = ctx.read("sampled")
        before: DraftTable = ctx.read("drafts")
        cache = ctx.state("draft_kv")
        if inputs is None:
            ctx.write("drafts", before)
            return
        with torch.inference_mode():
            follow_prompts(machine, inputs, cache)
            sample = inputs.sample
            if sample is None or sampled is None:
                ctx.write("drafts", before)
                return
            fresh = propose(machine, inputs, sampled, cache)
            tags = torch.stack(
                [sample.generation, torch.full_like(sample.generation, ctx.step)], dim=1
            )
            ctx.write(
                "drafts",
                DraftTable(
                    tokens=before.tokens.index_copy(0, sample.rows, fresh),
                    tags=before.tags.index_copy(0, sample.rows, tags),
                ),
            )

    reads = (Read("inputs"), Read("sampled"), Read("drafts", 1), Read("draft_kv"))
    return Built(
        Node(
            spec.name,
            host=(Op(),),
            device=(Op(reads=reads, writes=("drafts", "draft_kv"), run=run),),
            stream="compute",
        ),
        values=(
            Value(
                "drafts",
                "device",
                "slots",
                nbytes=8 * rows * (k + 2),
                initial=DraftTable.empty(rows, k),
            ),
        ),
        states=("draft_kv",),
    )


KIND = NodeKind("draft", "propose k tokens per row with a smaller causal LM", build)
