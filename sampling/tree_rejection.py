"""Rejection sampling over draft trees: several drafts for one position, and still the target's
distribution.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .draw import draw
from .noise import Purpose, among, uniform
from .trees import along, depth_of, keep_chosen, real, rooted
from .windows import PARENT, Verified, Windows


def multi_round(windows: Windows) -> Verified:
    """Multi-round speculative sampling (Miao et al. 2024, SpecInfer, arXiv:2305.09781; without
    replacement: Jeon et al. 2024, arXiv:2402.14160).

    At a place of the tree its children are judged in order. Child x, drawn from q, is kept with
    probability min(1, p(x) / q(x)); if it is not, p becomes max(0, p - q), and q loses x, both
    normalized, for the next child. After the last, the token is drawn from what p has become. The
    output is distributed as the target if children are draws without replacement, or were not
    drawn at all: then q is 1 at each.

    A window without side branches settles what `verification.rejection` does, with the same
    noise: that of a position's further children is keyed by their rank. Whether a place has another
    child must not depend on what was drawn, so a draft that a grammar refuses is judged, and its
    probability of 0 refuses it. Greedy rows keep the drafts that equal the best token.
    """
    target, drafts, branches = windows.target, windows.drafts, windows.branches
    assert branches is not None, "the windows are trees"
    best = target.argmax(dim=-1)
    if not windows.any_random:
        return keep_chosen(windows, best)
    rows, width, vocab = target.shape
    judged = rooted(real(drafts, vocab), branches)
    place = torch.zeros_like(windows.seeds)
    p, mass = target[:, 0].exp(), target.new_ones(rows)
    left = torch.ones_like(p)  # 0 at tokens that were judged here
    rank = torch.zeros_like(place)
    for child in range(1, width):
        here = judged[:, child] & (branches[:, PARENT, child] == place)
        token = drafts[:, child - 1, None].clamp(0, vocab - 1)
        q, q_mass = _drawn_from(windows, child - 1, token, left, rank)
        u = uniform(
            windows.seeds,
            windows.positions + depth_of(place, branches),
            among(Purpose.ACCEPT, rank),
        )
        likely = u * q.gather(1, token)[:, 0] / q_mass < p.gather(1, token)[:, 0] / mass
        equal = token[:, 0] == best.gather(1, place[:, None])[:, 0]
        passes = torch.where(windows.greedy, equal, likely)
        kept, refused = here & passes, here & ~passes
        rest = (p / mass[:, None] - q / q_mass[:, None]).clamp_(min=0.0)
        total = rest.sum(dim=1)
        # Where p and q agree to the last bit nothing is left; then p itself is right.
        changed = refused & (total > 0)
        p, mass = torch.where(changed[:, None], rest, p), torch.where(changed, total, mass)
        left = torch.where(refused[:, None], left.scatter(1, token, 0.0), left)
        rank = rank + refused
        place = torch.where(kept, child, place)
        p = torch.where(kept[:, None], target[:, child].exp(), p)
        mass, rank = torch.where(kept, 1.0, mass), torch.where(kept, 0, rank)
        left = left.masked_fill(kept[:, None], 1.0)
    last = target.gather(1, place[:, None, None].expand(-1, 1, vocab))[:, 0]
    residual = ((rank > 0) & ~windows.greedy)[:, None]
    after = draw(
        torch.where(residual, p.log(), last),
        windows.seeds,
        windows.positions + depth_of(place, branches),
        windows.greedy,
        torch.where(rank > 0, int(Purpose.RESIDUAL), int(Purpose.BONUS)),
    )
    return along(windows, place, after)


def _drawn_from(
    windows: Windows, draft: int, token: Tensor, left: Tensor, rank: Tensor
) -> tuple[Tensor, Tensor]:
    """What a draft was drawn from after its elder siblings, `[R, V]`, and its mass `[R]`."""
    one = left.new_ones(len(left))
    if windows.draft_log_probs is None:
        return torch.zeros_like(left).scatter(1, token, 1.0), one
    q = windows.draft_log_probs[:, draft].exp() * left
    # Of the first child it is 1, to the last bit as where there are no others.
    return q, torch.where(rank > 0, q.sum(dim=1).clamp(min=torch.finfo(q.dtype).tiny), one)
