"""The public parts suffice to write an acceptance rule and a drafter that draw numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from stepweave.policies import Coupled, Rejection
from stepweave.sampling import (
    Purpose,
    Verified,
    Windows,
    gumbel,
    prefix,
    then_drawn,
    uniform,
    usable,
)

ROWS, K, VOCAB = 400, 2, 3


def some() -> Windows:
    """Windows of rows that draw at random, with drafts that were not drawn."""
    made = torch.Generator().manual_seed(3)
    return Windows(
        target=torch.randn(ROWS, K + 1, VOCAB, generator=made).log_softmax(dim=-1),
        drafts=torch.randint(VOCAB, (ROWS, K), generator=made),
        valid=torch.randint(K + 1, (ROWS,), generator=made),
        seeds=torch.arange(ROWS),
        positions=torch.randint(50, (ROWS,), generator=made),
        greedy=torch.zeros(ROWS, dtype=torch.bool),
    )


def each_position(windows: Windows, count: int) -> tuple[Tensor, Tensor]:
    """The seed and the output position of the first `count` places of each window, flat."""
    at = windows.positions[:, None] + torch.arange(count)
    return windows.seeds.repeat_interleave(count), at.reshape(-1)


def by_chance(windows: Windows) -> Verified:
    """A rule of another package: each draft is kept with its probability in the target."""
    seeds, at = each_position(windows, K)
    chance = windows.target[:, :K].gather(-1, windows.drafts[..., None])[..., 0].exp()
    kept = uniform(seeds, at, Purpose.ACCEPT).view(ROWS, K) < chance
    return then_drawn(windows, prefix(usable(windows.drafts, windows.valid, VOCAB) & kept))


def test_a_rule_that_draws_keeps_the_drafts_that_the_shipped_one_keeps() -> None:
    windows = some()
    ours, shipped = by_chance(windows), Rejection().verify(windows)
    assert ours.counts.tolist() == shipped.counts.tolist()
    assert len(set(ours.counts.tolist())) == K + 1, "some rows keep all, some none"


def test_the_best_of_log_probabilities_and_noise_is_the_draw_that_the_target_makes() -> None:
    windows = some()
    seeds, at = each_position(windows, 1)
    scores = windows.target[:, 0]
    drawn = (scores + gumbel(seeds, at, Purpose.TARGET, VOCAB)).argmax(dim=-1)
    assert drawn.tolist() == Coupled().verify(windows).tokens[:, 0].tolist()
    others = (scores + gumbel(seeds, at, Purpose.DRAFT, VOCAB)).argmax(dim=-1)
    assert drawn.tolist() != others.tolist(), "a drafter's own draws are independent"
