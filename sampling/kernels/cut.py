"""Top-k, top-p and min-p on scaled logits, in place, in one launch: `sampling.cuts` for GPUs.

The threshold is searched for among the scores that are there: a pass adds up what stands in each
quarter of the range that is left, and takes the range to the first and the last score of that line
in the quarter where the threshold lies. So it ends when one score is left, and a line whose best
token has all the probability that is asked for takes one pass. A pass reads the scores of a line,
four bytes each; a sort reads and writes keys and indices several times over.

Sums are of integers, as in `sampling.cuts`, and so are the same in any order.

Shapes: L lines, V tokens, at most 2^20.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...backends.kernels import current
from ..cuts import LEAST, LN2_HIGH, LN2_LOW, LOG2_E, UNIT_BITS, check_vocab
from .checks import check_dtype, check_shapes, check_written
from .noise import EXACT

_MOST_AT_A_TIME = 4096
"""Tokens that a program looks at together."""

_WAYS = tl.constexpr(4)
"""Parts of the range that a pass tells apart: two bits of the threshold."""

_LEAST, _LOG2_E = tl.constexpr(LEAST), tl.constexpr(LOG2_E)
_HIGH, _LOW = tl.constexpr(LN2_HIGH), tl.constexpr(LN2_LOW)
_UNIT = tl.constexpr(2.0**UNIT_BITS)
_NEVER_KEY = tl.constexpr(0x7F800000)  # of -inf


def cut(
    scaled: Tensor, top_k: Tensor | None, top_p: Tensor | None, log_min_p: Tensor | None
) -> Tensor:
    """`[L, V]`: `sampling.cuts.cut` of `scaled[L, V]` float32, in place; then min-p.

    What is below `log_min_p[L]` is cut.
    `top_k[L]`, `top_p[L]`: None if no row uses it. Raises `ValueError` if the tokens of a line do
    not lie side by side, or for shapes that do not fit.
    """
    lines, vocab = scaled.shape
    check_shapes((lines,), top_k=top_k, top_p=top_p, log_min_p=log_min_p)
    check_vocab(vocab)
    check_dtype(torch.float32, scores=scaled)
    check_written(scaled=scaled)
    if vocab > 1 and scaled.stride(1) != 1:
        raise ValueError("scores that are cut in place must have a line's tokens side by side")
    tile = min(_MOST_AT_A_TIME, max(64, triton.next_power_of_2(vocab)))
    settings = [scaled if each is None else each for each in (top_k, top_p, log_min_p)]
    with current(scaled.device):
        _cut[(lines,)](
            scaled,
            *settings,
            vocab,
            scaled.stride(0),
            *(each.stride(0) for each in settings),
            HAS_K=top_k is not None,
            HAS_P=top_p is not None,
            HAS_MIN_P=log_min_p is not None,
            TILE=tile,
            num_warps=max(1, tile // 256),
            **EXACT,
        )
    return scaled


@triton.jit(
    do_not_specialize=["k_stride", "p_stride", "min_p_stride"],
    do_not_specialize_on_alignment=["top_k", "top_p", "log_min_p"],
)
def _cut(
    scores,
    top_k,
    top_p,
    log_min_p,
    vocab,
    line_stride,
    k_stride,
    p_stride,
    min_p_stride,
    HAS_K: tl.constexpr,
    HAS_P: tl.constexpr,
    HAS_MIN_P: tl.constexpr,
    TILE: tl.constexpr,
):
    """Program (line)."""
    line = tl.program_id(0).to(tl.int64)
    scores += line * line_stride
    last = tl.full([], _NEVER_KEY, tl.int32)
    needed = tl.full([], 2**31 - 1, tl.int64)
    if HAS_K:
        k = tl.load(top_k + line * k_stride).to(tl.int64)
        if (k > 0) & (k < vocab):
            last, _ = _reach(scores, vocab, last, k, False, TILE)
    if HAS_P:
        p = tl.load(top_p + line * p_stride).to(tl.float64)
        if p < 1:
            wanted = tl.ceil(_total(scores, vocab, last, TILE).to(tl.float64) * p).to(tl.int64)
            wanted = tl.maximum(wanted, 1)
            last, before = _reach(scores, vocab, last, wanted, True, TILE)
            each = tl.maximum(tl.max(_mass(tl.zeros([1], tl.float32) + _score(last)), 0), 1)
            needed = (wanted - before + each - 1) // each
    worst = _score(last)
    least = float("-inf")
    if HAS_MIN_P:
        least = tl.load(log_min_p + line * min_p_stride).to(tl.float32)
    if (worst > float("-inf")) | (least > float("-inf")):
        seen = tl.full([], 0, tl.int64)
        for tile in range(tl.cdiv(vocab, TILE)):
            token = tile * TILE + tl.arange(0, TILE)
            inside = token < vocab
            score = tl.load(scores + token, mask=inside, other=float("-inf"))
            equal = (inside & (score == worst)).to(tl.int32)
            rank = seen + tl.cumsum(equal, 0)
            seen += tl.sum(equal, 0)
            cuts = (score < worst) | ((equal == 1) & (rank > needed)) | (score < least)
            tl.store(scores + token, float("-inf"), mask=inside & cuts)


@triton.jit
def _reach(scores, vocab, high, target, MASSES: tl.constexpr, TILE: tl.constexpr):
    """The key at which masses, or else counts, reach the target, and the sum of those before it.

    Keys above `high` do not count; it is what is returned if nothing reaches the target.
    """
    low = tl.full([], 0, tl.int32)
    before = tl.full([], 0, tl.int64)
    while low < high:
        ends = low + ((high - low).to(tl.int64) * (1 + tl.arange(0, _WAYS)) // _WAYS).to(tl.int32)
        sums = tl.zeros([_WAYS], tl.int64)
        down_to = tl.zeros([_WAYS], tl.int32) + low
        next_one = tl.zeros([_WAYS], tl.int32) + high
        for tile in range(tl.cdiv(vocab, TILE)):
            score, key = _tile(scores, tile, vocab, TILE)
            left = (key >= low) & (key <= high)
            # Most tiles have nothing in a range that is small.
            if tl.max(left.to(tl.int32), 0) > 0:
                up_to = left[None, :] & (key[None, :] <= ends[:, None])
                weight = _mass(score) if MASSES else tl.full([TILE], 1, tl.int64)
                sums += tl.sum(tl.where(up_to, weight[None, :], 0), 1)
                down_to = tl.maximum(down_to, tl.max(tl.where(up_to, key[None, :], low), 1))
                after = left[None, :] & (key[None, :] > ends[:, None])
                next_one = tl.minimum(next_one, tl.min(tl.where(after, key[None, :], high), 1))
        so_far = before + sums
        reached = so_far >= target
        highest = tl.min(tl.where(reached, down_to, high), 0)
        lowest = tl.max(tl.where(reached, low, next_one), 0)
        before = tl.max(tl.where(reached, before, so_far), 0)
        low = lowest
        high = highest
    return low, before


@triton.jit
def _total(scores, vocab, high, TILE: tl.constexpr):
    """The masses of all keys up to `high`."""
    sums = tl.zeros([TILE], tl.int64)
    for tile in range(tl.cdiv(vocab, TILE)):
        score, key = _tile(scores, tile, vocab, TILE)
        sums += tl.where(key <= high, _mass(score), 0)
    return tl.sum(sums, 0)


@triton.jit
def _tile(scores, tile, vocab, TILE: tl.constexpr):
    """A tile of a line's scores, and their keys; behind the end are keys above all others."""
    token = tile * TILE + tl.arange(0, TILE)
    inside = token < vocab
    score = tl.load(scores + token, mask=inside, other=float("-inf"))
    key = tl.abs(score).to(tl.int32, bitcast=True)
    return score, tl.where(inside, key, 0x7FFFFFFF)


@triton.jit
def _score(key):
    """The score that a key was made of."""
    return -key.to(tl.float32, bitcast=True)


@triton.jit
def _mass(score):
    """`sampling.cuts.mass`, in the same operations."""
    score = tl.where(score > _LEAST, score, _LEAST)  # NaN too
    exponent = tl.floor(score * _LOG2_E + 0.5)
    rest = (score - exponent * _HIGH) - exponent * _LOW
    series = rest * (1 / 720) + (1 / 120)
    series = series * rest + (1 / 24)
    series = series * rest + (1 / 6)
    series = series * rest + 0.5
    series = series * rest + 1.0
    series = series * rest + 1.0
    return (series * _UNIT).to(tl.int64) >> (-exponent).to(tl.int64)
