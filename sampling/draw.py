"""From logits to the distribution that a request asked for, and one draw from it.

Everything is a tensor per row, so one batch may mix greedy and sampled requests with different
settings. Nothing asks the device for a value: what the host already knows (whether any row has a
top-p at all) comes in as an ordinary bool, and only ever decides what is computed, not what comes
out.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..backends.kernels import runs_on
from .cuts import cut
from .noise import Purpose, gumbel
from .stand_ins import StandIns, widened
from .xtc import exclude_top

_NEVER = float("-inf")


def filtered_log_probs(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    *,
    min_p: Tensor | None = None,
    xtc: Tensor | None = None,
    any_random: bool = True,
    any_top_k: bool = True,
    any_top_p: bool = True,
    normalized: bool = True,
    stand_ins: StandIns | None = None,
) -> Tensor:
    """Log-probabilities `[L, V]` after temperature, top-k, top-p, min-p, then XTC; -inf where cut.

    The order and the meaning are those of the warpers of Hugging Face transformers: top-k keeps
    every token that equals the k-th best, top-p (Holtzman et al. 2019, arXiv:1904.09751) keeps the
    fewest best tokens whose probabilities reach p, at least one, min-p (Nguyen et al. 2024,
    arXiv:2407.01082) keeps the tokens with at least that share of the best one's probability.
    Where top-p must choose among equal tokens it keeps the lower ids, as argmax does (the
    reference leaves that open).

    Args:
        logits: `[L, V]`, float64 or narrower; narrower ones are computed in float32. Masked tokens
            are -inf; a row needs one token that is not.
        temperature: `[L]` float; 0 is greedy: the first best token has probability 1.
        top_k: `[L]` int; 0 or at least V is off.
        top_p: `[L]` float; 1 is off.
        min_p: `[L]` float in [0, 1); 0 is off. None if no row uses it (known to the host); rows
            that do not use it get the same bits either way.
        xtc: `[L]` float: the threshold of `xtc.exclude_top`; above 1 is off. None if no row uses
            it (known to the host).
        any_random: False if every row is greedy (known to the host): then nothing else is done.
        any_top_k, any_top_p: False if no row uses it (known to the host): saves a search. Rows
            that do not use them get the same bits either way.
        normalized: False leaves out the last pass: scores relative to the best token, which is all
            that `draw` needs.
        stand_ins: what counts in place of some of these lines; None if all are as they are.
    """
    wide = torch.promote_types(logits.dtype, torch.float32)
    if not any_random:
        logits = logits if stand_ins is None else widened(logits, stand_ins)
        return _only(logits.argmax(dim=-1, keepdim=True), logits, wide)
    log_min_p = None if min_p is None else min_p.to(wide).log()
    k, p = top_k if any_top_k else None, top_p if any_top_p else None
    if runs_on(logits):
        from .kernels import cut as kernel
        from .kernels.scale import scaled as scaled_by_kernel

        scaled = scaled_by_kernel(logits, temperature, stand_ins=stand_ins)
        if k is not None or p is not None or log_min_p is not None:
            scaled = kernel.cut(scaled, k, p, log_min_p)
    else:
        scaled = cut(_scaled(widened(logits, stand_ins), temperature), k, p)
        if log_min_p is not None:
            # The best token stands at 0, so this is the logarithm of every token's share of it.
            scaled = scaled.masked_fill(scaled < log_min_p[:, None], _NEVER)
    if xtc is not None:
        scaled = exclude_top(scaled, xtc)
    return scaled.log_softmax(dim=-1) if normalized else scaled


def _scaled(logits: Tensor, temperature: Tensor) -> Tensor:
    """Logits `[L, V]` relative to the best one, divided by the `temperature[L]`.

    Relative to the best token: dividing by a tiny temperature then ends in -inf, never in inf.
    Greedy rows have only their best token, to which filters and normalization do nothing.
    """
    greedy = (temperature <= 0)[:, None]
    divisor = torch.where(greedy, 1.0, temperature[:, None].to(logits.dtype))
    best = logits.argmax(dim=-1, keepdim=True)
    scaled = (logits - logits.gather(-1, best)) / divisor
    return torch.where(greedy, _only(best, logits, logits.dtype), scaled)


def _only(best: Tensor, logits: Tensor, dtype: torch.dtype) -> Tensor:
    """0 at the token `best[L, 1]` and -inf elsewhere, in the shape `[L, V]` of the logits."""
    return torch.full_like(logits, _NEVER, dtype=dtype).scatter_(-1, best, 0.0)


def draw(
    log_probs: Tensor,
    seeds: Tensor,
    positions: Tensor,
    greedy: Tensor,
    purpose: Purpose | int | Tensor,
    *,
    any_random: bool = True,
) -> Tensor:
    """One token per row, `[L]` int64: the Gumbel-max of `log_probs [L, V]` (need not be
    normalized), or its first best token where `greedy [L]` (bool).

    Noise is keyed by `seeds[L]`, `positions[L]` and `purpose[L]` (or one for all): see
    `noise.gumbel`. Not `torch.multinomial`: that draws from a generator whose state depends on
    everything drawn before.
    `any_random` False (known to the host) says that all rows are greedy, and skips the noise.
    """
    if not any_random:
        return log_probs.argmax(dim=-1)
    if runs_on(log_probs):
        from .kernels import choose

        return choose.draw(log_probs, seeds, positions, greedy, purpose)
    noise = gumbel(seeds, positions, purpose, log_probs.shape[-1])
    return (log_probs + noise.masked_fill(greedy[:, None], 0.0)).argmax(dim=-1)
