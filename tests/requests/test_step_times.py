"""How long steps take by what they compute, as policies see it."""

from __future__ import annotations

from typing import Any

import pytest

from stepweave.requests import step_times
from stepweave.requests.batch import ScheduledRow
from stepweave.requests.step_times import FIRST, StepTimes
from tests.policies.on_paper import window_of


def test_steps_are_timed_by_kind_where_one_follows_another_and_the_first_are_over() -> None:
    now = 0.0
    times = StepTimes(clock=lambda: now)
    enough = 1 + FIRST + step_times.TOGETHER

    def steps(rows: list[ScheduledRow], number: int, seconds: float) -> None:
        nonlocal now
        for _ in range(number):
            now += seconds
            times.settled(rows)

    steps([window_of(2)], 1 + FIRST, 7.0)
    steps([window_of(2)], step_times.TOGETHER - 1, 0.5)
    assert times.of(1) == {}, "the first of them tell nothing"
    steps([window_of(2)], 1, 0.5)
    assert times.of(1) == {2: pytest.approx(0.5e6)}
    steps([window_of(1), window_of(3, 1)], enough, 0.25)
    assert times.of(2) == {3: pytest.approx(0.25e6)}, "by the widest window"
    prompt = window_of(2)._replace(start=0, tokens=(1, 2))
    steps([window_of(2), prompt], 99, 9.0)
    steps([], 99, 9.0)
    assert times.of(1) == {2: pytest.approx(0.5e6)}, "no prompts, no idle steps"
    assert times.of(2) == {3: pytest.approx(0.25e6)}


def test_what_steps_take_that_are_new_does_not_count_where_somebody_tells() -> None:
    now, new = 0.0, 0
    times = StepTimes(clock=lambda: now, learning=lambda: new)

    def steps(number: int, seconds: float, *, learning: bool) -> None:
        nonlocal now, new
        for _ in range(number):
            new += learning
            now += seconds
            times.settled([window_of(2)])

    steps(99, 9.0, learning=True)
    assert times.of(1) == {}
    steps(1, 9.0, learning=False)  # it may have been counted when the one before was noted
    steps(step_times.TOGETHER, 0.5, learning=False)
    assert times.of(1) == {2: pytest.approx(0.5e6)}, "the first count, too: they are not new"
    steps(1, 9.0, learning=True)
    steps(1, 9.0, learning=False)
    steps(step_times.TOGETHER, 0.25, learning=False)
    assert 0.25e6 <= times.of(1)[2] < 0.5e6, "what was still in flight is new"


def test_of_about_as_many_rows_the_number_that_came_most_often_is_usual() -> None:
    times = StepTimes(None)
    assert times.usual(3) == 0
    for many in (3, 4, 4, 3, 5, 8, 8, 1):
        times.scheduled([window_of(2, uid) for uid in range(many)])
    assert [times.usual(rows) for rows in (1, 2, 3, 4, 5, 16, 17)] == [1, 4, 4, 4, 8, 8, 0]


@pytest.mark.parametrize("clock", [None, lambda: 0.0])
def test_steps_are_counted_by_about_how_many_rows_they_have(clock: Any) -> None:
    times = StepTimes(clock)
    for many in (1, 3, 4, 5, 8, 9):
        times.scheduled([window_of(2, uid) for uid in range(many)])
    asked = (1, 2, 3, 4, 5, 7, 9, 16, 17)
    assert [times.came(rows).get(2, 0) for rows in asked] == [1, 2, 2, 2, 3, 3, 3, 3, 0]
    times.scheduled([window_of(2)._replace(withheld=1), window_of(3, 1)._replace(withheld=2)])
    assert [times.offered(rows)[0] for rows in (1, 2, 17)] == [2, 1, 0]
