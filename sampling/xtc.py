"""XTC, "exclude top choices": leave out the most probable tokens where several are probable."""

from __future__ import annotations

import torch
from torch import Tensor

from .blocks import blocks
from .cuts import mass
from .noise import Purpose, uniform

OFF = float("inf")
"""A threshold that no probability reaches."""


def thresholds(seeds: Tensor, positions: Tensor, probability: Tensor, threshold: Tensor) -> Tensor:
    """`[L]`: the `threshold[L]` of each line where its draw says that top choices go, else `OFF`.

    That has the `probability[L]`, and is drawn from `seeds[L]` and the output `positions[L]`, for
    nothing else: so drafter and target exclude at the same positions. Raises nothing of its own.
    """
    return torch.where(uniform(seeds, positions, Purpose.XTC) < probability, threshold, OFF)


def exclude_top(scaled: Tensor, threshold: Tensor) -> Tensor:
    """`[L, V]`: `scaled[L, V]` with -inf at all tokens of a probability of at least `threshold[L]`,
    but for the least probable of them; a line where only one token has it keeps its bits.

    Weidmann 2024, text-generation-webui, pull request 6335. Of equal tokens the last counts as the
    least probable. Probabilities are compared as integers (`cuts.mass`), so the same tokens go on
    every device and in every batch.

    Args:
        scaled: `[L, V]` float, relative to the best token: 0 or less.
        threshold: `[L]` float above 0; above 1 is off.
    """
    parts = list(blocks(scaled))
    if len(parts) == 1:
        return _exclude_top(scaled, threshold)
    return torch.cat([_exclude_top(scaled[part], threshold[part]) for part in parts])


def _exclude_top(scaled: Tensor, threshold: Tensor) -> Tensor:
    masses = mass(scaled)
    least = threshold.to(torch.float64).clamp(max=1.0)[:, None]
    wanted = (masses.sum(dim=-1, keepdim=True) * least).ceil_().to(torch.int64).clamp_(min=1)
    top = (masses >= wanted) & (threshold <= 1)[:, None]
    worst = torch.where(top, scaled, 0.0).amin(dim=-1, keepdim=True)
    ids = torch.arange(scaled.shape[1], device=scaled.device)
    kept = torch.where(top & (scaled == worst), ids, -1).amax(dim=-1, keepdim=True)
    return scaled.masked_fill(top & (ids != kept), float("-inf"))
