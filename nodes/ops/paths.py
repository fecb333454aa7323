"""The accepted path of a draft tree, in the cache and in the states of rows."""

from __future__ import annotations

import torch
from torch import Tensor

from ...models.paged_cache import PagedCache
from ...models.recurrent import RowStates
from ..data import Inputs
from .places import cache_slots_of


@torch.inference_mode()
def keep(
    inputs: Inputs,
    paths: Tensor,
    counts: Tensor,
    cache: PagedCache,
    states: RowStates | None = None,
) -> None:
    """Move what the window places `paths[S, W]` stored, of which `counts[S]` are kept.

    The first of a path is the root, which lies where it belongs. What is not kept goes from the
    scratch block to itself, and stays the version that it is.
    """
    sample = inputs.sample
    if sample is None or paths.shape[1] < 2:
        return
    behind = torch.arange(1, paths.shape[1], device=paths.device)
    kept = behind < counts[:, None]
    wanted = torch.stack([paths[:, 1:], behind.expand(len(paths), -1)])  # from, to
    places = torch.where(kept, sample.window_start[:, None] + wanted, -1)
    blocks = inputs.blocks_of_samples
    source, to = (cache_slots_of(blocks, each, cache.block_size) for each in places.unbind())
    cache.move(source.flatten(), to.flatten())
    if states is not None:
        versions = torch.where(kept, paths[:, 1:], behind)
        root = versions.new_zeros(len(versions), 1)
        states.move(sample.request_slot, torch.cat([root, versions], dim=1))
