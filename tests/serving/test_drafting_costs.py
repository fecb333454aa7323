"""The periods of steps with 1, 2, … drafts, from some that were timed."""

import pytest

from stepweave.serving.drafting_costs import DraftingCosts, between, lengths


@pytest.mark.parametrize(
    ("most", "found"),
    [
        (1, (1,)),
        (2, (1, 2)),
        (3, (1, 2, 3)),
        (8, (1, 2, 3, 4, 5, 6, 7, 8)),
        (9, (1, 2, 3, 4, 5, 6, 7, 8, 9)),
        (16, (1, 2, 3, 4, 5, 6, 7, 8, 16)),
        (40, (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 40)),
    ],
)
def test_of_many_numbers_of_drafts_some_are_timed(most: int, found: tuple[int, ...]) -> None:
    assert lengths(most) == found


def test_periods_between_are_on_straight_lines() -> None:
    assert between({1: 10.0, 2: 13.0, 4: 17.0, 5: 20.0}) == (10.0, 13.0, 15.0, 17.0, 20.0)
    assert between({1: 7.0}) == (7.0,)


def test_the_policy_has_the_rows_in_order() -> None:
    found = DraftingCosts.of({4: {2: 30.0, 1: 20.04}, 1: {1: 5.0, 2: 6.0}})
    assert str(found) == ("{kind: fastest, rows: [1, 4], periods_us: [[5.0, 6.0], [20.0, 30.0]]}")
