"""What one step hands to the next on the device: per stable row, never through the host.

A row may sit out any number of steps, so the hand-off carries every live row forward, and each
entry names the generation of the row and the step that wrote it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Tails:
    """`last[R]`: the last token of each row. `computed[R]`: its tokens whose KV is in place."""

    last: Tensor
    computed: Tensor

    @staticmethod
    def empty(rows: int, device: torch.device | str = "cpu") -> Tails:
        return Tails(
            last=torch.zeros(rows, dtype=torch.int64, device=device),
            computed=torch.zeros(rows, dtype=torch.int64, device=device),
        )


# Columns of `DraftTable.tags`.
GENERATION, STEP = 0, 1


@dataclass(frozen=True, slots=True)
class DraftTable:
    """`tokens[R, k]`: pending drafts of each row, −1 where there is none.

    `tags[R, 2]`: the row's generation and the step that drafted, so that nobody takes the drafts
    of another request, or of a row's earlier life, for his own.
    """

    tokens: Tensor
    tags: Tensor

    @staticmethod
    def empty(rows: int, k: int, device: torch.device | str = "cpu") -> DraftTable:
        return DraftTable(
            tokens=torch.full((rows, k), -1, dtype=torch.int64, device=device),
            tags=torch.full((rows, 2), -1, dtype=torch.int64, device=device),
        )
