"""Times of kinds, told apart from a machine whose speed drifts."""

from __future__ import annotations

import random
from math import exp, log, sin
from statistics import fmean

import pytest

from stepweave.requests.relative_times import RelativeTimes


def test_nothing_is_known_at_first_and_a_single_time_is_taken_as_it_is() -> None:
    times = RelativeTimes()
    assert times.now() == {}
    times.note(3, 250.0)
    assert times.now() == {3: pytest.approx(250.0)}


def test_a_time_that_is_none_is_refused_and_changes_nothing() -> None:
    times = RelativeTimes()
    times.note(1, 100.0)
    for kind in (1, 2):
        with pytest.raises(ValueError, match="math domain"):
            times.note(kind, 0.0)
    times.note(3, 300.0)
    times.note(2, 200.0)
    now = times.now()
    assert sorted(now) == [1, 2, 3]
    assert now[1] < now[2] < now[3]


@pytest.mark.parametrize("seed", range(5))
def test_kinds_that_were_measured_far_apart_are_compared_as_if_in_turns(seed: int) -> None:
    """The medians of both say that the second takes longer: the machine was slow meanwhile."""
    draw, times = random.Random(seed), RelativeTimes()
    true = {1: 100.0, 2: 90.0}
    seen: dict[int, list[float]] = {1: [], 2: []}
    for turn in range(400):
        kind = 1 + (turn % 400 >= 200)
        us = true[kind] * (1 + 0.3 * sin(turn / 130 - 1.6)) * draw.uniform(0.95, 1.05)
        times.note(kind, us)
        seen[kind].append(us)
    assert sum(seen[1]) < sum(seen[2])
    assert times.now()[2] / times.now()[1] == pytest.approx(0.9, rel=0.08)


def test_all_kinds_follow_a_machine_that_becomes_slower() -> None:
    times = RelativeTimes()
    for _ in range(20):
        times.note(1, 100.0)
        times.note(2, 200.0)
    for _ in range(60):
        times.note(1, 150.0)
    assert times.now() == {1: pytest.approx(150.0, rel=0.02), 2: pytest.approx(300.0, rel=0.1)}


def test_a_stray_time_changes_little() -> None:
    times = RelativeTimes()
    for _ in range(30):
        times.note(1, 100.0)
        times.note(2, 120.0)
    times.note(2, 120_000.0)
    assert times.now()[2] / times.now()[1] == pytest.approx(1.2, rel=0.05)


def test_two_kinds_are_the_better_known_against_each_other_the_more_often_they_take_turns() -> None:
    """Whatever the machine's speed is."""
    times, off = RelativeTimes(), []
    for _ in range(12):
        times.note(1, 100.0)
        times.note(2, 200.0)
        assert times.unsure()[1][2] == times.unsure()[2][1]
        off.append(times.unsure()[1][2])
    assert off == sorted(off, reverse=True)
    assert 0.005 < off[-1] < 0.02 < off[0] < 0.06
    times.note(3, 150.0)
    assert times.unsure()[3][1] == pytest.approx(times.unsure()[3][2], rel=0.2)
    assert times.unsure()[3][1] > 2 * off[-1], "it was seen once"


@pytest.mark.parametrize(("noise", "drift"), [(0.02, 0.0), (0.2, 0.0), (0.0, 0.1), (0.15, 0.05)])
def test_two_kinds_are_as_unsure_as_they_are_off(noise: float, drift: float) -> None:
    """Of a machine that is disturbed more than is thought at first, by noise or in its speed."""
    draw, off, told = random.Random(1), list[float](), list[float]()
    for _ in range(60):
        times, speed = RelativeTimes(), 0.0
        for turn in range(96):
            speed += draw.gauss(0, drift)
            kind = 1 + (turn // 6 % 8 == 7)
            times.note(kind, 100 * kind * exp(speed + draw.gauss(0, noise)))
        off.append(log(times.now()[2] / times.now()[1] / 2))
        told.append(times.unsure()[1][2])
    really, said = fmean(each**2 for each in off) ** 0.5, fmean(told)
    assert said > 0.6 * really
    assert said < 2.5 * max(really, 0.01)


def test_a_time_is_above_nothing() -> None:
    with pytest.raises(ValueError, match=r"math domain|positive"):
        RelativeTimes().note(1, 0.0)
