"""swap: copy KV blocks of requests that gave way to host memory, and back when they resume.

The copies run on a stream of their own, beside forward passes that use other blocks: the KV cache
is keyed, and a block passes between its request and the copy by a lease of the plan. Which blocks
are copied in a step is decided with its rows (`requests/swap.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ..graph.declare import op
from ..graph.node import State
from ..graph.parameters import given, optional_update, read, settings, update
from ..requests.swap import SWAP
from .kind import NodeKind
from .options import Options
from .values import BATCH, DEVICE, DRAFT_KV, HOST_BLOCKS, KV, LIMITS, SWAPS, TARGET

if TYPE_CHECKING:
    import torch

    from ..models.causal_lm import CausalLM
    from ..models.paged_cache import PagedCache
    from ..requests.batch import StepBatch
    from ..requests.limits import Limits
    from ..requests.swap import Swaps
    from .ops.swapping import HostBlocks


class SwapOptions(Options):
    """Where blocks wait."""

    blocks: int = Field(
        default=256,
        ge=1,
        le=1 << 24,
        description="KV blocks in pinned host memory. A request that gives way when they are full "
        "is computed again when it resumes.",
    )


def _new_host_kv(
    options: SwapOptions = settings(SwapOptions),
    device: torch.device = given(DEVICE),
    target: CausalLM = given(TARGET),
    limits: Limits = given(LIMITS),
) -> HostBlocks:
    from ..models.errors import UnsupportedModel
    from ..models.paged_cache import bytes_per_block
    from .ops.swapping import host_blocks

    if target.keeps_states:
        raise UnsupportedModel(
            f"{target.name} keeps states beside its KV blocks, and only blocks are copied: leave "
            "the node `swap` out, so that requests that give way are computed again"
        )
    each = bytes_per_block(target.layer_shapes, limits.block_size, target.dtype, limits.cache_dtype)
    return host_blocks(options.blocks, each, device)


HOST_KV: State[HostBlocks] = State("host_kv", make=_new_host_kv, keys=HOST_BLOCKS, across="own")
"""Keys and values of requests that gave way, in pinned host memory."""


@op(writes=SWAPS)
def list_swaps(batch: StepBatch = read(BATCH)) -> Swaps | None:
    """The copies that were decided with the rows."""
    return batch.swaps


@op
def swap(
    swaps: Swaps | None = read(SWAPS),
    host: HostBlocks = update(HOST_KV),
    kv: PagedCache = update(KV, users=SWAP),
    draft_kv: PagedCache | None = optional_update(DRAFT_KV, users=SWAP),
) -> None:
    """Copy blocks out, then blocks back, of the target's cache and of the drafter's."""
    if swaps is not None:
        host.swap((kv, draft_kv), swaps)


KIND = NodeKind(
    "swap",
    "copy KV blocks of requests that gave way to pinned host memory, and back",
    host=(list_swaps,),
    device=(swap,),
    stream="swapping",
    options=SwapOptions,
    stages="all",  # each has its own layers of every block
)
