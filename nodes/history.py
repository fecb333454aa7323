"""The tokens of every live row, on the device: what penalties, bad words and look-up drafts read.

The host learns a token only when it is copied back, steps later; whatever depends on the text so
far must therefore find it here. Rows are stable, so an entry is written once and never moves.
"""

from __future__ import annotations

import torch
from torch import Tensor


class History:
    """`tokens[R, C + 1]` int32, by position; the last column takes what is not to be kept.

    A row is right up to its last settled token. Behind that may stand refused drafts, or an
    earlier owner's tokens: readers bring the length.
    """

    def __init__(self, rows: int, context_length: int, device: torch.device | str = "cpu") -> None:
        self.tokens = torch.zeros(rows, context_length + 1, dtype=torch.int32, device=device)
        self._scratch = context_length

    def write(self, rows: Tensor, positions: Tensor, tokens: Tensor) -> None:
        """Store `tokens[N]` at `positions[N]` of `rows[N]`.

        A position outside the context is not kept: −1 is masked, and a row that has ended goes
        on past the end in the steps that were in flight.
        """
        outside = (positions < 0) | (positions >= self._scratch)
        columns = torch.where(outside, self._scratch, positions)
        self.tokens.index_put_((rows, columns), tokens.to(torch.int32))
