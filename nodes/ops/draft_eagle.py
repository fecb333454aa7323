"""draft_eagle: propose tokens with an EAGLE head, from the target's own hidden states.

The head at position p takes the target's feature of token p and the token at p + 1, and predicts
the token at p + 2 (Li et al. 2024, arXiv:2401.15077; EAGLE-3: 2025, arXiv:2503.01840). So its
first pass runs over the very tokens of the step, shifted by one: prompt chunks and draft windows
alike, on the target's slots. What follows a window's tokens are the tokens just sampled; places
after the accepted ones are masked, and their keys are overwritten by the next window.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...models.attention import AttentionBatch
from ...models.eagle import EagleHead
from ...models.paged_cache import PagedCache
from ...policies.acceptance import Acceptance
from ..data import Inputs, Kept, Proposal, Sampled
from .proposal import FirstPass, chain
from .transfer import upload


def shifted(inputs: Inputs, sampled: Sampled | None) -> tuple[Tensor, Tensor]:
    """The token after each token of the step, and the positions `[T]` whose next token is known.

    A position is −1 for a masked token, a refused draft, and a row that is not drafted for.
    """
    sample = inputs.sample
    if sample is None or sampled is None:
        return inputs.following.clamp_min(0), torch.where(
            inputs.following < 0, -1, inputs.positions
        )
    row = inputs.sample_line.clamp_min(0)
    of_window = (inputs.sample_line >= 0) & (inputs.following < 0)
    fresh = sampled.tokens[row, inputs.column]
    ids = torch.where(of_window, fresh, inputs.following)
    settled = ~of_window | (inputs.column < sampled.counts[row])
    wanted = (inputs.sample_line < 0) | (sample.draft_limit[row] > 0)
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
        ids, masked, torch.where(masked < 0, 0, inputs.slots), inputs.query_lens, last
    )
    if kept is not None:
        lines = upload(kept.lines, ids.device)
        first, features = first.without_padding(lines, kept.query_lens), features[lines]
    logits, hidden = head.forward(
        first.ids, head.fuse(features), first.batch(inputs.blocks, cache), first.last
    )
    if sample is None or sampled is None or sample.draft_width == 0:
        return None
    state = hidden[first.last]
    rows = torch.arange(len(last), device=last.device)

    def following(tokens: Tensor, batch: AttentionBatch) -> Tensor:
        nonlocal state
        logits, state = head.forward(tokens, state, batch, rows)
        return logits

    return chain(
        rule,
        vocab_size,
        inputs,
        logits,
        sample.base + sampled.counts - 1,
        reach,
        cache,
        following,
        input_is_ahead=1,
    )
