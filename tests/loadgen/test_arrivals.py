"""When requests come: seeded, at the rate that was asked for, as irregular as was asked for."""

from __future__ import annotations

from itertools import pairwise
from math import inf

import numpy as np
import pytest

from stepweave.loadgen.arrivals import Arrivals
from stepweave.loadgen.choices import RampUp


def gaps(arrivals: Arrivals, count: int = 20_001, seed: int = 3) -> np.ndarray:
    return np.diff(arrivals.offsets(count, seed))


def test_without_a_rate_all_come_at_once() -> None:
    assert Arrivals().offsets(3, 0) == [0.0, 0.0, 0.0]


def test_the_same_seed_gives_the_same_times_and_another_one_others() -> None:
    rate = Arrivals(5.0)
    assert rate.offsets(50, 1) == rate.offsets(50, 1)
    assert rate.offsets(50, 1) != rate.offsets(50, 2)
    assert rate.offsets(50, 1)[0] == 0.0
    assert all(before <= after for before, after in pairwise(rate.offsets(50, 1)))


def test_a_burstiness_of_one_is_a_poisson_process() -> None:
    found = gaps(Arrivals(5.0))
    # Exponential gaps of mean 1/5: the deviation is the mean, and P(gap > 1/5) is 1/e.
    assert found.mean() == pytest.approx(1 / 5, rel=0.03)
    assert found.std() == pytest.approx(1 / 5, rel=0.03)
    assert (found > 1 / 5).mean() == pytest.approx(np.exp(-1), abs=0.01)


@pytest.mark.parametrize("burstiness", [0.25, 4.0])
def test_burstiness_is_the_shape_of_the_gaps(burstiness: float) -> None:
    found = gaps(Arrivals(5.0, burstiness))
    # A gamma distribution of that shape has the variance mean² / shape.
    assert found.mean() == pytest.approx(1 / 5, rel=0.05)
    assert found.std() == pytest.approx(1 / 5 / burstiness**0.5, rel=0.05)


def test_bursts_come_together_at_the_same_rate_on_average() -> None:
    offsets = Arrivals(5.0, burst=4).offsets(8_001, 0)
    assert offsets[0:4] == [0.0] * 4
    assert len(set(offsets)) == 2_001
    assert all(len(set(offsets[first : first + 4])) == 1 for first in range(0, 8_000, 4))
    assert offsets[-1] == pytest.approx(8_000 / 5, rel=0.05)


@pytest.mark.parametrize(
    ("ramp_up", "middle"), [(RampUp.LINEAR, 5.5), (RampUp.EXPONENTIAL, 10**0.5)]
)
def test_a_ramp_goes_from_the_start_to_the_end(ramp_up: RampUp, middle: float) -> None:
    regular = 1e6  # a burstiness with which gaps hardly vary
    found = 1 / gaps(Arrivals(inf, regular, 1, ramp_up, 1.0, 10.0), 1_002)
    assert found[0] == pytest.approx(1.0, rel=0.02)
    assert found[500] == pytest.approx(middle, rel=0.02)
    assert found[-1] == pytest.approx(10.0, rel=0.02)
