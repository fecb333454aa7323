"""What windows come to, by their drafts."""

from __future__ import annotations

import random

import pytest

from stepweave.requests.window_gains import REMEMBERED, TOGETHER, WindowGains


def test_the_mean_of_as_many_windows_is_told_once_they_are_there() -> None:
    gains = WindowGains()
    for window in range(TOGETHER - 1):
        gains.note(3, 1 + window % 2)
        gains.note(1, 2)
    assert gains.now() == {}
    gains.note(3, 2)
    assert gains.now() == {3: pytest.approx(1.5)}
    gains.note(1, 2)
    assert gains.now() == {3: pytest.approx(1.5), 1: pytest.approx(2.0)}


def test_windows_that_came_to_nothing_count_as_soon_as_any_came_to_something() -> None:
    gains = WindowGains()
    for _ in range(TOGETHER):
        gains.note(3, 0)
    assert gains.now() == {}, "no text is as short: nothing is known yet"
    for _ in range(TOGETHER):
        gains.note(3, 4)
    assert gains.now() == {3: pytest.approx(2.0)}
    for window in range(2 * TOGETHER):
        gains.note(1, 2 * (window % 4 > 0))
    assert gains.now()[1] == pytest.approx(1.5, rel=0.01)


@pytest.mark.parametrize("rows", [4, 64])
def test_windows_that_are_wasted_all_at_once_count_as_much_as_others(rows: int) -> None:
    """Texts of 32 tokens that begin and end together, with two windows in flight at their end."""
    gains = WindowGains()
    for drafts, kept in ((1, 2), (7, 4)):
        for _ in range(4000 // rows):
            for tokens in (*[kept] * (32 // kept), 0, 0):
                for _ in range(rows):
                    gains.note(drafts, tokens)
    assert gains.now()[1] == pytest.approx(32 / 18, rel=0.02)
    assert gains.now()[7] == pytest.approx(32 / 10, rel=0.02)


def test_what_ends_waste_is_that_of_the_texts_of_late() -> None:
    gains = WindowGains()
    for window in range(REMEMBERED):
        gains.note(3, 2 * (window % 2))
    assert gains.now()[3] == pytest.approx(1, rel=0.01)
    for _ in range(4 * REMEMBERED):
        gains.note(3, 2)
    assert gains.now()[3] == pytest.approx(2, rel=0.05)


@pytest.mark.parametrize("seed", range(3))
def test_numbers_that_came_up_far_apart_are_compared_as_if_texts_were_as_easy(seed: int) -> None:
    """Texts become harder, and then only one of two numbers comes up."""
    draw, gains = random.Random(seed), WindowGains()

    def windows(drafts: int, mean: float, number: int) -> None:
        for _ in range(number * TOGETHER):
            gains.note(drafts, draw.choice((1, 2 * round(mean) - 1)))

    for _ in range(20):
        windows(2, 2, 1)
        windows(4, 3, 1)
    assert gains.now()[4] / gains.now()[2] == pytest.approx(1.5, rel=0.12)
    easy = gains.now()[4]
    windows(2, 1, 150)
    assert gains.now()[2] == pytest.approx(1, rel=0.1)
    assert gains.now()[4] < 0.75 * easy, "it has not come up since, but would be less, too"
