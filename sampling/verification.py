"""Verification of draft windows on the device: the mathematics of the shipped acceptance rules.

Nothing here asks the host anything: no `.item()`, no boolean index, and no shape that depends on
what is accepted. The rules themselves, by name, are in `policies.acceptance`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from ..backends.kernels import runs_on
from .draw import draw
from .noise import Purpose, uniform
from .tree_rejection import multi_round
from .trees import along, deepest, depth_of, keep_chosen, real, rooted, up_to
from .windows import PARENT, Verified, Windows


def coupled(windows: Windows) -> Verified:
    """Drafter-invariant coupling (Daliri, Musco, Suresh 2024, arXiv:2408.07978).

    The token at an output position is the Gumbel-max of the target with noise keyed by (seed,
    position); a draft is kept if it is that token. So seeded outputs do not depend on the drafts,
    their number or their source: they are those of decoding without drafts, and greedy decoding
    is the limit at temperature 0. The price: a draft of probability p is kept with probability p,
    where rejection sampling keeps a draft drawn from q with probability 1 - TV(p, q) on average.
    A drafter that draws with the same noise (`Purpose.TARGET`, same seed and position) gets most of
    it back: at least (1 - TV) / (1 + TV).

    `draft_log_probs` is not needed. Noise for all k + 1 positions is computed.
    """
    target, greedy = windows.target, windows.greedy
    seeds, positions = windows.seeds, windows.positions
    rows, width, vocab = target.shape
    if runs_on(target) and windows.branches is None:
        from .kernels import verify

        return Verified(
            *verify.coupled_scores(
                target,
                windows.drafts,
                windows.valid,
                seeds,
                positions,
                greedy,
                any_random=windows.any_random,
            )
        )
    if windows.any_random:
        chosen = draw(
            target.reshape(rows * width, vocab),
            seeds.repeat_interleave(width, output_size=rows * width),
            windows.every_position.reshape(-1),
            greedy.repeat_interleave(width, output_size=rows * width),
            Purpose.TARGET,
        ).view(rows, width)
    else:
        chosen = target.argmax(dim=-1)
    if windows.branches is not None:
        return keep_chosen(windows, chosen)
    return keep_equal(chosen, windows.drafts, windows.valid)


def rejection(windows: Windows) -> Verified:
    """Speculative sampling (Leviathan et al. 2023, arXiv:2211.17192; Chen et al. 2023,
    arXiv:2302.01318).

    A draft x drawn from q is kept with probability min(1, p(x) / q(x)); the first that is not is
    replaced by a draw from max(0, p - q), normalized. The output is distributed as the target; a
    draft is kept with probability 1 - TV(p, q), the most that is possible. But a seeded output
    depends on where windows begin and on the drafts, so it differs from decoding without drafts.

    A draft that was not drawn has q = 1 at itself. Whether a drawn draft may be considered must not
    depend on what was drawn: one that a grammar refuses counts as `valid`, and its probability of 0
    refuses it; leaving it out would draw from p where max(0, p - q) is due. Draws are keyed by
    (seed, output position, purpose); drafts must be independent of them (`Purpose.DRAFT`). Greedy
    rows keep the drafts that equal the best token. One row of noise per request is computed. Trees
    are judged by `multi_round`.
    """
    if windows.branches is not None:
        return multi_round(windows)
    target, drafts, greedy = windows.target, windows.drafts, windows.greedy
    rows, width, vocab = target.shape
    k = width - 1
    judged = usable(drafts, windows.valid, vocab)
    index = drafts.clamp(0, vocab - 1)[..., None]  # a placeholder is never an index
    best = target[:, :k].argmax(dim=-1)
    if windows.any_random:
        p = target[:, :k].gather(-1, index)[..., 0].exp()
        drawn_from = windows.draft_log_probs
        q = 1.0 if drawn_from is None else drawn_from.gather(-1, index)[..., 0].exp()
        u = uniform(
            windows.seeds.repeat_interleave(k, output_size=rows * k),
            (windows.positions[:, None] + torch.arange(k, device=target.device)).reshape(-1),
            Purpose.ACCEPT,
        ).view(rows, k)
        passes = torch.where(greedy[:, None], drafts == best, u * q < p)
    else:
        passes = drafts == best
    kept = prefix(judged & passes)

    # The position after the kept drafts: a draft was refused there, or there was none to judge.
    last = at(target, kept)
    refused = kept < judged.sum(dim=-1)
    if k == 0 or not windows.any_random:
        after = last  # a refused draft of a greedy row is not the best token: nothing to take out
    else:
        inner = kept.clamp(max=k - 1)
        residual = _residual(last, inner, index, windows.draft_log_probs)
        after = torch.where((refused & ~greedy)[:, None], residual, last)
    purpose = torch.where(refused, int(Purpose.RESIDUAL), int(Purpose.BONUS))
    token = draw(
        after,
        windows.seeds,
        windows.positions + kept,
        greedy,
        purpose,
        any_random=windows.any_random,
    )
    return followed_by(token, drafts, kept)


def typical(windows: Windows, epsilon: float, delta: float) -> Verified:
    """Typical acceptance (Cai et al. 2024, arXiv:2401.10774): what is likely enough is kept.

    A draft is kept if its probability is above min(epsilon, delta exp(-H)), H the entropy of the
    target at its position: the less sure the target is, the less likely a draft may be. The token
    after the kept drafts is drawn from the target. The output is *not* distributed as the target:
    the drafts have a say in it. Greedy rows keep the drafts that equal the best token, so their
    tokens are those without drafts.
    """
    target, drafts = windows.target, windows.drafts
    vocab, k = target.shape[-1], drafts.shape[1]
    chances = target.softmax(dim=-1)
    entropy = torch.special.entr(chances).sum(dim=-1)
    least = (delta * torch.exp(-entropy)).clamp(max=epsilon)
    best, index = target.argmax(dim=-1), drafts.clamp(0, vocab - 1)  # a placeholder is no index
    if windows.branches is None:
        parents = torch.arange(k, device=drafts.device).expand_as(drafts)
    else:
        parents = windows.branches[:, PARENT, 1:]
    likely = chances.flatten(1).gather(1, parents * vocab + index) > least.gather(1, parents)
    passes = torch.where(windows.greedy[:, None], drafts == best.gather(1, parents), likely)
    if windows.branches is None:
        return then_drawn(windows, prefix(usable(drafts, windows.valid, vocab) & passes))
    return then_drawn_along(windows, passes)


def synthetic(windows: Windows, rates: Sequence[float]) -> Verified:
    """Drafts kept at fixed rates, whatever they are.

    The draft at window position j is kept with probability `rates[j]`, given that those before it
    were; the last rate also holds for all further positions, and greedy rows are treated alike. So
    the mean number of kept drafts is r0 + r0 r1 + r0 r1 r2 … Noise is keyed by (seed, output
    position). Drafts past `valid` or after a -1 are not kept, and the token after the kept ones is
    drawn from the target.
    """
    drafts, positions = windows.drafts, windows.positions
    passes = torch.ones_like(drafts, dtype=torch.bool)
    for window_position in range(drafts.shape[1]):
        rate = rates[min(window_position, len(rates) - 1)]
        passes[:, window_position] = (
            uniform(windows.seeds, positions + window_position, Purpose.SYNTHETIC) < rate
        )
    kept = prefix(usable(drafts, windows.valid, windows.target.shape[-1]) & passes)
    return then_drawn(windows, kept)


def then_drawn(windows: Windows, kept: Tensor) -> Verified:
    """The first `kept [R]` drafts of each window, and after them a draw from the target.

    The draw has the noise that decoding without drafts has at that position. Raises nothing of its
    own.
    """
    after = at(windows.target, kept)
    token = draw(
        after,
        windows.seeds,
        windows.positions + kept,
        windows.greedy,
        Purpose.TARGET,
        any_random=windows.any_random,
    )
    return followed_by(token, windows.drafts, kept)


def then_drawn_along(windows: Windows, passes: Tensor) -> Verified:
    """The longest path of drafts that pass, by `passes[R, k]`, and after it a draw from the target,
    as of `then_drawn`. Raises nothing of its own.
    """
    branches = windows.branches
    assert branches is not None, "the windows are trees"
    every = real(windows.drafts, windows.target.shape[-1]) & F.pad(passes, (1, 0), value=True)
    place = deepest(rooted(every, branches), branches)
    token = draw(
        at(windows.target, place),
        windows.seeds,
        windows.positions + depth_of(place, branches),
        windows.greedy,
        Purpose.TARGET,
        any_random=windows.any_random,
    )
    return along(windows, place, token)


def _residual(
    target: Tensor, window_position: Tensor, index: Tensor, draft_log_probs: Tensor | None
) -> Tensor:
    """log max(0, p - q) `[R, V]` at one window position per row, not normalized."""
    if draft_log_probs is None:
        refused = index.gather(1, window_position[:, None, None])[:, 0]
        rest = target.scatter(-1, refused, float("-inf"))
    else:
        q = at(draft_log_probs, window_position).exp()
        return drawn_rest((target.exp() - q).clamp_(min=0.0), target)
    empty = rest.amax(dim=-1, keepdim=True) == float("-inf")
    return torch.where(empty, target, rest)


def drawn_rest(left: Tensor, target: Tensor) -> Tensor:
    """log of the mass `left [R, V]`, as it is drawn from, `[R, V]`.

    Where p and q agree to the last bit nothing is left, though rounding of the test may have
    refused the draft. Then p itself, `target [R, V]` as logarithms, is right, and never a token
    that p does not allow.
    """
    rest = left.log()
    empty = rest.amax(dim=-1, keepdim=True) == float("-inf")
    return torch.where(empty, target, rest)


def at(rows: Tensor, window_position: Tensor) -> Tensor:
    """`[R, V]`: of `rows[R, W, V]` the line at `window_position[R]` of each."""
    every = window_position[:, None, None].expand(-1, 1, rows.shape[-1])
    return rows.gather(1, every)[:, 0]


def followed_by(token: Tensor, drafts: Tensor, kept: Tensor) -> Verified:
    """The first `kept [R]` of `drafts [R, k]`, and `token [R]` after them."""
    tokens = torch.cat([drafts, drafts.new_zeros(len(drafts), 1)], dim=-1)
    return Verified(up_to(tokens.scatter(-1, kept[:, None], token[:, None]), kept), kept + 1)


def keep_equal(chosen: Tensor, drafts: Tensor, valid: Tensor) -> Verified:
    """The `drafts[R, k]` that are the token `chosen[R, k + 1]` at their position, and one more.

    `valid[R]` drafts may be kept. What is no token is never chosen. Raises nothing of its own.
    """
    window_positions = torch.arange(drafts.shape[1], device=drafts.device)
    kept = prefix((drafts == chosen[:, :-1]) & (window_positions < valid[:, None]))
    # Up to the first difference the drafts are the chosen tokens, so no draft has to be copied.
    return Verified(up_to(chosen, kept), kept + 1)


def usable(drafts: Tensor, valid: Tensor, vocab: int) -> Tensor:
    """`[R, k]` bool: the drafts that may be judged, a prefix of each row.

    Of `drafts[R, k]` the first `valid[R]`, as long as they are tokens. Raises nothing of its own.
    """
    window_positions = torch.arange(drafts.shape[1], device=drafts.device)
    real = (drafts >= 0) & (drafts < vocab) & (window_positions < valid[:, None])
    return real.cumprod(dim=-1).bool()


def prefix(passes: Tensor) -> Tensor:
    """`[R]` int64: how many of `passes [R, k]` hold before the first that does not.

    Raises nothing of its own.
    """
    rows, drafts = passes.shape
    if not drafts:  # the same in each step, and so is what follows from it
        return torch.zeros(rows, dtype=torch.int64, device=passes.device)
    return passes.cumprod(dim=-1).sum(dim=-1)
