"""A score and its token as one integer, so that the best token is a maximum in any order.

    bits 63 … 32   the score as an integer of the same order; NaN above all numbers, -0 as 0
    bits 31 … 0    2^31 - 1 - token, so that of equal scores the lowest token wins

That is the order of `torch.argmax`. A maximum does not depend on how the tokens are divided among
programs, so neither does the choice: the number of splits may follow the batch.

Shapes: L lines of logits, V tokens, P splits of a line. Keys are `[L, P]` int64.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...backends.kernels import processors
from ..stand_ins import StandIns
from .checks import check_dtype, check_shapes

TILE = 1024
"""Tokens that a program looks at together."""

MOST_SPLITS = 64
"""Keys of a line, at most: one load of a program."""


def splits_for(lines: int, vocab: int, device: torch.device) -> int:
    """Programs for each of `lines`: enough to occupy the device, at most one for every tile."""
    wanted = -(-4 * processors(device) // lines)
    return max(1, min(wanted, -(-vocab // TILE), MOST_SPLITS))


def contiguous_lines(scores: Tensor) -> Tensor:
    """`[L, V]`: `scores[L, V]` with the tokens of a line side by side; no copy if they are so."""
    return scores if scores.stride(-1) == 1 else scores.contiguous()


def checked_masks(
    bits: Tensor | None, lines: Tensor | None, logits: Tensor
) -> tuple[Tensor, Tensor, int, bool, bool]:
    """`[...]` and `[...]`: `bits[M, V / 32]` of `logits[L, V]`, words of a line side by side, and
    `lines[L]`, the mask of each line, -1 for none. Also how far lines of bits are apart, and
    whether there are bits and lines: any tensor stands for one that is None.

    Raises:
        ValueError: shapes or dtype do not fit: a kernel would read past a mask, which is open.
    """
    if bits is None:
        return logits, logits, 0, False, False
    words = triton.cdiv(logits.shape[1], 32)
    wanted = (len(logits) if lines is None else len(bits), words)
    if bits.dtype != torch.int32 or bits.shape != wanted:
        raise ValueError(
            f"a mask of logits {tuple(logits.shape)} is int32 {wanted}, not {bits.dtype} "
            f"{tuple(bits.shape)}"
        )
    bits = bits if bits.stride(-1) == 1 else bits.contiguous()
    if lines is None:
        return bits, bits, bits.stride(0), True, False
    check_dtype(torch.int64, lines=lines)
    check_shapes((len(logits),), lines=lines)
    return bits, lines.contiguous(), bits.stride(0), True, True


def checked_stand_ins(
    stand_ins: StandIns | None, logits: Tensor
) -> tuple[Tensor, Tensor, int, bool]:
    """`[M, V]`: what stands in for lines of `logits[L, V]`, tokens of a line side by side.

    And `[L]`: which of them does for each line, -1 for none.

    Also how far lines are apart, and whether there are any: any tensor stands for one that is None.

    Raises:
        ValueError: shapes or types do not fit.
    """
    if stand_ins is None:
        return logits, logits, 0, False
    width, lines = stand_ins.lines.shape[1], stand_ins.lines.reshape(-1)
    check_shapes((len(stand_ins.rows), width, logits.shape[1]), scores=stand_ins.scores)
    check_shapes((len(logits),), lines=lines)
    check_dtype(torch.int64, lines=lines)
    scores = contiguous_lines(stand_ins.flat)
    return scores, lines.contiguous(), scores.stride(0), True


def checked_keys(keys: Tensor, lines: int) -> Tensor:
    """`[lines, P]`: `keys[lines, P]`, side by side.

    Raises:
        ValueError: they are for another number of lines, more than a program looks at, or of
            another type.
    """
    check_dtype(torch.int64, keys=keys)
    if len(keys) != lines or keys.shape[1] > MOST_SPLITS:
        raise ValueError(f"keys {tuple(keys.shape)} are not up to {MOST_SPLITS} of {lines} lines")
    return keys.contiguous()


def tokens_of(keys: Tensor) -> Tensor:
    """The best token `[L]` int64 of each line of `keys[L, P]`."""
    keys = checked_keys(keys, len(keys))
    tokens = keys.new_empty(len(keys))
    _tokens[(len(keys),)](keys, tokens, keys.shape[1], MOST=MOST_SPLITS, num_warps=1)
    return tokens


@triton.jit(do_not_specialize=["splits"])
def _tokens(keys, tokens, splits, MOST: tl.constexpr):
    """Program (line)."""
    line = tl.program_id(0).to(tl.int64)
    tl.store(tokens + line, token_of(best_key(keys, line, splits, MOST)))


@triton.jit
def best_key(keys, line, splits, MOST: tl.constexpr):
    """The best of a line's keys."""
    split = tl.arange(0, MOST)
    return tl.max(tl.load(keys + line * splits + split, mask=split < splits, other=-(2**63)), 0)


@triton.jit
def token_of(key):
    return 0x7FFFFFFF - (key & 0x7FFFFFFF)


@triton.jit
def key_of(order, token):
    """Keys from scores as integers, see `order_of`, and their tokens."""
    return (order.to(tl.int64) << 32) | (0x7FFFFFFF - token).to(tl.int64)


@triton.jit
def order_of(score, inside):
    """float32 as int32 in the order of argmax; below every number where not `inside`."""
    bits = (score + 0.0).to(tl.int32, bitcast=True)  # -0 + 0 is 0
    # As integers, floats of one sign are in order; below 0 in the opposite one.
    order = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    order = tl.where(score != score, 0x7FFFFFFF, order)  # above that of inf
    return tl.where(inside, order, -0x80000000)  # below that of -inf


@triton.jit
def score_of(key):
    """The float32 that a key was made of."""
    order = (key >> 32).to(tl.int32)
    return (order ^ ((order >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def better(best, at, order, token):
    """`best` and `at`, lane by lane, after a tile of higher tokens: equals stay what they were."""
    wins = order > best
    return tl.where(wins, order, best), tl.where(wins, token, at)


@triton.jit
def masked_scores(
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
):
    """A tile of a line's logits as float32, -inf where its mask has a 0; NaN stays NaN.

    HAS_STAND_INS: line `stands[line]` of `stand_ins` stands in for it, if that is not below 0; only
    the line that counts is read. HAS_LINES: its mask is that of number `lines[line]`, below 0 none,
    which is not read.
    """
    own = inside
    if HAS_STAND_INS:
        instead = tl.load(stands + line)
        own = inside & (instead < 0)
    score = tl.load(logits + line * line_stride + token, mask=own, other=float("-inf"))
    score = score.to(tl.float32)
    if HAS_STAND_INS:
        other = stand_ins + instead * stand_in_stride + token
        there = inside & (instead >= 0)
        edited = tl.load(other, mask=there, other=float("-inf"))
        score = tl.where(there, edited.to(tl.float32), score)
    if HAS_BITS:
        at = line
        if HAS_LINES:
            at = tl.load(lines + line)
        wanted = inside & (at >= 0)
        word = tl.load(bits + at * bits_stride + token // 32, mask=wanted, other=-1)
        closed = ((word >> (token % 32)) & 1) == 0
        score = tl.where(closed & (score == score), float("-inf"), score)
    return score
