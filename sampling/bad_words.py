"""Token sequences that must not be completed, at every window position of a draft window."""

from __future__ import annotations

import torch
from torch import Tensor

from .bias import add_at

_NOTHING = -2
"""Stands where a context has no token; equals no token and no padding."""


def ban_bad_words(
    logits: Tensor,
    drafts: Tensor,
    history: Tensor,
    window_start: Tensor,
    sample_index: Tensor,
    length: Tensor,
    tokens: Tensor,
) -> Tensor:
    """Logits `[S, W, V]` with -inf at each token that would complete a forbidden sequence.

    The last token of a sequence is banned where the tokens before a window position (history,
    prompt included, then the drafts before it) end with the rest of the sequence; that of a
    sequence of one token everywhere. A sequence that is longer than its context matches nothing. A
    draft at or after the first that is no token has no influence, nor has anything in `history`
    after `window_start`.

    Args:
        logits: `[S, W, V]`, W = k + 1 positions.
        drafts: `[S, k]` int64, -1 where there is none.
        history: `[S, C]` int: each row's tokens from position 0.
        window_start: `[S]` int64: position of the last token in `history` that counts.
        sample_index: `[M]` int64: the row that a sequence is forbidden in; -1: padding.
        length: `[M]` int64: its tokens, 1 … L.
        tokens: `[M, L]` int64: the sequences, at the right; whatever stands left of them is unread.
    """
    longest = tokens.shape[1] - 1  # of what comes before a sequence's last token
    before = window_start[:, None] + torch.arange(1 - longest, 1, device=window_start.device)
    past = history.gather(1, before.clamp(0, history.shape[1] - 1)).to(torch.int64)
    kept = (drafts >= 0).cumprod(dim=1).bool()
    context = torch.cat(
        [torch.where(before >= 0, past, _NOTHING), torch.where(kept, drafts, _NOTHING)], dim=1
    )
    offsets = torch.arange(longest, device=window_start.device)
    window_positions = torch.arange(logits.shape[1], device=window_start.device)
    ends = context[:, window_positions[:, None] + offsets][
        sample_index.clamp_min(0)
    ]  # [M, W, L - 1]
    unread = offsets < longest + 1 - length[:, None]
    matches = ((ends == tokens[:, None, :-1]) | unread[:, None]).all(dim=-1)
    return add_at(logits, sample_index, tokens[:, -1], torch.where(matches, float("-inf"), 0.0))
