"""Top-k and top-p by a search for the threshold, against tokens ranked one by one."""

from __future__ import annotations

import math
from fractions import Fraction
from random import Random

import pytest
import torch
from torch import Tensor

from stepweave.sampling import blocks, cuts
from stepweave.sampling.cuts import UNIT_BITS, cut, mass

INF = float("inf")
CLOSE = Fraction(1, 10**6)
"""Of sums this close to p either verdict would be right: an exponential is rounded."""


@pytest.fixture(autouse=True, params=["sorted", "digit by digit"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which of the two ways to the thresholds is taken, whatever the size."""
    monkeypatch.setattr(cuts, "SORTED", 1 << 30 if request.param == "sorted" else 0)


def scores(seed: int, rows: int, vocab: int, *, ties: bool, spread: float = 3.0) -> Tensor:
    """Relative to the best token of each row; some are masked."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, vocab, generator=generator) * spread
    x = x.mul(4).round().div(4) if ties else x
    x[torch.rand(rows, vocab, generator=generator) < 0.2] = -INF
    x[:, 0] = 0.0
    return x - x.amax(dim=-1, keepdim=True)


def ranked_one_by_one(row: list[float], k: int, p: float) -> tuple[set[int], set[int]]:
    """Tokens that are kept, and of these and the others those whose sum is too close to p."""
    order = sorted(range(len(row)), key=lambda token: (-row[token], token))
    if 0 < k < len(row):
        order = [token for token in order if row[token] >= row[order[k - 1]]]
    order = [token for token in order if row[token] > -INF]
    if p >= 1:
        return set(order), set()
    shares = [Fraction(math.exp(row[token])) for token in order]
    total, before = sum(shares), Fraction(0)
    kept, close = set(), set()
    for index, (token, share) in enumerate(zip(order, shares, strict=True)):
        at = before / total
        if index == 0 or at < Fraction(p):
            kept.add(token)
        if index and abs(at - Fraction(p)) < CLOSE:
            close.add(token)
        before += share
    return kept, close


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_kept_is_what_ranking_every_token_keeps(dtype: torch.dtype, ties: bool) -> None:
    rows, vocab = 40, 300
    x = scores(1, rows, vocab, ties=ties).to(dtype)
    generator = torch.Generator().manual_seed(2)
    top_k = torch.randint(0, vocab + 9, (rows,), generator=generator)
    top_k[::2] %= 40
    top_p = torch.rand(rows, generator=generator, dtype=torch.float64)
    top_p[::5], top_p[1] = 1.0, 0.0
    found = cut(x, top_k, top_p)
    counted = 0
    for row in range(rows):
        kept, close = ranked_one_by_one(x[row].tolist(), int(top_k[row]), float(top_p[row]))
        ours = set(torch.nonzero(found[row] > -INF)[:, 0].tolist())
        assert ours - close == kept - close, row
        assert found[row][found[row] > -INF].tolist() == [x[row, t].item() for t in sorted(ours)]
        counted += len(close)
    assert counted <= 2, "the cases say next to nothing if all of them are close"


def test_each_of_them_may_be_left_out() -> None:
    x = scores(3, 6, 90, ties=True)
    k, p = torch.tensor([0, 5, 9, 1, 90, 200]), torch.tensor([1.0, 0.3, 0.9, 0.5, 0.7, 1.0])
    assert torch.equal(cut(x, None, None), x)
    assert torch.equal(cut(x, k, None), cut(x, k, torch.ones(6)))
    assert torch.equal(cut(x, None, p), cut(x, torch.zeros_like(k), p))
    assert torch.equal(cut(cut(x, k, None), None, p), cut(x, k, p))


@pytest.mark.parametrize("unit", [2.0**-30, 1e-6, 1.0, 11.0])
def test_scores_that_differ_in_their_last_bit_are_told_apart(unit: float) -> None:
    """All digits of a key count: each of these tokens is cut in turn."""
    vocab = 9
    x = torch.full((vocab, vocab), -unit)
    for token in range(1, vocab):
        x[:, token] = x[:, token - 1].nextafter(torch.tensor(-INF))
    top_k = torch.arange(1, vocab + 1)
    assert (cut(x, top_k, None) > -INF).sum(dim=1).tolist() == top_k.tolist()
    shares = top_k / vocab - 0.01
    assert (cut(x, None, shares) > -INF).sum(dim=1).tolist() == top_k.tolist()


def test_the_order_of_the_tokens_says_nothing_but_among_equals() -> None:
    x = scores(5, 4, 500, ties=False, spread=0.5)
    p = torch.tensor([0.1, 0.5, 0.9, 0.999])
    order = torch.randperm(500, generator=torch.Generator().manual_seed(6))
    assert torch.equal(cut(x[:, order], None, p), cut(x, None, p)[:, order])
    equal = torch.zeros(1, 1000)
    assert torch.equal(
        cut(equal, None, torch.tensor([0.9])),
        torch.where(torch.arange(1000) < 900, 0.0, -INF)[None],
    )


def test_both_ways_keep_the_same_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the last token, with equals at both thresholds, where a digit ends, and far apart."""
    random = Random(8)
    for seed in range(60):
        vocab, dtype = random.choice([1, 2, 33, 400]), random.choice([torch.float32, torch.float64])
        spread = random.choice([1e-6, 0.3, 3.0, 40.0])
        x = scores(seed, 5, vocab, ties=random.random() < 0.7, spread=spread).to(dtype)
        if random.random() < 0.3:
            x = x.sign() * 2.0 ** x.abs().log2().round()
        k = torch.tensor([random.randint(-1, vocab + 1) for _ in range(5)])
        p = torch.tensor([random.choice([0.0, 0.25, 0.5, 0.75, random.random(), 1.0]) for _ in k])
        found = []
        for largest in (0, x.numel()):
            monkeypatch.setattr(cuts, "SORTED", largest)
            found.append([cut(x, *which) for which in ((k, None), (None, p), (k, p))])
        assert all(map(torch.equal, *found)), (seed, vocab, dtype)


def test_rows_are_cut_a_few_at_a_time_as_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    x = scores(7, 7, 100, ties=True)
    k, p = torch.tensor([0, 3, 50, 0, 7, 99, 2]), torch.linspace(0.1, 1.0, 7)
    whole = cut(x, k, p)
    for few in (1, 100, 350):
        monkeypatch.setattr(blocks, "HOST_SCORES", few)
        assert torch.equal(cut(x, k, p), whole)


def test_a_mass_is_the_exponential_rounded_and_more_for_no_worse_token() -> None:
    x = torch.cat([-torch.logspace(-9, 1.35, 3000), torch.tensor([0.0, -0.0])])
    found = mass(x).double() / 2.0**UNIT_BITS
    within = (found - x.double().exp()).abs()
    assert (within <= 2.0**-22 * x.double().exp() + 2.0**-UNIT_BITS).all()
    assert mass(torch.tensor([-33.0, -INF, float("nan")])).tolist() == [0, 0, 0]
    assert mass(torch.zeros(2)).tolist() == [1 << UNIT_BITS] * 2


def test_a_row_of_a_broken_model_keeps_its_nan() -> None:
    x = torch.tensor([[-INF, float("nan"), -INF, -INF], [float("nan")] * 4])
    for p in (1.0, 0.5, 0.0):
        found = cut(x, torch.tensor([1, 2]), torch.full((2,), p))
        assert found.argmax(dim=-1).tolist() == [1, 0]
        assert found[0, 1].isnan()
        assert found[1, 0].isnan()


def test_too_many_tokens_are_refused() -> None:
    none, wide = torch.zeros(1), torch.zeros(1, 1).expand(1, 2**20 + 1)
    with pytest.raises(ValueError, match="1048577 tokens"):
        cut(wide, none.int(), none)
