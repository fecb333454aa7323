"""What is known of figures by the number of drafts, against a conditioned normal distribution."""

from __future__ import annotations

import random
from math import exp, log
from statistics import fmean

import pytest
import torch

from stepweave.policies.estimates import EXACT, Estimates, estimated, hoped


def test_where_nothing_is_measured_it_is_as_thought_and_less_sure_further_away() -> None:
    thought = [1.0, 2.0, 4.0, 8.0]
    for measured, unsure in (({}, {}), ({1: 5.0}, {}), ({1: 5.0, 4: 9.0}, {1: {4: 0.1}})):
        found = estimated(thought, measured, unsure, 2, 0.1)
        assert found.means == pytest.approx([-log(2), 0, log(2), log(4)])
        ways = [log(3 / 2), 0, log(4 / 3), log(5 / 3)]
        assert found.variances == pytest.approx([0.01 * way for way in ways])


def test_a_number_that_is_known_well_counts_as_measured_and_takes_those_behind_it_along() -> None:
    thought, measured = [1.0, 2.0, 4.0, 8.0], {2: 2.0, 3: 6.0, 9: 1.0}
    unsure = {2: {3: 0.0, 9: 0.0}, 3: {2: 0.0, 9: 0.0}, 9: {2: 0.0, 3: 0.0}}
    found = estimated(thought, measured, unsure, 2, 0.1)
    assert [exp(each) for each in found.means] == pytest.approx([0.5, 1, 3, 6], rel=1e-3)
    ways = [log(3 / 2), 0, 0, log(5 / 4)]
    assert found.variances == pytest.approx([0.01 * way for way in ways], abs=1e-5)
    hardly = estimated(thought, measured, {2: {3: 9.0}, 3: {2: 9.0}}, 2, 0.1)
    assert [exp(each) for each in hardly.means] == pytest.approx([0.5, 1, 2, 4], rel=1e-3)


@pytest.mark.parametrize("seed", range(20))
def test_estimates_are_those_of_a_normal_distribution_given_what_was_measured(seed: int) -> None:
    """With the levels of all numbers, a walk and all that was measured in one covariance matrix."""
    draw = random.Random(seed)
    count, off = draw.randrange(2, 9), draw.uniform(0.02, 0.9)
    base = draw.randrange(1, count + 1)
    thought = [draw.uniform(1, 9) for _ in range(count)]
    known = sorted({base, *draw.sample(range(1, count + 1), draw.randrange(1, count + 1))})
    measured = {drafts: draw.uniform(1, 9) for drafts in known}
    mixed = torch.randn(len(known), len(known), generator=torch.Generator().manual_seed(seed)) / 9
    noise = (mixed @ mixed.T).double()
    unsure = {
        one: {
            other: float(noise[a, a] + noise[b, b] - 2 * noise[a, b]) ** 0.5
            for b, other in enumerate(known)
            if a != b
        }
        for a, one in enumerate(known)
    }
    found = estimated(thought, measured, unsure, base, off)

    each = torch.tensor([log((n + 1) / n) for n in range(1, count + 1)], dtype=torch.float64)
    steps = torch.tril(torch.ones(count, count, dtype=torch.float64)) * each.sqrt() * off
    walk = steps @ steps.T
    against = torch.eye(count, dtype=torch.float64)
    against[:, base - 1] -= 1  # a figure less that of the base
    prior = against @ walk @ against.T
    rows = torch.tensor([drafts - 1 for drafts in known if drafts != base], dtype=torch.long)
    to_base = torch.eye(len(known), dtype=torch.float64)
    to_base[:, known.index(base)] -= 1
    kept = [place for place, drafts in enumerate(known) if drafts != base]
    seen_noise = (to_base @ noise @ to_base.T)[kept][:, kept] + EXACT * torch.eye(len(kept))
    mean = torch.tensor(thought, dtype=torch.float64).log() - log(thought[base - 1])
    if kept:
        seen = torch.tensor([log(measured[known[place]] / measured[base]) for place in kept])
        gain = prior[:, rows] @ torch.linalg.inv(prior[rows][:, rows] + seen_noise)
        mean = mean + gain @ (seen.double() - mean[rows])
        prior = prior - gain @ prior[rows]
    assert found.means == pytest.approx(mean.tolist(), abs=1e-5)
    assert found.variances == pytest.approx(prior.diagonal().tolist(), abs=1e-5)


def test_of_quotients_means_are_taken_off_and_doubts_add_up() -> None:
    tokens, periods = Estimates([0.0, 0.5], [0.0, 0.02]), Estimates([0.0, 0.2], [0.0, 0.01])
    assert tokens.over(periods) == Estimates([0.0, 0.3], [0.0, 0.03])
    assert tokens.as_sure(True).over(periods) == Estimates([0.0, 0.3], [0.0, 0.01])
    assert tokens.as_sure(False) is tokens


@pytest.mark.parametrize("mean", [-0.3, -0.05, 0.0, 0.1])
@pytest.mark.parametrize("off", [0.01, 0.1, 0.5])
def test_what_is_hoped_is_the_mean_of_what_is_above_nothing(mean: float, off: float) -> None:
    draw = random.Random(7)
    drawn = fmean(max(0.0, draw.gauss(mean, off)) for _ in range(40_000))
    assert hoped(mean, off**2) == pytest.approx(drawn, abs=0.02 * off)
    assert hoped(mean, 0.0) == max(0.0, mean)
