"""Logits that are changed at named tokens: biases, and tokens that may not come yet.

Entries are sparse lists over all rows of a batch, padded with entries whose line is -1.
"""

from __future__ import annotations

import torch
from torch import Tensor

_NEVER = float("-inf")


def add_at(logits: Tensor, line: Tensor, token: Tensor, value: Tensor) -> Tensor:
    """Logits `[S, W, V]` with `value [B, W]` added at row `line [B]` and `token [B]`.

    Entries for the same token add up. One whose line is -1, or whose token is none of the
    vocabulary, has no effect.
    """
    rows, places, vocab = logits.shape
    entry = torch.arange(len(line), device=line.device)
    real = (line >= 0) & (token >= 0) & (token < vocab)
    # Padding adds 0, and not all of it at one place: additions to the same place queue.
    row = torch.where(real, line, entry % rows)
    column = torch.where(real, token, entry % vocab)
    offsets = torch.arange(places, device=line.device)
    index = (row[:, None] * places + offsets) * vocab + column[:, None]
    added = torch.where(real[:, None], value, 0.0).to(logits.dtype)
    return logits.reshape(-1).index_put((index,), added, accumulate=True).view_as(logits)


def apply_bias(logits: Tensor, line: Tensor, token: Tensor, value: Tensor) -> Tensor:
    """Logits `[S, W, V]` with `value [B]` float added at all places of row `line [B]` and
    `token [B]`. See `add_at`.
    """
    return add_at(logits, line, token, value[:, None].expand(-1, logits.shape[1]))


def ban_until(
    logits: Tensor, positions: Tensor, line: Tensor, token: Tensor, minimum: Tensor
) -> Tensor:
    """Logits `[S, W, V]` with a token at -inf wherever it would come before `minimum` others.

    Args:
        logits: `[S, W, V]`.
        positions: `[S]` int64: the output position (0 for a request's first token) of place 0.
        line, token: `[B]` int64: the row (-1: padding) and the token banned there.
        minimum: `[B]` int64: the first output position where it may come.
    """
    at = positions[line.clamp_min(0)][:, None] + torch.arange(logits.shape[1], device=line.device)
    return add_at(logits, line, token, torch.where(at < minimum[:, None], _NEVER, 0.0))


def give_way(banned: Tensor, allowed: Tensor) -> Tensor:
    """`banned [..., V]`, but `allowed [..., V]` at each place where the bans leave no token.

    Both are logits that a grammar's mask, if there is one, was applied to; `allowed` without the
    bans. So a place has a token to draw wherever the grammar has one.
    """
    return torch.where((banned > _NEVER).any(dim=-1, keepdim=True), banned, allowed)
