"""The noise of `sampling.noise.gumbel`, computed where it is used, with the same bits.

A draw of a line is dozens of passes over numbers of the size of its logits when each operation is
a kernel; here they are registers. Equal bits take three things of the compiler: no multiplication
and addition fused into one rounding (`EXACT`, which every launch must be given), a division that
rounds as IEEE 754 says (`div_rn`; `/` is a unit or two off), and no library logarithm, which the
algorithm avoids. What is left is single, correctly rounded operations in the same order.
"""

from math import log
from typing import Final

import triton
import triton.language as tl

EXACT: Final = {"enable_fp_fusion": False}
"""Options of every launch of a kernel that computes noise, or a quotient, for its bits."""

LEAST, MOST = -2.82, 22.88
"""No noise is outside: -log(log 2^24) and log 2^33 are the values of its end points."""

_ROOT_HALF = tl.constexpr(0x3F3504F3)
_LN2 = tl.constexpr(log(2.0))
_BELOW_ONE = tl.constexpr(1.0 - 2.0**-24)


@triton.jit
def gumbel(seed, position, purpose, first, TILE: tl.constexpr):
    """Noise `[TILE]` of the tokens from `first` (a multiple of 4) on; scalars int64."""
    quad = first // 4 + tl.arange(0, TILE // 4)
    zero = tl.zeros([TILE // 4], tl.uint32)
    a, b, c, d = tl.philox_impl(
        quad.to(tl.uint32),
        zero + position.to(tl.uint32),
        zero + purpose.to(tl.uint32),
        zero,
        zero + seed.to(tl.uint32),
        zero + (seed >> 32).to(tl.uint32),
    )
    # Token 4i + w gets word w of counter i.
    words = tl.interleave(tl.interleave(a, c), tl.interleave(b, d))
    return _from_words(words.to(tl.float32))


@triton.jit
def _from_words(words):
    v = tl.minimum((words + 0.5) * 2.0**-32, _BELOW_ONE)
    return -_log_of(_minus_log_of_complement(v))


@triton.jit
def _mantissa(x):
    """x > 0 as (mantissa in [sqrt(1/2), sqrt(2)), exponent as float32)."""
    bits = x.to(tl.int32, bitcast=True)
    exponent = (bits - _ROOT_HALF) >> 23
    mantissa = (bits - (exponent << 23)).to(tl.float32, bitcast=True)
    return mantissa, exponent.to(tl.float32)


@triton.jit
def _log_ratio(numerator, denominator):
    """log((d + n) / (d - n)) by its series."""
    s = tl.div_rn(numerator, denominator)
    square = s * s
    series = square * (2.0 / 9.0) + 2.0 / 7.0
    series = series * square + 2.0 / 5.0
    series = series * square + 2.0 / 3.0
    series = series * square + 2.0
    return series * s


@triton.jit
def _log_of(x):
    mantissa, exponent = _mantissa(x)
    return _log_ratio(mantissa - 1.0, mantissa + 1.0) + exponent * _LN2


@triton.jit
def _minus_log_of_complement(v):
    mantissa, exponent = _mantissa(1.0 - v)
    numerator = tl.where(exponent == 0.0, -v, mantissa - 1.0)
    return -(_log_ratio(numerator, mantissa + 1.0) + exponent * _LN2)
