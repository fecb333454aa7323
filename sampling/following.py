"""Drafts from ways that were prepared before the newest tokens were known."""

from __future__ import annotations

import torch
from torch import Tensor


def follow(ways: Tensor, tokens: Tensor, counts: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Drafts `[S, k]` int64 and how many of them are valid, `[S]` int64; −1 behind those.

    A row's text went on with the first `counts` of its tokens. The first of its ways that begins so
    is followed: the drafts are what comes next on it. Where there is none, no draft is valid.

    Args:
        ways: `[S, C, M]` int, −1 behind the end of each.
        tokens: `[S, W]` int64, W ≤ M.
        counts: `[S]` int64, from 1 to W.
        k: drafts per row.
    """
    window = torch.arange(tokens.shape[1], device=tokens.device)
    other = ways[:, :, : tokens.shape[1]] != tokens[:, None]
    fits = ~(other & (window < counts[:, None])[:, None]).any(dim=2)  # [S, C]
    found, which = fits.to(torch.uint8).max(dim=1)
    way = ways.gather(1, which[:, None, None].expand(-1, 1, ways.shape[2]))[:, 0].long()
    at = counts[:, None] + torch.arange(k, device=tokens.device)
    drafts = way.gather(1, at.clamp(max=ways.shape[2] - 1))
    drafts = drafts.masked_fill((at >= ways.shape[2]) | (found == 0)[:, None], -1)
    valid = (drafts >= 0).to(torch.int64).cumprod(dim=1).sum(dim=1)
    return drafts, valid
