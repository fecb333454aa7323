"""The tokens of every live row, on the device: what penalties, bad words and look-up drafts read.

The host learns a token only when it is copied back, steps later; whatever depends on the text so
far must therefore find it here. A request keeps its slot, so an entry is written
once and never moves.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...models.memory import room_for

if TYPE_CHECKING:
    from ...models.causal_lm import CausalLM

FEWER = "lower scheduler.max_rows"


class History:
    """`tokens[R, C + 1]` int32, by position: prompt and output up to the newest token; what stands
    behind that is of no use, and never a draft of the step.

    It may be refused drafts, or an earlier owner's tokens: readers bring the length. The last
    column takes what is not to be kept.
    """

    fixed = True
    """For captured segments: allocated once, and its numbers never change."""

    def __init__(
        self, request_slots: int, context_length: int, device: torch.device | str = "cpu"
    ) -> None:
        self.tokens = torch.zeros(
            request_slots, context_length + 1, dtype=torch.int32, device=device
        )
        self._scratch = context_length

    def write(self, request_slot: Tensor, positions: Tensor, tokens: Tensor) -> None:
        """Store `tokens[...]` at `positions[...]` of slots `request_slot[...]`: of one shape.

        A position outside the context is not kept: −1 is masked, and a row that has ended goes
        on past the end in the steps that were in flight.
        """
        outside = (positions < 0) | (positions >= self._scratch)
        columns = torch.where(outside, self._scratch, positions)
        self.tokens.index_put_((request_slot, columns), tokens.to(torch.int32))

    def of(self, request_slot: Tensor, longest: int) -> Tensor:
        """`[S, longest]`: the tokens from position 0 on of slots `request_slot[S]`, copied."""
        return self.tokens[request_slot, :longest]

    def add(self, at: Tensor, tokens: Tensor) -> None:
        """Store `tokens[K]` int32 at `at[K]` of the slots' lines, one after the other."""
        self.tokens.view(-1).index_copy_(0, at, tokens)


def new_history(request_slots: int, context_length: int, device: torch.device) -> History:
    """An empty history. Raises `NoMemory`."""
    with room_for(
        f"the text of {request_slots - 1} rows",
        request_slots * (context_length + 1) * 4,
        device,
        FEWER,
    ):
        return History(request_slots, context_length, device)


def new_draft_probs(request_slots: int, k: int, target: CausalLM) -> Tensor:
    """`[R, k, V]` zeros, in the target's precision but float32 at least. Raises `NoMemory`."""
    shape = (request_slots, k, target.vocab_size)
    dtype = torch.promote_types(target.dtype, torch.float32)
    nbytes, what = (
        math.prod(shape) * dtype.itemsize,
        f"what {request_slots - 1} rows drew drafts from",
    )
    with room_for(what, nbytes, target.device, FEWER):
        return torch.zeros(shape, dtype=dtype, device=target.device)
