"""Which requests that give way keep their blocks."""

import pytest

from stepweave.policies.resumption import Cheaper, KeptOnHost, LeavingView


@pytest.mark.parametrize(
    ("blocks", "keeps"),
    [(1, False), (2, False), (3, True), (40, True)],  # 2 (100 + 10 b) < 16 b · 6 from b = 3 on
)
def test_what_takes_less_is_chosen(blocks: int, keeps: bool) -> None:
    rule = Cheaper(start_us=100, block_us=10, token_us=6)
    assert rule.keeps(LeavingView(0, blocks, 16 * blocks)) is keeps


def test_both_copies_count_and_equal_costs_are_computed_again() -> None:
    assert not Cheaper(block_us=8, token_us=1).keeps(LeavingView(0, 5, 80))
    assert Cheaper(block_us=7.9, token_us=1).keeps(LeavingView(0, 5, 80))


def test_whatever_there_is_room_for_is_kept_where_nothing_is_said() -> None:
    assert KeptOnHost().keeps(LeavingView(3, 1, 1))
