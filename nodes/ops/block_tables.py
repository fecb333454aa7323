"""Which KV block holds which tokens of each live request, on the device.

A table grows by a block every few steps, so only what is new goes up: whole tables would be
megabytes a step where contexts are long.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...backends.kernels import active, current
from ...models.memory import room_for
from ...models.paged_cache import SCRATCH_BLOCK
from .history import FEWER


class BlockTables:
    """`entries[R, B + 1]` by request slot; entries that are not in use name the scratch block.

    The last column is never in use, so −1 is the place of a position that is masked; nor is the
    last row, for lines of a step that stand for no request.
    """

    fixed = True
    """Its tensor never moves: captured graphs know it by identity."""

    def __init__(self, request_slots: int, blocks: int, device: torch.device | str = "cpu") -> None:
        self.entries = torch.full(
            (request_slots, blocks + 1), SCRATCH_BLOCK, dtype=torch.int64, device=device
        )

    def update(self, clears: Tensor, at: Tensor, blocks: Tensor) -> None:
        """Begin the tables of slots `clears[F]` anew, then write `blocks[C]`.

        `at[C]` says where, in all tables as one line; entries of one place are equal.
        """
        if len(clears):
            self.entries.index_fill_(0, clears, SCRATCH_BLOCK)
        if len(at):
            self.entries.view(-1).index_copy_(0, at, blocks)

    def of(self, request_slots: Tensor, width: int) -> Tensor:
        """The first `width` columns of the tables of `request_slots[N]`: `[N, width]`."""
        return self.entries[:, :width].index_select(0, request_slots)

    def cache_slots(self, request_slots: Tensor, positions: Tensor, block_size: int) -> Tensor:
        """Cache slots `[T]` of `positions[T]` of `request_slots[T]`.

        A position of −1 gets a slot of the scratch block.
        """
        if active(positions.device):
            from ...models.kernels import places

            with current(positions.device):
                return places.slots_of(self.entries, positions[:, None], block_size, request_slots)[
                    :, 0
                ]
        column = positions.div(block_size, rounding_mode="floor")
        block = self.entries[request_slots, column]
        # Of a position p in column c: block · block_size + p − c · block_size.
        return torch.add(positions, block.sub_(column), alpha=block_size)


def new_block_tables(request_slots: int, blocks: int, device: torch.device) -> BlockTables:
    """Tables of no blocks. Raises `NoMemory`."""
    with room_for(
        f"the block tables of {request_slots - 1} rows",
        request_slots * (blocks + 1) * 8,
        device,
        FEWER,
    ):
        return BlockTables(request_slots, blocks, device)
