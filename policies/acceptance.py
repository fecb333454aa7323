"""Which drafts of a window are kept, and the token after them.

Verification runs on the device and asks the host nothing. Shapes are padded: every row has k draft
places, -1 where there is none, and what a row may use is data. A rule is looked up by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Protocol

import torch
from torch import Tensor

from ..sampling.draw import draw
from ..sampling.kernels import runs_on
from ..sampling.noise import Purpose, uniform


@dataclass(frozen=True)
class Verified:
    """What a step settled.

    tokens: `[R, k + 1]` int64: the kept drafts, one more token, then -1.
    counts: `[R]` int64 in 1 … k + 1: how many of them are tokens.
    """

    tokens: Tensor
    counts: Tensor


class Acceptance(Protocol):
    """A rule that verifies draft windows against the target distribution."""

    def __call__(
        self,
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
        """Verify one window per row.

        Rows do not influence each other, and no place behind the first `valid` drafts and the
        token after them has any influence: masks there may be closed, logits may be anything.

        Args:
            target: `[R, k + 1, V]` log-probabilities, masked and filtered, one row per place.
            drafts: `[R, k]` int64, -1 where there is none.
            valid: `[R]` drafts that may be considered, grammar and hand-off already applied. The
                first -1 ends the window too.
            seeds: `[R]` int64, one per request.
            positions: `[R]` int64: the output position (0 for a request's first token) of place 0.
            greedy: `[R]` bool: take the best token; `target` may then be plain log-probabilities.
            draft_log_probs: `[R, k, V]` the distributions the drafts were drawn from, None for
                drafts that were not drawn (n-gram look-up, greedy drafters).
            any_random: False if all rows are greedy (known to the host): no noise is computed.
        """
        ...


def coupled(
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
    """Drafter-invariant coupling (Daliri, Musco, Suresh 2024, arXiv:2408.07978).

    The token at an output position is the Gumbel-max of the target with noise keyed by (seed,
    position); a draft is kept if it is that token. So seeded outputs do not depend on the drafts,
    their number or their source: they are those of decoding without drafts, and greedy decoding
    is the limit at temperature 0. The price: a draft of probability p is kept with probability p,
    where rejection sampling keeps a draft drawn from q with probability 1 - TV(p, q) on average.
    A drafter that draws with the same noise (`Purpose.TARGET`, same seed and position) gets most of
    it back: at least (1 - TV) / (1 + TV).

    `draft_log_probs` is not needed. Noise for all k + 1 places is computed. See `Acceptance`.
    """
    rows, places, vocab = target.shape
    if runs_on(target):
        from ..sampling.kernels import verify

        return Verified(
            *verify.coupled_scores(
                target, drafts, valid, seeds, positions, greedy, any_random=any_random
            )
        )
    if any_random:
        offsets = torch.arange(places, device=target.device)
        chosen = draw(
            target.reshape(rows * places, vocab),
            seeds.repeat_interleave(places, output_size=rows * places),
            (positions[:, None] + offsets).reshape(-1),
            greedy.repeat_interleave(places, output_size=rows * places),
            Purpose.TARGET,
        ).view(rows, places)
    else:
        chosen = target.argmax(dim=-1)
    return keep_equal(chosen, drafts, valid, vocab)


def rejection(
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
    rows keep the drafts that equal the best token. One row of noise per request is computed. See
    `Acceptance`.
    """
    rows, places, vocab = target.shape
    k = places - 1
    judged = usable(drafts, valid, vocab)
    index = drafts.clamp(0, vocab - 1)[..., None]  # a placeholder is never an index
    best = target[:, :k].argmax(dim=-1)
    if any_random:
        offsets = torch.arange(k, device=target.device)
        p = target[:, :k].gather(-1, index)[..., 0].exp()
        q = 1.0 if draft_log_probs is None else draft_log_probs.gather(-1, index)[..., 0].exp()
        u = uniform(
            seeds.repeat_interleave(k, output_size=rows * k),
            (positions[:, None] + offsets).reshape(-1),
            Purpose.ACCEPT,
        ).view(rows, k)
        passes = torch.where(greedy[:, None], drafts == best, u * q < p)
    else:
        passes = drafts == best
    kept = prefix(judged & passes)

    # The place after the kept drafts: a draft was refused there, or there was none to judge.
    last = at(target, kept)
    refused = kept < judged.sum(dim=-1)
    if k == 0 or not any_random:
        after = last  # a refused draft of a greedy row is not the best token: nothing to take out
    else:
        inner = kept.clamp(max=k - 1)
        residual = _residual(last, inner, index, draft_log_probs)
        after = torch.where((refused & ~greedy)[:, None], residual, last)
    purpose = torch.where(refused, int(Purpose.RESIDUAL), int(Purpose.BONUS))
    token = draw(after, seeds, positions + kept, greedy, purpose, any_random=any_random)

    return followed_by(token, drafts, kept)


ACCEPTANCE: Final[Mapping[str, Acceptance]] = MappingProxyType(
    {"coupled": coupled, "rejection": rejection}
)
"""Acceptance rules by their name in a pipeline file."""


def _residual(
    target: Tensor, place: Tensor, index: Tensor, draft_log_probs: Tensor | None
) -> Tensor:
    """log max(0, p - q) `[R, V]` at one place per row, not normalized."""
    if draft_log_probs is None:
        refused = index.gather(1, place[:, None, None])[:, 0]
        rest = target.scatter(-1, refused, float("-inf"))
    else:
        q = at(draft_log_probs, place).exp()
        rest = (target.exp() - q).clamp_(min=0.0).log()
    # Where p and q agree to the last bit nothing is left, though rounding of the test may have
    # refused the draft. Then p itself is right, and never a token that p does not allow.
    empty = rest.amax(dim=-1, keepdim=True) == float("-inf")
    return torch.where(empty, target, rest)


def at(rows: Tensor, place: Tensor) -> Tensor:
    """`[R, V]`: of `rows [R, W, V]` the place `[R]` of each."""
    every = place[:, None, None].expand(-1, 1, rows.shape[-1])
    return rows.gather(1, every)[:, 0]


def followed_by(token: Tensor, drafts: Tensor, kept: Tensor) -> Verified:
    """The first `kept [R]` of `drafts [R, k]`, and `token [R]` after them."""
    tokens = torch.cat([drafts, drafts.new_zeros(len(drafts), 1)], dim=-1)
    return up_to(tokens.scatter(-1, kept[:, None], token[:, None]), kept)


def keep_equal(chosen: Tensor, drafts: Tensor, valid: Tensor, vocab: int) -> Verified:
    """The drafts `[R, k]` that are the token `chosen[R, k + 1]` at their place, and one more."""
    kept = prefix(usable(drafts, valid, vocab) & (drafts == chosen[:, :-1]))
    # Up to the first difference the drafts are the chosen tokens, so no draft has to be copied.
    return up_to(chosen, kept)


def usable(drafts: Tensor, valid: Tensor, vocab: int) -> Tensor:
    """`[R, k]` bool: the drafts that may be judged, a prefix of each row."""
    places = torch.arange(drafts.shape[1], device=drafts.device)
    real = (drafts >= 0) & (drafts < vocab) & (places < valid[:, None])
    return real.cumprod(dim=-1).bool()


def prefix(passes: Tensor) -> Tensor:
    """`[R]` int64: how many of `passes [R, k]` hold before the first that does not."""
    return passes.cumprod(dim=-1).sum(dim=-1)


def up_to(tokens: Tensor, kept: Tensor) -> Verified:
    """The first `kept [R] + 1` of `tokens [R, k + 1]`, then -1."""
    places = torch.arange(tokens.shape[1], device=tokens.device)
    return Verified(tokens.masked_fill(places > kept[:, None], -1), kept + 1)
