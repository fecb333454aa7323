"""What windows of any length come to, by those that are settled."""

from __future__ import annotations

import random
from itertools import accumulate
from math import prod
from operator import mul

import pytest

from stepweave.policies.windows import Window, best_of, chances, shares, tokens_per_time


def test_chances_are_those_of_drafts_that_are_reached_place_by_place() -> None:
    assert chances([], 3) == [0.8, 0.8, 0.8]
    assert chances([Window(4, 4)] * 5, 1) == [5.8 / 6]
    assert chances([Window(4, 0)] * 9, 2) == [0.08, 0.08], "the second was never reached"
    assert chances([Window(2, 2)] * 99, 3)[2] == pytest.approx(1, abs=1e-2), "as the one before"
    assert chances([Window(4, 2), Window(0, 0)], 1) == [0.9], "no draft, nothing learned"
    falling = chances([Window(4, kept) for kept in (4, 2, 2, 2, 2, 1)] * 50, 4)
    assert falling == pytest.approx([1, 5 / 6, 1 / 5, 1], abs=0.02)
    assert shares([Window(4, 0)] * 9, 2) == [0.08, 0.08 * 0.08], "the second comes after the first"


@pytest.mark.parametrize("seed", range(5))
def test_the_best_length_is_that_of_trying_all_lengths(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(50):
        kept = [draw.random() for _ in range(5)]
        periods = [draw.uniform(1, 3) for _ in range(draw.randrange(1, 6))]

        def rate(drafts: int, kept: list[float] = kept, periods: list[float] = periods) -> float:
            return sum(prod(kept[:place]) for place in range(drafts + 1)) / periods[drafts - 1]

        rates = tokens_per_time([*accumulate(kept, mul)], periods)
        assert rates == pytest.approx([*map(rate, range(1, len(periods) + 1))])
        best = best_of(rates)
        assert rate(best) == pytest.approx(max(map(rate, range(1, len(periods) + 1))))
