"""What `draft_model` computes: passes of a smaller model over the newest tokens of each row."""

from __future__ import annotations

import torch
from torch import Tensor

from ...graph.pieces import Pieces
from ...models.attention import AttentionBatch
from ...models.causal_lm import CausalLM
from ...models.paged_cache import PagedCache
from ...models.translated import TranslatedLM
from ...policies.acceptance import Acceptance
from ..data import DraftMask, Inputs, Kept, Proposal, Sampled
from .draft_masks import permitted
from .places import cache_slots_of
from .proposal import FirstPass, chain


def follow_prompts(
    drafter: CausalLM | TranslatedLM,
    inputs: Inputs,
    cache: PagedCache,
    pieces: Pieces | None = None,
) -> None:
    """Give the drafter the prompt chunks of this step; the pass may be recorded in `pieces`."""
    lens = inputs.query_lens[inputs.decodes :]
    if not lens:
        return
    first = len(inputs.ids) - sum(lens)
    positions = inputs.positions[first:]
    beyond = positions >= drafter.context_length
    batch = AttentionBatch(
        query_lens=lens,
        block_tables=inputs.blocks[inputs.decodes :],
        positions=torch.where(beyond, -1, positions),
        slots=torch.where(beyond, 0, inputs.cache_slots[first:]),
        cache=cache,
        long=None if inputs.long is None else inputs.long[first:],
        blocks=inputs.row_blocks and inputs.row_blocks[inputs.decodes :],
    )
    drafter.forward(inputs.ids[first:], batch, inputs.ids.new_empty(0), pieces=pieces)


def propose(
    drafter: CausalLM | TranslatedLM,
    inputs: Inputs,
    sampled: Sampled,
    cache: PagedCache,
    kept: Kept | None,
    allowed: DraftMask | None,
    rule: Acceptance,
    vocab_size: int,
    context_length: int,
    pieces: Pieces | None = None,
    *,
    unseen: bool = False,
) -> Proposal | None:
    """Drafts that continue the sampled tokens, by the drafter's own continuation.

    The first of them is one of those `allowed`. Passes of a step with prompts may be recorded in
    `pieces`. `unseen`: any token of a window may be another than the drafter has drafted, so that
    the cache has no keys of it.
    """
    if inputs.only_decodes:
        pieces = None
    sample = inputs.sample
    assert sample is not None, "tokens were sampled for these rows"
    if sample.draft_width == 0:
        return None
    rows = len(sample.window_start)
    # The row's tokens from the window's first input on; `counts` of them were settled now.
    sequence = torch.cat([sample.first[:, None], sampled.tokens], dim=1)
    if unseen:
        fed = torch.arange(sequence.shape[1], device=sequence.device).expand(rows, -1)
    else:  # the last but one is new where all drafts were kept
        fed = torch.stack([sampled.counts - 1, sampled.counts], dim=1)
    each = fed.shape[1]
    ids = sequence.gather(1, fed).clamp_min(0)
    positions = sample.window_start[:, None] + fed
    reach = min(context_length, drafter.context_length)
    wanted = (sample.draft_limit > 0)[:, None]
    masked = torch.where((positions < reach) & wanted, positions, -1)
    batch_order = torch.arange(rows, device=ids.device)
    if unseen:
        masked = masked.masked_fill(fed > sampled.counts[:, None], -1)
        last, newest = each * batch_order + sampled.counts, sample.window_start + sampled.counts
    else:
        last, newest = 2 * batch_order + 1, positions[:, 1]
    blocks = inputs.blocks_of_samples
    slots = cache_slots_of(blocks, masked, cache.block_size).flatten()
    long = None if inputs.long_rows is None else inputs.long_rows.repeat_interleave(each)
    first = FirstPass(ids.flatten(), masked.flatten(), slots, (each,) * rows, last, long)
    if kept is not None and not unseen:  # which of the last two are new
        first, _ = first.without_padding(kept)
    logits, _ = drafter.forward(first.ids, first.batch(blocks, cache), first.last, pieces=pieces)

    def following(tokens: Tensor, batch: AttentionBatch) -> Tensor:
        return drafter.forward(tokens, batch, batch_order, pieces=pieces)[0]

    return chain(
        rule,
        vocab_size,
        inputs,
        permitted(logits, allowed, vocab_size),
        newest,
        reach,
        cache,
        following,
        input_is_ahead=0,
        context_length=context_length,
    )
