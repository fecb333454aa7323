"""Logits relative to the best one, divided by the temperature: what the filters start from.

Two reads and one write of the logits, where torch needs some ten passes: the best token, a line
that has only it, the difference, the quotient.

Shapes: L lines of logits, V tokens, P splits of a line (`keys.py`).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...backends.kernels import current
from ..stand_ins import StandIns
from .checks import check_shapes
from .choose import best
from .keys import (
    MOST_SPLITS,
    TILE,
    best_key,
    checked_masks,
    checked_stand_ins,
    contiguous_lines,
    masked_scores,
    score_of,
    token_of,
)
from .noise import EXACT


def scaled(
    logits: Tensor,
    temperature: Tensor,
    bits: Tensor | None = None,
    lines: Tensor | None = None,
    stand_ins: StandIns | None = None,
) -> Tensor:
    """`(logits - best) / temperature` `[L, V]` float32 of the masked `logits[L, V]`.

    Where `temperature[L]` is 0: 0 at the first best token and -inf elsewhere, to which filters do
    nothing. `bits[M, V / 32]` int32 and `lines[L]` as in `structured.bitmask`; `stand_ins` in the
    place of some lines, None if all are as they are.
    """
    count, vocab = logits.shape
    check_shapes((count,), temperature=temperature)
    logits = contiguous_lines(logits)
    masks, whose, bits_stride, has_bits, has_lines = checked_masks(bits, lines, logits)
    instead, stands, stand_in_stride, has_stand_ins = checked_stand_ins(stand_ins, logits)
    out = logits.new_empty(count, vocab, dtype=torch.float32)
    with current(logits.device):
        keys = best(logits, bits, lines, stand_ins)
        _scale[(count, triton.cdiv(vocab, TILE))](
            logits,
            instead,
            stands,
            masks,
            whose,
            keys,
            temperature,
            out,
            vocab,
            keys.shape[1],
            logits.stride(0),
            stand_in_stride,
            bits_stride,
            temperature.stride(0),
            HAS_STAND_INS=has_stand_ins,
            HAS_BITS=has_bits,
            HAS_LINES=has_lines,
            TILE=TILE,
            MOST=MOST_SPLITS,
            **EXACT,
        )
    return out


@triton.jit(
    do_not_specialize=["splits", "bits_stride", "temperature_stride"],
    do_not_specialize_on_alignment=["stands", "lines", "temperature"],
)
def _scale(
    logits,
    stand_ins,
    stands,
    bits,
    lines,
    keys,
    temperature,
    out,
    vocab,
    splits,
    line_stride,
    stand_in_stride,
    bits_stride,
    temperature_stride,
    HAS_STAND_INS: tl.constexpr,
    HAS_BITS: tl.constexpr,
    HAS_LINES: tl.constexpr,
    TILE: tl.constexpr,
    MOST: tl.constexpr,
):
    """Program (line, tile)."""
    line = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = token < vocab
    score = masked_scores(
        logits,
        stand_ins,
        stands,
        bits,
        lines,
        line,
        token,
        inside,
        line_stride,
        stand_in_stride,
        bits_stride,
        HAS_STAND_INS,
        HAS_BITS,
        HAS_LINES,
    )
    best_of_line = best_key(keys, line, splits, MOST)
    given = tl.load(temperature + line * temperature_stride)
    if given > 0:
        divisor = tl.zeros([TILE], tl.float32) + given.to(tl.float32)
        score = tl.div_rn(score - score_of(best_of_line), divisor)
    else:
        score = tl.where(token == token_of(best_of_line), 0.0, float("-inf"))
    tl.store(out + line * vocab + token, score, mask=inside)
