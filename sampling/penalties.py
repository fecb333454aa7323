"""Penalties on what was written before, for every window position of a draft window.

The tokens that a window position comes after are the row's history on the device and the drafts
before the position, so nothing is asked of the host and no draft has to be settled first.
"""

from __future__ import annotations

import torch
from torch import Tensor


def apply_penalties(
    logits: Tensor,
    drafts: Tensor,
    history: Tensor,
    window_start: Tensor,
    prompt: Tensor,
    repetition: Tensor,
    presence: Tensor,
    frequency: Tensor,
) -> Tensor:
    """Logits `[S, W, V]` after the repetition, then the frequency and the presence penalty.

    Position j is judged as if the drafts before it were accepted; a draft at or after the first
    that is no token has no influence, nor has anything in `history` after `window_start`. A row
    whose three values are neutral keeps its bits.

    The repetition penalty (Keskar et al. 2019, arXiv:1909.05858) divides a logit that is at least
    0 by its value and multiplies one below 0, once for each distinct token of prompt and output.
    The others are subtracted by the counts in the output alone: `frequency` times the count, and
    `presence` where there is a count.

    Args:
        logits: `[S, W, V]`, W = k + 1 positions.
        drafts: `[S, k]` int64, -1 where there is none.
        history: `[S, C]` int: each row's tokens from position 0.
        window_start: `[S]` int64: position of the last token in `history` that counts.
        prompt: `[S]` int64: tokens of the prompt.
        repetition: `[S]` float > 0; 1 is off.
        presence: `[S]` float; 0 is off.
        frequency: `[S]` float; 0 is off.
    """
    rows, width, vocab = logits.shape
    at = torch.arange(history.shape[1], device=history.device)
    counts = (at <= window_start[:, None]) & (history >= 0) & (history < vocab)
    # What does not count adds 0, and not all of it to the same token: atomics would queue there.
    tokens = torch.where(counts, history, at % vocab).to(torch.int64)
    seen = torch.zeros(rows, vocab, dtype=torch.int32, device=logits.device)
    written = torch.zeros_like(seen)
    seen.scatter_add_(1, tokens, counts.to(torch.int32))
    written.scatter_add_(1, tokens, (counts & (at >= prompt[:, None])).to(torch.int32))

    kept = ((drafts >= 0) & (drafts < vocab)).to(torch.int32).cumprod(dim=1, dtype=torch.int32)
    added = drafts.clamp(0, vocab - 1)  # a placeholder is never an index
    result = torch.empty_like(logits)
    for window_position in range(width):
        if window_position:
            token, one = (
                added[:, window_position - 1 : window_position],
                kept[:, window_position - 1 : window_position],
            )
            seen.scatter_add_(1, token, one)
            written.scatter_add_(1, token, one)
        scores = logits[:, window_position]
        factor = repetition[:, None]
        repeated = torch.where(scores < 0, scores * factor, scores / factor)
        scores = torch.where(seen > 0, repeated, scores)
        result[:, window_position] = (
            scores - frequency[:, None] * written - presence[:, None] * (written > 0)
        )
    return result
