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
from .keys import TILE, checked_masks, contiguous_lines, masked_scores


def apply_bitmask(
    logits: Tensor, bits: Tensor, lines: Tensor | None = None, *, in_place: bool = False
) -> Tensor:
    """`structured.bitmask.apply_bitmask`: `[L, V]` of `logits[L, V]`, `bits[M, V / 32]` int32.

    `lines[L]`: the mask of each line, -1 for none; None: that of its number. `in_place` writes into
    `logits` and returns them. Raises `ValueError` if then the tokens of a line do not lie side by
    side.
    """
    count, vocab = logits.shape
    bits, whose, bits_stride, _, has_lines = checked_masks(bits, lines, logits)
    if not in_place:
        logits = contiguous_lines(logits)
    elif logits.stride(-1) != 1:
        raise ValueError("logits that are masked in place must have a line's tokens side by side")
    else:
        check_written(logits=logits)
    masked = logits if in_place else torch.empty_like(logits)
    with current(logits.device):
        _apply[(count, triton.cdiv(vocab, TILE))](
            logits,
            bits,
            whose,
            masked,
            vocab,
            logits.stride(0),
            bits_stride,
            masked.stride(0),
            HAS_LINES=has_lines,
            TILE=TILE,
        )
    return masked


@triton.jit(do_not_specialize=["bits_stride"], do_not_specialize_on_alignment=["lines"])
def _apply(
    logits,
    bits,
    lines,
    masked,
    vocab,
    line_stride,
    bits_stride,
    masked_stride,
    HAS_LINES: tl.constexpr,
    TILE: tl.constexpr,
):
    """Program (line, tile)."""
    line = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = token < vocab
    score = masked_scores(
        logits,
        logits,
        lines,
        bits,
        lines,
        line,
        token,
        inside,
        line_stride,
        0,
        bits_stride,
        False,
        True,
        HAS_LINES,
    )
    # float32 and back is exact for what came from the same type.
    out = score.to(masked.dtype.element_ty)
    tl.store(masked + line * masked_stride + token, out, mask=inside)
