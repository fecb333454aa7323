"""Logits that are changed at named tokens: biases, and tokens that may not come yet.

Entries are sparse lists over all rows of a batch, padded with entries whose row is -1.
"""

from __future__ import annotations

import torch
from torch import Tensor

_NEVER = float("-inf")


def add_at(logits: Tensor, sample_index: Tensor, token: Tensor, value: Tensor) -> Tensor:
    """`[S, W, V]`: `logits[S, W, V]` and `value[B, W]` at row `sample_index[B]` and `token[B]`.

    Entries for the same token add up. One whose row is -1, or whose token is none of the
    vocabulary, has no effect.
    """
    rows, width, vocab = logits.shape
    entry = torch.arange(len(sample_index), device=sample_index.device)
    real = (sample_index >= 0) & (token >= 0) & (token < vocab)
    # Padding adds 0, and not all of it to one logit: additions to the same logit queue.
    row = torch.where(real, sample_index, entry % rows)
    column = torch.where(real, token, entry % vocab)
    offsets = torch.arange(width, device=sample_index.device)
    index = (row[:, None] * width + offsets) * vocab + column[:, None]
    added = torch.where(real[:, None], value, 0.0).to(logits.dtype)
    return logits.reshape(-1).index_put((index,), added, accumulate=True).view_as(logits)


def apply_bias(logits: Tensor, sample_index: Tensor, token: Tensor, value: Tensor) -> Tensor:
    """`[S, W, V]`: `logits[S, W, V]` with `value[B]` float added to `token[B]` at all positions.

    Each entry is for the row `sample_index[B]`. See `add_at`.
    """
    return add_at(logits, sample_index, token, value[:, None].expand(-1, logits.shape[1]))


def ban_until(
    logits: Tensor, positions: Tensor, sample_index: Tensor, token: Tensor, minimum: Tensor
) -> Tensor:
    """Logits `[S, W, V]` with a token at -inf wherever it would come before `minimum` others.

    Args:
        logits: `[S, W, V]`.
        positions: `[S]` int64: the output position of window position 0; a request's first token
            has output position 0.
        sample_index: `[B]` int64: the row; -1: padding.
        token: `[B]` int64: the token banned there.
        minimum: `[B]` int64: the first output position where it may come.
    """
    at = positions[sample_index.clamp_min(0)][:, None] + torch.arange(
        logits.shape[1], device=sample_index.device
    )
    return add_at(logits, sample_index, token, torch.where(at < minimum[:, None], _NEVER, 0.0))


def give_way(banned: Tensor, allowed: Tensor) -> Tensor:
    """`[..., V]`: `banned[..., V]`, but `allowed[..., V]` wherever the bans leave no token.

    Both are logits that a grammar's mask, if there is one, was applied to; `allowed` without the
    bans. So each window position has a token to draw wherever the grammar has one.
    """
    return torch.where((banned > _NEVER).any(dim=-1, keepdim=True), banned, allowed)
