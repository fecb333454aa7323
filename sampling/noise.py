"""Random numbers that depend on what is drawn and on nothing else.

A draw is a function of (request seed, output position, purpose, index), so it is the same whichever
step, row or batch computes it, and whatever was drawn before. That is what makes a pipelined run
give the tokens of the synchronous one: there is no generator state to run ahead of or behind.

The generator is Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as
1, 2, 3", SC 2011), in int64 tensors whose products wrap modulo 2^64. The Gumbel noise behind it
uses no library logarithm: those differ by a last bit between the vector part of a loop and its
remainder, and between devices, so the same draw would depend on where in a batch it falls. Ours is
made of single additions, multiplications and divisions, which IEEE 754 rounds in one way.
"""

from __future__ import annotations

from enum import IntEnum
from math import log as _log
from typing import TypeVar

import torch
from torch import Tensor

from ..backends import backend_of
from ..backends.kernels import active


class Purpose(IntEnum):
    """What a number is drawn for; draws for different purposes are independent."""

    TARGET = 0
    """The token at a position: plain sampling, and both sides of the drafter-invariant coupling."""
    ACCEPT = 1
    """Whether rejection sampling keeps a draft."""
    RESIDUAL = 2
    """The token in place of a rejected draft."""
    BONUS = 3
    """The token after a window whose drafts were all kept."""
    DRAFT = 4
    """A drafter's own samples, where they have to be independent of the verification; with the
    key of their window, see `of_window`."""
    SYNTHETIC = 5
    """Whether a draft is kept at a given rate, whatever it is."""
    XTC = 6
    """Whether the most probable tokens are left out at a position."""


_PURPOSES = 256
"""Purposes below this are those of `Purpose`."""


Place = TypeVar("Place", int, Tensor)


def of_window(purpose: Purpose, place: Place) -> Place:
    """`[...]`: the purpose of what is drawn for a `place[...]` of a draft window, from 0 on.

    With the output position of the window's first draft it is a key of this window alone: of the
    draws at an output position the next window has others. Raises nothing of its own.
    """
    return (place + 1) * _PURPOSES + int(purpose)


def among(purpose: Purpose, rank: Tensor) -> Tensor:
    """`[...]`: the purpose of what is drawn for the `rank[...]`-th of several at a position, from 0
    on; that of the first is `purpose` itself. Raises nothing of its own.
    """
    return rank * _PURPOSES + int(purpose)


_LOW = 0xFFFFFFFF
_MULTIPLIER_0, _MULTIPLIER_1 = 0xD2511F53, 0xCD9E8D57
_KEY_STEP_0, _KEY_STEP_1 = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10

# Counters at a time on a CPU: temporaries stay in cache, and stay below the 32768 elements from
# which torch would spread an operation over threads that the rest of the step has a use for.
_CPU_BLOCKS = 7 * 1024


def philox(
    counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Philox4x32-10: four random words `[...]` per counter, int64 in 0 … 2^32 - 1.

    The words of `counter[...]` and `key[...]` have any shapes that broadcast. The reference is the
    Random123 library, whose test vectors our tests use.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for index in range(_ROUNDS):
        p0 = c0 * _MULTIPLIER_0
        p1 = c2 * _MULTIPLIER_1
        # The shift carries the sign, and the low words keep their upper halves: both are cut by
        # the masks, where the next multiplication needs clean words.
        c0 = ((p1 >> 32) ^ (c1 ^ ((k0 + index * _KEY_STEP_0) & _LOW))).bitwise_and_(_LOW)
        c2 = ((p0 >> 32) ^ (c3 ^ ((k1 + index * _KEY_STEP_1) & _LOW))).bitwise_and_(_LOW)
        c1, c3 = p1, p0
    return c0, c1 & _LOW, c2, c3 & _LOW


def random_words(
    seeds: Tensor, positions: Tensor, purpose: Purpose | int | Tensor, count: int
) -> Tensor:
    """`[L, count]` int64 in [0, 2^32): the words with indices 0 … count - 1 of each draw.

    Word i does not depend on `count`. Index i is word i % 4 of counter i // 4.

    Args:
        seeds: `[L]` int64, all 64 bits used.
        positions: `[L]` output positions; taken modulo 2^32.
        purpose: `[L]`, or one for all rows.
    """
    blocks = torch.arange(-(-count // 4), dtype=torch.int64, device=seeds.device)
    return torch.stack(_draw(seeds, positions, purpose, blocks), dim=-1).flatten(1)[:, :count]


def _draw(
    seeds: Tensor, positions: Tensor, purpose: Purpose | int | Tensor, blocks: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The four words `[L, B]` of each counter in `blocks [B]`."""
    zero = torch.zeros((), dtype=torch.int64, device=seeds.device)
    rows = positions.to(torch.int64)[:, None] & _LOW
    purposes = purpose.to(torch.int64)[:, None] if isinstance(purpose, Tensor) else zero + purpose
    seeds = seeds.to(torch.int64)[:, None]
    return philox((blocks, rows, purposes, zero), (seeds & _LOW, (seeds >> 32) & _LOW))


def uniform(seeds: Tensor, positions: Tensor, purpose: Purpose | int | Tensor) -> Tensor:
    """`[L]` float32 in [0, 1): multiples of 2^-24, so `uniform < p` has probability p to 2^-24,
    never holds for p = 0 and always for p = 1.

    `seeds[L]`: of the requests; `positions[L]`: output positions; `purpose[L]`, or one for all.
    Raises nothing of its own.
    """
    if active(seeds.device):
        from .kernels import uniform as kernel

        return kernel.uniform(seeds, positions, purpose)
    words = random_words(seeds, positions, purpose, 1)[:, 0]
    return (words >> 8).to(torch.float32) * 2.0**-24


def gumbel(seeds: Tensor, positions: Tensor, purpose: Purpose | int | Tensor, vocab: int) -> Tensor:
    """`[L, vocab]` float32 standard Gumbel noise, -log(-log u), bit for bit the same for a (seed,
    position, purpose, index) in any batch, order and width, and on any IEEE device.

    `argmax(log p + noise)` is a draw from p (Gumbel 1954; Maddison et al. 2014, arXiv:1411.0030).
    All 32 bits of a word count at the end of the distribution that decides the argmax: u is taken
    from its distance to 1, which at that end is a small number with a full mantissa. With 24 bits,
    one draw in a hundred over a flat vocabulary of 128k tokens would be a tie.

    `seeds[L]`, `positions[L]`, `purpose[L]` as for `uniform`; raises nothing of its own. On a CPU 5
    to 10 ms a row at 128k tokens: call it only for batches that sample.
    """
    blocks = torch.arange(-(-vocab // 4), dtype=torch.int64, device=seeds.device)
    noise = torch.empty(len(seeds), len(blocks), 4, dtype=torch.float32, device=seeds.device)
    width, height = len(blocks), len(seeds)
    if backend_of(seeds.device).on_host:
        width = min(width, _CPU_BLOCKS)
        height = _CPU_BLOCKS // max(1, width)
    parts = [slice(row, row + height) for row in range(0, len(seeds), max(1, height))]
    for part in parts:
        its_purpose = purpose[part] if isinstance(purpose, Tensor) else purpose
        for start in range(0, len(blocks), max(1, width)):
            some = blocks[start : start + width]
            words = _draw(seeds[part], positions[part], its_purpose, some)
            target = noise[part, start : start + width]
            for index, word in enumerate(words):
                target[:, :, index] = word  # as float32; rounding to nearest, hence the clamp below
            target.copy_(_gumbel_from_words(target))
    return noise.flatten(1)[:, :vocab]


def _gumbel_from_words(words: Tensor) -> Tensor:
    """Gumbel noise from words that are float32 already."""
    # v in (0, 1]: the distance of u from 1. float32 keeps its relative precision for small v;
    # rounding up to exactly 1 would give log 0, hence the clamp (2^-8 of the smallest step there).
    v = (words + 0.5).mul_(2.0**-32).clamp_(max=1.0 - 2.0**-24)
    return _log_of(_minus_log_of_complement(v)).neg_()


# sqrt(1/2) as float32 bits: mantissas are reduced to [sqrt(1/2), sqrt(2)).
_ROOT_HALF = 0x3F3504F3
_LN2 = _log(2.0)


def _split(x: Tensor) -> tuple[Tensor, Tensor]:
    """x > 0 as (mantissa in [sqrt(1/2), sqrt(2)), exponent as float32): x = mantissa 2^exponent."""
    bits = x.view(torch.int32)
    exponent = (bits - _ROOT_HALF) >> 23
    mantissa = (bits - (exponent << 23)).view(torch.float32)
    return mantissa, exponent.to(torch.float32)


def _log_ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """log((d + n) / (d - n)) = 2 atanh(n / d) by its series, for |n / d| <= 0.1716."""
    s = numerator.div_(denominator)
    square = s * s
    series = (square * (2.0 / 9.0)).add_(2.0 / 7.0)
    for coefficient in (2.0 / 5.0, 2.0 / 3.0, 2.0):
        series.mul_(square).add_(coefficient)
    return series.mul_(s)


def _log_of(x: Tensor) -> Tensor:
    mantissa, exponent = _split(x)
    return _log_ratio(mantissa - 1.0, mantissa + 1.0).add_(exponent.mul_(_LN2))


def _minus_log_of_complement(v: Tensor) -> Tensor:
    """-log(1 - v) to float32's relative precision for v in (0, 1)."""
    mantissa, exponent = _split(1.0 - v)
    # 1 - v drops bits of a small v; v itself is what `mantissa - 1` should have been.
    numerator = torch.where(exponent == 0, -v, mantissa - 1.0)
    return _log_ratio(numerator, mantissa + 1.0).add_(exponent.mul_(_LN2)).neg_()
