"""Filters against transformers' own warpers, and draws against their distribution."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from stepweave.sampling.draw import draw, filtered_log_probs
from stepweave.sampling.noise import Purpose

INF = float("inf")


def one(
    logits: list[float], t: float = 1.0, k: int = 0, p: float = 1.0, min_p: float = 0.0
) -> Tensor:
    """Filtered probabilities of a single row, in float64."""
    return filtered_log_probs(
        torch.tensor([logits], dtype=torch.float64),
        torch.tensor([t]),
        torch.tensor([k]),
        torch.tensor([p]),
        min_p=torch.tensor([min_p]),
    )[0].exp()


@pytest.mark.parametrize("seed", range(6))
def test_rows_are_filtered_as_transformers_does(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows, vocab = 24, 97
    logits = torch.randn(rows, vocab, generator=generator, dtype=torch.float64) * 3
    logits[torch.rand(rows, vocab, generator=generator) < 0.3] = -INF  # a grammar's mask
    logits[:, 0] = 0.0
    temperature = torch.rand(rows, generator=generator, dtype=torch.float64) * 2 + 0.05
    top_k = torch.randint(0, vocab + 10, (rows,), generator=generator)
    top_p = torch.rand(rows, generator=generator, dtype=torch.float64) * 0.98 + 0.01
    top_p[::4] = 1.0
    min_p = torch.rand(rows, generator=generator, dtype=torch.float64) * 0.5
    min_p[::3] = 0.0

    ours = filtered_log_probs(logits, temperature, top_k, top_p, min_p=min_p)

    ids = torch.LongTensor([[0]])
    for row in range(rows):
        scores = TemperatureLogitsWarper(float(temperature[row]))(ids, logits[row : row + 1])
        if top_k[row]:
            scores = TopKLogitsWarper(int(top_k[row]))(ids, scores)
        if top_p[row] < 1:
            scores = TopPLogitsWarper(float(top_p[row]))(ids, scores)
        if min_p[row] > 0:
            scores = MinPLogitsWarper(float(min_p[row]))(ids, scores)
        expected = scores.log_softmax(-1)[0]
        assert torch.equal(ours[row].isinf(), expected.isinf())
        kept = expected.isfinite()
        torch.testing.assert_close(ours[row][kept], expected[kept])


def test_small_cases_by_hand() -> None:
    third = torch.tensor([1 / 3] * 3 + [0.0]).double()
    torch.testing.assert_close(one([2, 2, 2, 1], k=1), third)  # ties with the best all stay
    torch.testing.assert_close(one([2, 2, 2, 1], k=3), third)
    logs = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64).log().tolist()
    torch.testing.assert_close(one(logs, p=0.65), torch.tensor([4 / 7, 3 / 7, 0, 0]).double())
    torch.testing.assert_close(one(logs, p=0.0), torch.tensor([1.0, 0, 0, 0]).double())
    # top-k first: of {0.4, 0.3} alone the best has 4/7, which already reaches 0.5.
    torch.testing.assert_close(one(logs, k=2, p=0.5), torch.tensor([1.0, 0, 0, 0]).double())
    torch.testing.assert_close(one(logs, p=0.5), torch.tensor([4 / 7, 3 / 7, 0, 0]).double())
    torch.testing.assert_close(one([1.0, 3.0, 3.0], t=0.0), torch.tensor([0.0, 1, 0]).double())


def test_min_p_cuts_what_has_too_small_a_share_of_the_best() -> None:
    logs = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64).log().tolist()
    torch.testing.assert_close(one(logs, min_p=0.6), torch.tensor([4 / 7, 3 / 7, 0, 0]).double())
    # Shares are those after temperature: 0.3 / 0.4 squared is below 0.6.
    torch.testing.assert_close(one(logs, t=0.5, min_p=0.6), torch.tensor([1.0, 0, 0, 0]).double())
    # and those of tokens that top-k cut are gone; none falls for what top-p cut.
    torch.testing.assert_close(one(logs, k=1, min_p=0.1), torch.tensor([1.0, 0, 0, 0]).double())
    assert one([1.0, 3.0, 3.0], t=0.0, min_p=0.9).tolist() == [0, 1, 0], "greedy stays greedy"
    assert one([0.0, math.log(0.5)], min_p=0.5).tolist() == pytest.approx([2 / 3, 1 / 3]), (
        "at least"
    )
    assert one([3.0, 3.0, 2.0], min_p=0.99).tolist() == [0.5, 0.5, 0], "equals of the best stay"


def test_top_p_among_equal_tokens_keeps_the_lower_ids() -> None:
    assert one([0.0] * 5, p=0.55).tolist() == pytest.approx([1 / 3] * 3 + [0, 0])
    assert one([0.0] * 4, p=0.5).tolist() == [0.5, 0.5, 0, 0], "exactly reached is enough"


@pytest.mark.parametrize("temperature", [1e-30, 1e-42, 1e30])
def test_extreme_temperatures_give_numbers(temperature: float) -> None:
    result = filtered_log_probs(
        torch.tensor([[5.0, -INF, 4.0, 60000.0]]),
        torch.tensor([temperature]),
        torch.tensor([0]),
        torch.tensor([0.9]),
    )
    assert not result.isnan().any()
    assert result.exp().sum() == pytest.approx(1.0)
    assert result[0, 1] == -INF
    assert result[0].argmax() == (3 if temperature < 1 else 0), "flat: all equal, first wins"


def test_a_row_has_the_same_bits_in_any_batch_and_whatever_the_others_need() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(9, 1003, generator=generator)
    temperature = torch.tensor([0.0, 0.7, 1.0, 1.3, 0.0, 0.7, 2.0, 1.0, 0.5])
    top_k = torch.tensor([0, 0, 5, 0, 3, 50, 0, 0, 9])
    top_p = torch.tensor([1.0, 1.0, 1.0, 0.9, 1.0, 0.5, 1.0, 1.0, 0.8])
    min_p = torch.tensor([0.0, 0.0, 0.0, 0.0, 0.2, 0.1, 0.0, 0.3, 0.0])
    whole = filtered_log_probs(logits, temperature, top_k, top_p, min_p=min_p)
    for row in range(9):
        at = slice(row, row + 1)
        alone = filtered_log_probs(
            logits[at],
            temperature[at],
            top_k[at],
            top_p[at],
            min_p=min_p[at] if min_p[row] > 0 else None,
            any_random=bool(temperature[row] > 0),
            any_top_k=bool(top_k[row] > 0),
            any_top_p=bool(top_p[row] < 1),
        )
        assert torch.equal(alone, whole[at])


def test_greedy_is_the_first_best_token_and_has_probability_one() -> None:
    logits = torch.tensor([[1.0, 7.0, 7.0, -INF], [-INF, -INF, -3.0, -3.0]]).bfloat16()
    greedy = torch.zeros(2)
    off = torch.zeros(2, dtype=torch.int64)
    for any_random in (True, False):
        result = filtered_log_probs(logits, greedy, off, torch.ones(2), any_random=any_random)
        assert result.dtype == torch.float32
        assert result.tolist() == [[-INF, 0, -INF, -INF], [-INF, -INF, 0, -INF]]


def test_draws_follow_the_distribution_and_never_a_cut_token() -> None:
    n = 40_000
    p = torch.tensor([0.5, 0.0, 0.3, 0.15, 0.05], dtype=torch.float64)
    tokens = draw(
        p.log().expand(n, 5),
        torch.arange(n),
        torch.full((n,), 17),
        torch.zeros(n, dtype=torch.bool),
        Purpose.TARGET,
    )
    counts = torch.bincount(tokens, minlength=5).double()
    assert counts[1] == 0
    expected = p * n
    kept = p > 0
    chi = ((counts - expected) ** 2 / expected)[kept].sum()
    assert chi < 16.3  # 3 degrees of freedom, probability 0.001


def test_greedy_rows_ignore_noise_and_the_others_do_not_notice_them() -> None:
    n = 200
    log_probs = torch.randn(n, 50, generator=torch.Generator().manual_seed(0)).log_softmax(-1)
    seeds, positions = torch.arange(n), torch.arange(n) % 5
    greedy = torch.arange(n) % 2 == 0
    mixed = draw(log_probs, seeds, positions, greedy, Purpose.TARGET)
    random = draw(log_probs, seeds, positions, torch.zeros_like(greedy), Purpose.TARGET)
    assert torch.equal(mixed[greedy], log_probs.argmax(-1)[greedy])
    assert torch.equal(mixed[~greedy], random[~greedy])
    assert (random[greedy] != mixed[greedy]).any()
    assert torch.equal(
        draw(log_probs, seeds, positions, greedy | True, 0, any_random=False),
        log_probs.argmax(-1),
    )
