"""What `eagle` and `eagle3` compute: passes of a head over the tokens of a step, shifted by one."""

from __future__ import annotations

import torch
from torch import Tensor

from ...models.attention import AttentionBatch
from ...models.eagle import EagleHead
from ...models.paged_cache import SCRATCH_SLOT, PagedCache
from ...policies.acceptance import Acceptance
from ..data import Inputs, Kept, Proposal, Sampled
from .proposal import FirstPass, chain


def shifted(inputs: Inputs, sampled: Sampled | None) -> Tensor:
    """The token after each token of the step, `[T]`.

    −1 where it is not known, or of no use: after a masked token, a refused draft, and tokens of a
    row that is not drafted for.
    """
    known = inputs.following
    if sampled is not None:
        known = torch.cat([sampled.tokens.flatten(), known])
    return known.index_select(0, inputs.next_index)


def propose(
    head: EagleHead,
    inputs: Inputs,
    sampled: Sampled | None,
    features: Tensor,
    cache: PagedCache,
    kept: Kept | None,
    rule: Acceptance,
    vocab_size: int,
    context_length: int,
) -> Proposal | None:
    """Drafts that continue the sampled tokens. `features[T, F]` as the head wants them."""
    sample = inputs.sample
    ids, positions = shifted(inputs, sampled), inputs.positions
    unknown = ids < 0
    if head.context_length < context_length:
        unknown.logical_or_(positions >= head.context_length)
    last = ends = inputs.ids.new_empty(0)
    if sample is not None and sampled is not None:
        ends = sampled.counts - 1
        last = sample.logit_index.gather(1, ends[:, None])[:, 0]
    first = FirstPass(
        ids,
        positions.masked_fill(unknown, -1),
        inputs.cache_slots.masked_fill(unknown, SCRATCH_SLOT),
        inputs.query_lens,
        last,
    )
    if kept is not None:
        first, token_index = first.without_padding(kept)
        features = features[token_index]
    logits, state = head.forward(
        first.ids, head.fuse(features), first.batch(inputs.blocks, cache), first.last
    )
    if sample is None or sampled is None or sample.draft_width == 0:
        return None

    def following(tokens: Tensor, batch: AttentionBatch) -> Tensor:
        nonlocal state
        logits, state = head.forward(tokens, state, batch)
        return logits

    return chain(
        rule,
        vocab_size,
        inputs,
        logits,
        sample.window_start + ends,
        min(context_length, head.context_length),
        cache,
        following,
        input_is_ahead=1,
        context_length=context_length,
    )
