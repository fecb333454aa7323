"""Lines of logits that stand in for some of the model's own, and nothing is copied of the others.

What requests change about their logits concerns few rows of a batch. So the lines of these rows are
copied, widened and edited by themselves, and whoever reads logits looks up whose lines count.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class StandIns:
    """The windows of E rows of a batch of S rows with W positions each, which have V tokens.

    scores: `[E, W, V]` float32 or wider.
    rows: `[E]` int64: whose they are, no row twice.
    lines: `[S, W]` int64: which of the E · W lines of `scores` stands in for a position; -1: none.
    """

    scores: Tensor
    rows: Tensor
    lines: Tensor

    @property
    def flat(self) -> Tensor:
        """`[E · W, V]`: `scores`, line by line."""
        return self.scores.flatten(0, 1)


def widened(logits: Tensor, stand_ins: StandIns | None) -> Tensor:
    """`[L, V]`: `logits[L, V]` of L = S · W positions in float32 or wider, `stand_ins` in place.

    A copy, but where there is nothing to be done. Asks the host nothing; raises nothing of its own.
    """
    wide = torch.promote_types(logits.dtype, torch.float32)
    if stand_ins is None:
        return logits.to(wide)
    found = logits.to(wide, copy=True, memory_format=torch.contiguous_format)
    found.view(*stand_ins.lines.shape, -1).index_copy_(0, stand_ins.rows, stand_ins.scores)
    return found
