"""Where the keys of tokens lie, by block tables: one kernel where kernels run, else torch."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ...backends.kernels import active, current
from ...models.paged_cache import SCRATCH_SLOT


def cache_slots_of(
    blocks: Tensor, positions: Tensor, block_size: int, *, checked: bool = False
) -> Tensor:
    """Cache slots `[N, n]` of `positions[N, n]` in the block tables `blocks[N, B]`.

    A position of −1 gets a slot of the scratch block; `checked`: no request has one, nor one behind
    its table. Rows by which a step is rounded up may have any: their tables are of the scratch
    block alone. Raises nothing of its own.
    """
    if active(positions.device):
        from ...models.kernels import places

        with current(positions.device):
            return places.slots_of(blocks, positions, block_size)
    column = positions.div(block_size, rounding_mode="floor")
    block = blocks.gather(1, column.clamp(0, blocks.shape[1] - 1))
    # Of a position p in column c: block · block_size + p − c · block_size.
    slots = torch.add(positions, block.sub_(column), alpha=block_size)
    return slots if checked else slots.masked_fill_(positions < 0, SCRATCH_SLOT)


class Ahead(NamedTuple):
    """Positions that follow each other in every row, and where their keys lie."""

    positions: Tensor  # [N, n]
    masked: Tensor  # [N, n] the same, −1 for those that are not meant
    slots: Tensor  # [N, n] of these; one of the scratch block for −1
    valid: Tensor | None  # [N] how many there are before `reach`; None: all


def ahead(
    blocks: Tensor,
    first: Tensor,
    count: int,
    block_size: int,
    reach: int | None,
    limits: Tensor,
) -> Ahead:
    """`count` positions of each row from `first[N]` on, in the block tables `blocks[N, B]`.

    Those from `reach` on, and those behind the first `limits[N]`, are not meant. `reach` None: all
    are, and the tables have blocks for them. Raises nothing of its own.
    """
    if active(first.device):
        from ...models.kernels import places

        with current(first.device):
            return Ahead(*places.ahead(blocks, first, count, block_size, reach, limits))
    index = torch.arange(count, device=first.device)
    positions = masked = first[:, None] + index
    valid = None
    if reach is not None:
        alive = positions < reach
        valid = alive.sum(dim=1)
        masked = positions.masked_fill(~(alive & (limits[:, None] > index)), -1)
    slots = cache_slots_of(blocks, masked, block_size, checked=reach is None)
    return Ahead(positions, masked, slots, valid)
