"""An acceptance rule with rates that are given: for benchmarks, where a drafter is not at hand."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..sampling.draw import draw
from ..sampling.noise import Purpose, uniform
from .acceptance import Acceptance, Verified, at, followed_by, prefix, usable


def synthetic(rates: Sequence[float]) -> Acceptance:
    """A rule that keeps drafts at fixed rates, whatever they are.

    **Its outputs are not the model's**: a draft that the target would never give is kept as often
    as any other. It measures what an engine would do with a drafter of such rates, and nothing
    else.

    The draft at place j is kept with probability `rates[j]`, given that those before it were; the
    last rate also holds for all further places, and greedy rows are treated alike. So the mean
    number of kept drafts is r0 + r0 r1 + r0 r1 r2 … Noise is keyed by (seed, output position).
    Drafts past `valid` or after a -1 are not kept, and the token after the kept ones is drawn from
    the target. See `Acceptance`.

    Raises:
        ValueError: no rates, or one outside [0, 1].
    """
    if not rates:
        raise ValueError("synthetic acceptance needs a rate")
    if not all(0 <= rate <= 1 for rate in rates):
        raise ValueError(f"acceptance rates must be in [0, 1], not {list(rates)}")
    fixed = tuple(rates)

    def rule(
        target: Tensor,
        drafts: Tensor,
        valid: Tensor,
        seeds: Tensor,
        positions: Tensor,
        greedy: Tensor,
        draft_log_probs: Tensor | None = None,
        *,
        any_random: bool = True,
    ) -> Verified:
        _, places, vocab = target.shape
        passes = torch.ones_like(drafts, dtype=torch.bool)
        for place in range(places - 1):
            rate = fixed[min(place, len(fixed) - 1)]
            passes[:, place] = uniform(seeds, positions + place, Purpose.SYNTHETIC) < rate
        kept = prefix(usable(drafts, valid, vocab) & passes)
        after = at(target, kept)
        token = draw(after, seeds, positions + kept, greedy, Purpose.TARGET, any_random=any_random)
        return followed_by(token, drafts, kept)

    return rule
