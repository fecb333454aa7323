"""Top-k and top-p without a sort: the score at which a row is cut is searched for, digit by digit.

A sort of the vocabulary is what these two cost most of. But all that they ask for is a threshold:
the score down to which enough tokens, or enough probability, has been seen. Scores relative to the
best token are at most 0, so the bits of their absolute values are integers in the order of the
tokens, best first. A histogram over the highest bits says which of its bins the threshold is in, a
second over the next bits of that bin, and so on; each is one pass over the vocabulary.

What is summed are integers: a token's *mass*, its probability relative to that of the best token,
in units of 2^-42. So a sum has no rounding and no order, and which tokens are kept is the same on
every device, in every batch, and with the kernel (`kernels/cut.py`), which searches otherwise. The
exponential in it is made of single operations that IEEE 754 rounds in one way, as the logarithm in
`noise.py`; it is within 2^-22 of the true one, relatively.

Of few scores a sort is the faster way to the same thresholds: then it is the number of operators
that costs, not what they read.

Shapes: L rows, V tokens, at most 2^20.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .blocks import blocks

_NEVER = float("-inf")

UNIT_BITS = 42
"""A mass of 1, that of the best token, is 2^42: sums of 2^20 of them fit an int64."""

LEAST = -32.0
"""Scores that are not above this have the mass 0."""

LOG2_E, LN2_HIGH, LN2_LOW = 1.4426950408889634, 0.693359375, -2.12194440e-4
"""The two parts of log 2 add up to it; products of the first with small integers are exact."""

SERIES = (1 / 120, 1 / 24, 1 / 6, 1 / 2, 1.0, 1.0)
"""Coefficients of the exponential's series, from that of the power 5 down; before them is 1/720."""

_DIGITS = {
    torch.int32: ((20, 11), (10, 10), (0, 10)),
    torch.int64: tuple((lowest, 9) for lowest in range(54, -1, -9)),
}
"""Lowest bit and number of bits of each digit, from the highest on. The sign is never set."""


SORTED = 1 << 11
"""Scores up to which they are sorted."""


def check_vocab(vocab: int) -> None:
    """That the masses of so many tokens can be added up. Raises `ValueError` if they cannot."""
    if vocab > 1 << (62 - UNIT_BITS):
        raise ValueError(f"top-p of {vocab} tokens: its sums hold {1 << (62 - UNIT_BITS)} at most")


def cut(scaled: Tensor, top_k: Tensor | None, top_p: Tensor | None) -> Tensor:
    """`[L, V]`: `scaled[L, V]` with -inf for what top-k, then top-p, cut.

    Top-k keeps every token that equals the k-th best. Top-p keeps a token if the probabilities,
    after top-k, of all tokens before it add up to less than p, and the best token in any case;
    equal tokens are in the order of their ids.

    Args:
        scaled: `[L, V]` float32 or float64, relative to the best token: 0 or less. A row in which
            a NaN stands keeps all its tokens, or a NaN.
        top_k: `[L]` int; 0 or at least V is off. None if no row uses it.
        top_p: `[L]` float; at least 1 is off. None if no row uses it.

    Raises:
        ValueError: more than 2^20 tokens.
    """
    check_vocab(scaled.shape[1])
    parts = list(blocks(scaled))
    if len(parts) == 1:
        return _cut(scaled, top_k, top_p)
    out = torch.empty_like(scaled)
    for part in parts:
        out[part] = _cut(
            scaled[part],
            None if top_k is None else top_k[part],
            None if top_p is None else top_p[part],
        )
    return out


def _cut(scaled: Tensor, top_k: Tensor | None, top_p: Tensor | None) -> Tensor:
    k = None if top_k is None else _tokens_kept(top_k, scaled.shape[1])
    p = None if top_p is None else top_p.to(torch.float64)[:, None]
    way = _by_sort if scaled.numel() <= SORTED else _by_digits
    return way(scaled, k, p)


def _tokens_kept(top_k: Tensor, vocab: int) -> Tensor:
    """How many tokens `top_k[L]` keeps but for equals, `[L, 1]`: all where it is off."""
    return torch.where((top_k <= 0) | (top_k > vocab), vocab, top_k).to(torch.int64)[:, None]


def _mass_kept(total: Tensor, p: Tensor) -> Tensor:
    """The mass `[L, 1]` of tokens from which on the next ones are cut, of the `total[L, 1]`."""
    return (total * p).ceil_().to(torch.int64).clamp_(min=1)


def _by_sort(scaled: Tensor, k: Tensor | None, p: Tensor | None) -> Tensor:
    """`cut` for `k[L, 1]` and `p[L, 1]`; equals stay in the order of their ids."""
    ranked, order = scaled.sort(dim=-1, descending=True, stable=True)
    if k is not None:
        ranked.masked_fill_(ranked < ranked.gather(1, k - 1), _NEVER)
    if p is not None:
        masses = mass(ranked)
        sums = masses.cumsum(dim=-1)
        wanted = _mass_kept(sums[:, -1:], p)
        cuts = sums.sub_(masses) >= wanted
        ranked.masked_fill_(cuts.logical_and_(p < 1), _NEVER)
    return scaled.scatter(1, order, ranked)


def _by_digits(scaled: Tensor, k: Tensor | None, p: Tensor | None) -> Tensor:
    """The same."""
    keys = _keys(scaled)
    if k is not None:
        one = torch.ones((), dtype=torch.int64, device=scaled.device)
        kth, _ = _reach(keys, one.expand_as(keys), k)
        scaled = scaled.masked_fill(scaled < _score(kth, scaled), _NEVER)
    if p is None:
        return scaled
    masses = mass(scaled)
    wanted = _mass_kept(masses.sum(dim=-1, keepdim=True), p)
    last, before = _reach(keys, masses, wanted)
    worst = _score(last, scaled)
    # Of the tokens that equal the worst, as many as are needed to reach what is wanted.
    equal = scaled == worst
    each = torch.where(equal, masses, 0).amax(dim=-1, keepdim=True).clamp_(min=1)
    needed = (wanted - before + each - 1) // each
    cuts = (scaled < worst) | (equal & (equal.cumsum(dim=-1, dtype=torch.int32) > needed))
    return scaled.masked_fill(cuts & (p < 1), _NEVER)


def _keys(scaled: Tensor) -> Tensor:
    """`[L, V]` integers in the order of the tokens of `scaled[L, V]`: 0 for the best."""
    # abs: -0 becomes 0, with which it is equal.
    return scaled.abs().view(torch.int64 if scaled.dtype == torch.float64 else torch.int32)


def _score(keys: Tensor, scaled: Tensor) -> Tensor:
    """The scores `[L, 1]` that `keys[L, 1]` were made of, of the type of `scaled[L, V]`."""
    return keys.view(scaled.dtype).neg()


def mass(scaled: Tensor) -> Tensor:
    """The masses `[L, V]` int64 of `scaled[L, V]`: 2^42 exp(score), rounded down; 0 for NaN.

    Raises nothing of its own.
    """
    # fmax: a NaN is no number, and has no share.
    least = torch.full((), LEAST, dtype=torch.float32, device=scaled.device)
    score = torch.fmax(scaled.to(torch.float32), least)
    exponent = (score * -LOG2_E).sub_(0.5).ceil_()  # that of 1/2
    rest = score.add_(exponent * LN2_HIGH).add_(exponent * LN2_LOW)
    unit = 2.0**UNIT_BITS  # a power of 2 rounds nothing, so it may be a factor from the start
    series = rest * (unit / 720)
    for index, coefficient in enumerate(SERIES):
        if index:
            series.mul_(rest)
        series.add_(coefficient * unit)
    return series.to(torch.int64).bitwise_right_shift_(exponent.to(torch.int64))


def _reach(keys: Tensor, weights: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """The key `[L, 1]` at which `weights[L, V]` of `keys[L, V]`, added up in the order of the keys,
    reach `target[L, 1]`, and the sum `[L, 1]` of those before it; the last key if none does."""
    lines, low = len(keys), torch.zeros_like(keys[:, :1])
    before = target
    for shift, bits in _DIGITS[keys.dtype]:
        # Bin 0 has all keys below those in question, the last bin all above them.
        size = 1 << bits
        bins = (keys >> shift).sub_((low >> shift) - 1).clamp_(0, size + 1)
        sums = weights.new_zeros(lines, size + 2)
        sums.scatter_add_(1, bins.to(torch.int64), weights).cumsum_(dim=1)
        place = torch.searchsorted(sums, target).clamp_(1, size)
        before = sums.gather(1, place - 1)
        low = low + ((place - 1) << shift).to(keys.dtype)
    return low, before
