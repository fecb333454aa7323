"""What `eagle` and `eagle3` compute: passes of a head over the tokens of a step, shifted by one."""

from __future__ import annotations

import torch
from torch import Tensor

from ...models.attention import AttentionBatch
from ...models.eagle import EagleHead
from ...models.paged_cache import PagedCache
from ...policies.acceptance import Acceptance
from ..data import Inputs, Kept, Proposal, Sampled
from .proposal import FirstPass, chain


def shifted(inputs: Inputs, sampled: Sampled | None) -> tuple[Tensor, Tensor]:
    """The token after each token of the step, and the positions `[T]` whose next token is known.

    A position is −1 for a masked token, a refused draft, and a row that is not drafted for.
    """
    sample = inputs.sample
    if sample is None or sampled is None:
        return inputs.following.clamp_min(0), torch.where(
            inputs.following < 0, -1, inputs.positions
        )
    sample_index = inputs.sample_index.clamp_min(0)
    of_window = (inputs.sample_index >= 0) & (inputs.following < 0)
    fresh = sampled.tokens[sample_index, inputs.window_position]
    ids = torch.where(of_window, fresh, inputs.following)
    settled = ~of_window | (inputs.window_position < sampled.counts[sample_index])
    wanted = (inputs.sample_index < 0) | (sample.draft_limit[sample_index] > 0)
    known = (ids >= 0) & settled & wanted
    return ids.clamp_min(0), torch.where(known, inputs.positions, -1)


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
    ids, positions = shifted(inputs, sampled)
    reach = min(context_length, head.context_length)
    masked = torch.where(positions < reach, positions, -1)
    last = inputs.ids.new_empty(0)
    if sample is not None and sampled is not None:
        last = sample.logit_index.gather(1, sampled.counts[:, None] - 1)[:, 0]
    first = FirstPass(
        ids, masked, torch.where(masked < 0, 0, inputs.cache_slots), inputs.query_lens, last
    )
    if kept is not None:
        first, token_index = first.without_padding(kept)
        features = features[token_index]
    logits, hidden = head.forward(
        first.ids, head.fuse(features), first.batch(inputs.blocks, cache), first.last
    )
    if sample is None or sampled is None or sample.draft_width == 0:
        return None
    state = hidden[first.last]
    every_row = torch.arange(len(last), device=last.device)

    def following(tokens: Tensor, batch: AttentionBatch) -> Tensor:
        nonlocal state
        logits, state = head.forward(tokens, state, batch, every_row)
        return logits

    return chain(
        rule,
        vocab_size,
        inputs,
        logits,
        sample.window_start + sampled.counts - 1,
        reach,
        cache,
        following,
        input_is_ahead=1,
    )
