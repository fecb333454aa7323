"""`sampling.noise.uniform` in one launch: in torch each word takes over a hundred tiny ones."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...backends.kernels import current
from .checks import check_shapes

_BLOCK = 128


def uniform(seeds: Tensor, positions: Tensor, purpose: int | Tensor) -> Tensor:
    """`[L]` float32 in [0, 1), of `seeds[L]`, `positions[L]`, `purpose[L]` or one for all."""
    count = len(seeds)
    check_shapes((count,), seeds=seeds, positions=positions, purpose=purpose)
    purposes = purpose if isinstance(purpose, Tensor) else seeds
    out = seeds.new_empty(count, dtype=torch.float32)
    with current(seeds.device):
        _uniform[(triton.cdiv(count, _BLOCK),)](
            seeds,
            positions,
            purposes,
            out,
            count,
            0 if isinstance(purpose, Tensor) else int(purpose),
            seeds.stride(0),
            positions.stride(0),
            purposes.stride(0),
            HAS_PURPOSES=isinstance(purpose, Tensor),
            BLOCK=_BLOCK,
            num_warps=1,
        )
    return out


@triton.jit(
    do_not_specialize=[
        "count",
        "purpose",
        "seed_stride",
        "position_stride",
        "purpose_stride",
    ],
    do_not_specialize_on_alignment=["seeds", "positions", "purposes"],
)
def _uniform(
    seeds,
    positions,
    purposes,
    out,
    count,
    purpose,
    seed_stride,
    position_stride,
    purpose_stride,
    HAS_PURPOSES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program (block of draws): the first word of each."""
    line = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = line < count
    seed = tl.load(seeds + line * seed_stride, mask=inside, other=0).to(tl.int64)
    position = tl.load(positions + line * position_stride, mask=inside, other=0)
    zero = tl.zeros([BLOCK], tl.uint32)
    why = zero + purpose.to(tl.uint32)
    if HAS_PURPOSES:
        why = tl.load(purposes + line * purpose_stride, mask=inside, other=0).to(tl.uint32)
    word, _, _, _ = tl.philox_impl(
        zero,
        position.to(tl.uint32),
        why,
        zero,
        seed.to(tl.uint32),
        (seed >> 32).to(tl.uint32),
    )
    tl.store(out + line, (word >> 8).to(tl.float32) * (2.0**-24), mask=inside)
