"""Draft windows that a step verifies, and what came of them.

R rows, each with a position for each of k drafts and one after them: k + 1 positions, V
tokens. Shapes are padded: a row has -1 where it has no draft, and what of its window may be used
is data.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


PARENT, DEPTH, BITS = 0, 1, 2
"""Lines of a tensor of branches: of each place of a draft tree its parent, its depth, and as bits
of one number which places are its ancestors or itself."""


@dataclass(frozen=True, slots=True)
class Windows:
    """One draft window per row, with what a rule needs to verify it.

    target: `[R, k + 1, V]` log-probabilities, masked and filtered, one for each position. Not
        normalized where the rule is `exact`.
    drafts: `[R, k]` int64, -1 where there is none.
    valid: `[R]` int64: drafts that may be considered, grammar and hand-off already applied. The
        first -1 ends the window too.
    seeds: `[R]` int64, one per request.
    positions: `[R]` int64: the output position of window position 0; a request's first token has
        output position 0.
    greedy: `[R]` bool: take the best token. `target` may then be plain scores, or have probability
        1 at that token, by what the other rows are: nothing else of it may be used.
    draft_log_probs: `[R, k, V]`: the distributions that the drafts were drawn from. None for drafts
        that were not drawn (n-gram look-up, greedy drafters), and where the rule does not compare.
    any_random: False if all rows are greedy (known to the host): no noise has to be computed.
    branches: `[R, 3, k + 1]` int64 where windows are trees, see `trees`: then a draft follows its
        parent, a -1 ends its own path only, and `valid` says nothing. None: each follows the last.
    """

    target: Tensor
    drafts: Tensor
    valid: Tensor
    seeds: Tensor
    positions: Tensor
    greedy: Tensor
    draft_log_probs: Tensor | None = None
    any_random: bool = field(default=True, kw_only=True)
    branches: Tensor | None = field(default=None, kw_only=True)

    @property
    def every_position(self) -> Tensor:
        """`[R, k + 1]` int64: the output position of each window position."""
        import torch

        if self.branches is not None:
            return self.positions[:, None] + self.branches[:, DEPTH]
        offsets = torch.arange(self.target.shape[1], device=self.target.device)
        return self.positions[:, None] + offsets


@dataclass(frozen=True, slots=True)
class Verified:
    """What a step settled.

    tokens: `[R, k + 1]` int64: the kept drafts, one more token, then -1.
    counts: `[R]` int64 in 1 … k + 1: how many of them are tokens.
    paths: `[R, k + 1]` int64 of trees: at which window position each token was judged. None where
        windows are no trees: at its own.
    """

    tokens: Tensor
    counts: Tensor
    paths: Tensor | None = None
