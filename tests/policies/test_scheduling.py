"""The decisions of the scheduler, one by one."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepweave.policies.scheduling import Budget, Claim, DecodeView, in_order, victim


def tried(budget: Budget, views: list[DecodeView]) -> list[int]:
    chosen = []
    for view in budget.decodes(views):
        budget.take(view.window)
        chosen.append(view.uid)
    return chosen


def test_who_waited_longest_comes_first_and_nobody_passes_one_that_does_not_fit() -> None:
    views = [
        DecodeView(0, turn=9, window=1),
        DecodeView(1, turn=3, window=4),
        DecodeView(2, turn=5, window=4),
        DecodeView(3, turn=7, window=1),
    ]
    assert tried(Budget(20), views) == [1, 2, 3, 0]
    assert tried(Budget(8), views) == [1, 2]
    assert tried(Budget(7), views) == [1]  # the narrow ones would fit behind 2
    assert tried(Budget(3), views) == []


def test_a_row_that_is_tried_and_not_taken_costs_nothing() -> None:
    budget = Budget(4)
    views = [DecodeView(uid, turn=uid, window=4) for uid in range(3)]
    assert [view.uid for view in budget.decodes(views)] == [0, 1, 2]
    budget.take(3)
    assert budget.left == 1
    with pytest.raises(AssertionError, match="budget"):
        budget.take(2)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(5, 12))
def test_rotation_gives_every_window_its_share(windows: list[int], tokens: int) -> None:
    turns = dict.fromkeys(range(len(windows)), 0)
    gap = dict.fromkeys(turns, 0)
    turn = 0
    for _ in range(40):
        views = [DecodeView(uid, turns[uid], windows[uid]) for uid in turns]
        chosen = tried(Budget(tokens), views)
        assert sum(windows[uid] for uid in chosen) <= tokens
        for uid in turns:
            gap[uid] = 0 if uid in chosen else gap[uid] + 1
            assert gap[uid] < len(windows), "it waits longer than if it were one row a step"
        for uid in chosen:
            turn += 1
            turns[uid] = turn


@given(st.lists(st.integers(-2, 2), max_size=8))
def test_the_last_in_the_order_of_admission_is_the_victim(priorities: list[int]) -> None:
    claims = [Claim(uid, priority) for uid, priority in enumerate(priorities)]
    order = in_order(reversed(claims))
    for one, two in itertools.pairwise(order):
        assert one.priority < two.priority or (one.priority == two.priority and one.uid < two.uid)
    assert victim(claims) == (order[-1].uid if claims else None)
