"""KV blocks in pinned host memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...models.memory import room_for
from ...models.paged_cache import PagedCache
from ...requests.swap import Swaps
from .transfer import pinned


def host_blocks(num_blocks: int, nbytes: int, device: torch.device) -> HostBlocks:
    """So many blocks, each of `nbytes` in the target's cache, for caches on `device`.

    Raises `NoMemory` for more than the machine has: it is taken under way, when it would be late.
    """
    what, host = f"a place for {num_blocks} KV blocks", torch.device("cpu")
    with room_for(what, num_blocks * nbytes, host, "lower nodes.swap.blocks"):
        return HostBlocks(num_blocks, device)


class HostBlocks:
    """A place on the host for `num_blocks` blocks of each cache that is swapped.

    Memory for a cache is taken when the first of its blocks comes.
    """

    def __init__(self, num_blocks: int, device: torch.device) -> None:
        self.num_blocks = num_blocks
        self._device = device
        self._stores: dict[int, list[Tensor]] = {}

    @torch.inference_mode()
    def swap(self, caches: Sequence[PagedCache | None], swaps: Swaps) -> None:
        """Copy the blocks of `swaps.out` here, then those of `swaps.into` back to the caches.

        `caches` stand in the same order in each step; None for one that there is not.
        """
        for place, cache in enumerate(caches):
            if cache is None:
                continue
            for there, here in zip(cache.tensors, self._of(place, cache), strict=True):
                blocks = there.view(cache.num_blocks, cache.block_size, *there.shape[1:])
                for block, kept in swaps.out:
                    here[kept].copy_(blocks[block], non_blocking=True)
                for kept, block in swaps.into:
                    blocks[block].copy_(here[kept], non_blocking=True)

    def _of(self, place: int, cache: PagedCache) -> list[Tensor]:
        """`[num_blocks, block_size, …]` for each tensor of a cache."""
        if place not in self._stores:
            self._stores[place] = [
                pinned(
                    *(self.num_blocks, cache.block_size, *store.shape[1:]),
                    dtype=store.dtype,
                    device=self._device,
                )
                for store in cache.tensors
            ]
        return self._stores[place]
