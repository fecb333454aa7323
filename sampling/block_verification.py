"""Verification of the drafts of a window together, on the device: block verification.

R rows, k drafts, V tokens; like `verification`, it asks the host nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .draw import draw
from .noise import Purpose, of_window, uniform
from .verification import at, drawn_rest, followed_by, prefix, usable
from .windows import Verified, Windows


def block(windows: Windows) -> Verified:
    """Block verification (Sun et al. 2024, arXiv:2403.10444).

    Rejection sampling judges draft by draft, and one that is refused ends the window whatever
    stands behind it. Here the whole window is judged: the number of kept drafts is the largest at
    which a draw says so, where a draft that the target likes less than the drafter does can be made
    up for by those before it. The output is distributed as the target, and no rule that keeps a
    prefix of the drafts keeps more of them on average, so never fewer than rejection sampling.

    With p for the target and q for the drafter, the weight after i drafts is w_i = min(1, w_{i − 1}
    p(x_i) / q(x_i)), w_0 = 1. The mass left there is r_i = Σ_x max(0, w_i p(x) − q(x)). The first i
    drafts may be kept with the probability r_i / (r_i + 1 − w_i), all of them with w_k; the most
    for which that holds are, and the token after them is drawn from max(0, w_i p − q), after all of
    them from p.

    A draft that was not drawn has q = 1 at itself. Since drafts that are not kept had a say in how
    many are, neither they nor the draws may come again at their positions in the next window: both
    are keyed by the window and the place in it (`noise.of_window`), and drafts must be independent
    of the draws (`Purpose.DRAFT`). Greedy rows keep the drafts that equal the best token.
    """
    target, drafts, greedy = windows.target, windows.drafts, windows.greedy
    k, vocab = drafts.shape[1], target.shape[-1]
    judged = usable(drafts, windows.valid, vocab)
    best = prefix(judged & (drafts == target[:, :k].argmax(dim=-1)))
    count = judged.sum(dim=-1)
    if k == 0 or not windows.any_random:
        kept, after = best, at(target, best)
    else:
        index = drafts.clamp(0, vocab - 1)[..., None]  # a placeholder is never an index
        q = _drawn_from(windows, index)
        weights = _weights(target, q, index)
        rest = (weights[:, :k, None] * target[:, :k].exp()).sub_(q).clamp_(min=0.0)
        kept = torch.where(greedy, best, _kept(windows, judged, count, weights, rest))
        after = at(target, kept)
        residual = drawn_rest(at(rest, kept.clamp(max=k - 1)), after)
        after = torch.where(((kept < count) & ~greedy)[:, None], residual, after)
    token = draw(
        after,
        windows.seeds,
        windows.positions + kept,
        greedy,
        torch.where(kept < count, int(Purpose.RESIDUAL), int(Purpose.BONUS)),
        any_random=windows.any_random,
    )
    return followed_by(token, drafts, kept)


def _drawn_from(windows: Windows, index: Tensor) -> Tensor:
    """`[R, k, V]`: the probabilities that the drafts `index[R, k, 1]` were drawn with."""
    if windows.draft_log_probs is not None:
        return windows.draft_log_probs.exp()
    nothing = torch.zeros_like(windows.target[:, : index.shape[1]])
    return nothing.scatter_(-1, index, 1.0)


def _weights(target: Tensor, q: Tensor, index: Tensor) -> Tensor:
    """`[R, k + 1]`: how much of the target's mass is left after so many drafts."""
    k = index.shape[1]
    drawn = q.gather(-1, index)[..., 0].clamp_min(torch.finfo(q.dtype).tiny)
    ratios = target[:, :k].gather(-1, index)[..., 0].exp() / drawn
    weights = [torch.ones_like(ratios[:, 0])]
    for ratio in ratios.unbind(dim=1):
        weights.append((weights[-1] * ratio).clamp(max=1.0))
    return torch.stack(weights, dim=1)


def _kept(windows: Windows, judged: Tensor, count: Tensor, weights: Tensor, rest: Tensor) -> Tensor:
    """`[R]`: how many drafts are kept, of the `count[R]` that are `judged[R, k]`."""
    rows, k = judged.shape
    number = torch.arange(1, k + 1, device=judged.device)
    left = torch.cat([rest.sum(dim=-1)[:, 1:], torch.zeros_like(weights[:, :1])], dim=1)
    whole = left + 1.0 - weights[:, 1:]
    # Where nothing is left and nothing lacks, p equals q, and so do the weights that follow.
    chance = torch.where(whole > 0, left / whole, 1.0)
    chance = torch.where(number == count[:, None], weights[:, 1:], chance)
    u = uniform(
        windows.seeds.repeat_interleave(k, output_size=rows * k),
        windows.positions.repeat_interleave(k, output_size=rows * k),
        of_window(Purpose.ACCEPT, number - 1).repeat(rows),
    ).view(rows, k)
    return torch.where(judged & (u < chance), number, 0).amax(dim=1)
