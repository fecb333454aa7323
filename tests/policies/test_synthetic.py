"""Acceptance at given rates: the rates, and nothing but the rates."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from stepweave.policies.acceptance import Synthetic
from stepweave.sampling.draw import draw
from stepweave.sampling.noise import Purpose
from stepweave.sampling.windows import Windows

N = 50_000


def target(rows: int, places: int, vocab: int = 6) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(rows, places, vocab, generator=generator).log_softmax(-1)


@pytest.mark.parametrize("greedy", [False, True])
def test_each_place_keeps_its_draft_at_its_rate(greedy: bool) -> None:
    seeds, zeros = torch.arange(N), torch.zeros(N, dtype=torch.int64)
    drafts = torch.full((N, 4), 5)
    out = Synthetic(rates=(0.9, 0.6, 0.3)).verify(
        Windows(
            target(1, 5).expand(N, -1, -1),
            drafts,
            zeros + 4,
            seeds,
            zeros + 7,
            zeros == (0 if greedy else 1),
            any_random=not greedy,
        )
    )
    for place, rate in enumerate([0.9, 0.6, 0.3, 0.3]):
        judged = out.counts > place
        kept = (out.counts > place + 1)[judged].double().mean()
        error = 4 * (rate * (1 - rate) / int(judged.sum())) ** 0.5
        assert float(kept) == pytest.approx(rate, abs=error), place


@pytest.mark.parametrize(("rate", "kept"), [(0.0, 0), (1.0, 3)])
def test_certain_rates_are_certain_even_against_the_target(rate: float, kept: int) -> None:
    closed = target(500, 4).index_fill(2, torch.tensor([5]), float("-inf"))
    rows = torch.arange(500)
    out = Synthetic(rates=(rate,)).verify(
        Windows(closed, torch.full((500, 3), 5), rows * 0 + 3, rows, rows, rows < 0)
    )
    assert (out.counts == kept + 1).all()
    assert (out.tokens[:, :kept] == 5).all()


def test_what_is_cut_stays_cut_and_the_next_token_is_the_target_s() -> None:
    rows = 900
    generator = torch.Generator().manual_seed(3)
    distributions = target(rows, 4)
    drafts = torch.randint(-1, 6, (rows, 3), generator=generator)
    valid = torch.randint(0, 4, (rows,), generator=generator)
    seeds, positions = torch.arange(rows), torch.arange(rows) % 9
    greedy = torch.arange(rows) % 4 == 0
    out = Synthetic(rates=(1.0,)).verify(
        Windows(distributions, drafts, valid, seeds, positions, greedy)
    )
    usable = ((drafts >= 0) & (torch.arange(3) < valid[:, None])).cumprod(1).sum(1)
    assert torch.equal(out.counts, usable + 1)
    at = torch.arange(rows)
    after = draw(distributions[at, usable], seeds, positions + usable, greedy, Purpose.TARGET)
    assert torch.equal(out.tokens[at, usable], after)
    for place in range(4):
        shown = out.tokens[:, place]
        assert (shown[place > usable] == -1).all()
        if place < 3:
            assert torch.equal(shown[place < usable], drafts[:, place][place < usable])


def test_the_same_position_decides_alike_wherever_its_window_began() -> None:
    rows = torch.arange(400)
    rule = Synthetic(rates=(0.5,))
    two = rule.verify(
        Windows(target(400, 3), torch.full((400, 2), 1), rows * 0 + 2, rows, rows * 0 + 6, rows < 0)
    )
    one = rule.verify(
        Windows(target(400, 2), torch.full((400, 1), 1), rows * 0 + 1, rows, rows * 0 + 7, rows < 0)
    )
    reached = two.counts > 1
    assert torch.equal((two.counts == 3)[reached], (one.counts == 2)[reached])


@pytest.mark.parametrize("rates", [[], [0.5, 1.1], [-0.1], [float("nan")]])
def test_rates_that_cannot_be_are_refused(rates: list[float]) -> None:
    with pytest.raises(ValueError, match="rate"):
        Synthetic(rates=tuple(rates))
