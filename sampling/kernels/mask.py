"""Logits with a grammar's mask applied: one read and one write of them, in one launch.

In torch the mask is unpacked to a word per token first, which is four more writes of that size.
Shapes: L lines, V tokens.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...backends.kernels import current
from .checks import check_written
from .keys import TILE, checked_bits, contiguous_lines, masked_scores


def apply_bitmask(logits: Tensor, bits: Tensor, *, in_place: bool = False) -> Tensor:
    """`structured.bitmask.apply_bitmask`: `[L, V]` of `logits[L, V]`, `bits[L, V / 32]` int32.

    `in_place` writes into `logits` and returns them. Raises `ValueError` if then the tokens of a
    line do not lie side by side.
    """
    lines, vocab = logits.shape
    bits = checked_bits(bits, logits)
    if not in_place:
        logits = contiguous_lines(logits)
    elif logits.stride(-1) != 1:
        raise ValueError("logits that are masked in place must have a line's tokens side by side")
    else:
        check_written(logits=logits)
    masked = logits if in_place else torch.empty_like(logits)
    with current(logits.device):
        _apply[(lines, triton.cdiv(vocab, TILE))](
            logits,
            bits,
            masked,
            vocab,
            logits.stride(0),
            bits.stride(0),
            masked.stride(0),
            TILE=TILE,
        )
    return masked


@triton.jit(do_not_specialize=["bits_stride"])
def _apply(
    logits, bits, masked, vocab, line_stride, bits_stride, masked_stride, TILE: tl.constexpr
):
    """Program (line, tile)."""
    line = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = token < vocab
    score = masked_scores(logits, bits, line, token, inside, line_stride, bits_stride, True)
    # float32 and back is exact for what came from the same type.
    out = score.to(masked.dtype.element_ty)
    tl.store(masked + line * masked_stride + token, out, mask=inside)
