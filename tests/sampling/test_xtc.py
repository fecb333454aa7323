"""XTC: which tokens go, how often, and what is drawn then."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stepweave.sampling.draw import draw, filtered_log_probs
from stepweave.sampling.noise import Purpose
from stepweave.sampling.xtc import OFF, exclude_top, thresholds
from tests.policies.test_acceptance import chi_square, distributions, limit
from tests.sampling import plain_edits

INF = float("inf")


def left(probabilities: list[float], threshold: float) -> list[int]:
    """The tokens that a line of these probabilities keeps."""
    scores = torch.tensor([probabilities], dtype=torch.float64).log()
    kept = exclude_top(scores - scores.amax(), torch.tensor([threshold]))
    return [token for token, score in enumerate(kept[0].tolist()) if score > -INF]


def test_small_cases_by_hand() -> None:
    mixed = [0.1, 0.4, 0.2, 0.3]
    assert left(mixed, 0.15) == [0, 2], "of 0.4, 0.3 and 0.2 the least probable stays"
    assert left(mixed, 0.25) == [0, 2, 3]
    assert left(mixed, 0.35) == [0, 1, 2, 3], "one alone stays"
    assert left(mixed, 0.6) == [0, 1, 2, 3]
    assert left([0.25] * 4, 0.25 - 1e-6) == [3], "of equals the last"
    assert left([0.5, 0.5, 0.0], 0.1) == [1]
    assert left(mixed, OFF) == [0, 1, 2, 3]


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.floats(0.02, 0.6), st.booleans())
def test_what_goes_is_what_a_plain_program_says(
    shares: list[int], threshold: float, masked: bool
) -> None:
    shares = [*shares, 0] if masked else shares
    probabilities = [share / sum(shares) for share in shares]
    if any(abs(each - threshold) < 1e-5 for each in probabilities):
        return  # that near, rounding decides
    gone = set(plain_edits.xtc(probabilities, threshold))
    expected = [token for token, each in enumerate(probabilities) if each and token not in gone]
    found = left(probabilities, threshold)
    # Of equal tokens one stays, and which one is left open by the definition.
    assert sorted(shares[token] for token in found) == sorted(shares[token] for token in expected)


def test_a_line_comes_out_the_same_in_any_company_and_in_any_block() -> None:
    scores = distributions(9, 40_000, seed=2)
    scaled = scores - scores.amax(dim=-1, keepdim=True)
    each = torch.tensor([1e-4, 5e-5, OFF, 1e-3, 2e-5, 1.0, 1e-4, 0.5, 3e-4])
    whole = exclude_top(scaled, each)
    assert not torch.equal(whole, scaled)
    for line in range(9):
        at = slice(line, line + 1)
        assert torch.equal(exclude_top(scaled[at], each[at]), whole[at])
    assert torch.equal(whole[2], scaled[2]), "off"


@pytest.mark.parametrize("rows", [8_000, pytest.param(100_000, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("probability", [0.0, 0.35, 1.0])
def test_draws_follow_the_mixture_of_both_distributions(rows: int, probability: float) -> None:
    vocab, threshold = 9, 0.12
    p = distributions(vocab, seed=3)
    seeds, zeros = torch.arange(rows), torch.zeros(rows, dtype=torch.int64)
    ones = torch.ones(rows, dtype=torch.float64)
    log_probs = filtered_log_probs(
        p.expand(rows, -1),
        ones,
        zeros,
        ones,
        xtc=thresholds(seeds, zeros, ones * probability, ones * threshold),
    )
    tokens = draw(log_probs, seeds, zeros, zeros == 1, Purpose.TARGET)
    chances = p.double().exp()
    gone = plain_edits.xtc(chances.tolist(), threshold)
    assert len(gone) >= 2, "there is something to leave out"
    without = chances.clone()
    without[gone] = 0
    expected = rows * ((1 - probability) * chances + probability * without / without.sum())
    counts = torch.bincount(tokens, minlength=vocab)
    assert chi_square(counts, expected) < limit(int((expected > 0).sum()))
    if probability:
        plain = draw(p.expand(rows, -1), seeds, zeros, zeros == 1, Purpose.TARGET)
        assert not torch.equal(tokens, plain)


def test_whether_top_choices_go_depends_on_seed_and_position_alone() -> None:
    seeds = torch.arange(50).repeat(3)
    positions = torch.arange(3).repeat_interleave(50)
    half = torch.full((150,), 0.5)
    whole = thresholds(seeds, positions, half, half)
    assert 30 < int((whole == OFF).sum()) < 120
    order = torch.randperm(150, generator=torch.Generator().manual_seed(0))
    assert torch.equal(thresholds(seeds[order], positions[order], half, half), whole[order])
    assert not torch.equal(whole[:50], whole[50:100])
