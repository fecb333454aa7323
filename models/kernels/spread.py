"""Logits over part of a vocabulary laid out over all of it, in one launch.

Shapes: L lines, P columns of the part, V of the whole vocabulary.
"""

import triton
import triton.language as tl
from torch import Tensor

from ...sampling.kernels.checks import check_shapes

_BLOCK = 1024


def spread(logits: Tensor, places: Tensor) -> Tensor:
    """`[L, V]`: at v what `logits[L, P]` has at `places[V]` of v, and -inf where that is negative.

    The tensors may lie in memory in any way.

    Raises:
        ValueError: shapes do not fit.
    """
    check_shapes((len(logits), logits.shape[-1]), logits=logits)
    check_shapes((len(places),), places=places)
    out = logits.new_empty(len(logits), len(places))
    if out.numel() == 0:
        return out
    _spread[(len(logits), triton.cdiv(len(places), _BLOCK))](
        logits,
        places,
        out,
        logits.shape[1],
        len(places),
        *logits.stride(),
        places.stride(0),
        BLOCK=_BLOCK,
        num_warps=4,
    )
    return out


@triton.jit
def _spread(
    logits,
    places,
    out,
    part,
    vocab,
    logits_line_stride,
    logits_stride,
    places_stride,
    BLOCK: tl.constexpr,
):
    """Program (line, part of the vocabulary)."""
    line = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = token < vocab
    place = tl.load(places + token * places_stride, mask=inside, other=-1)
    has = inside & (place >= 0) & (place < part)
    at = logits + line * logits_line_stride + place * logits_stride
    found = tl.load(at, mask=has, other=float("-inf"))
    tl.store(out + line * vocab + token, found, mask=inside)
