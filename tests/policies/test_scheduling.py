"""The shipped decisions of who runs and who gives way, one by one."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from stepweave.policies.preemption import FewestTokens, LastCome, RunningView
from stepweave.policies.scheduling import DecodesFirst, RowView, Scheduling, Shared


def decoding(uid: int, turn: int, window: int) -> RowView:
    return RowView(0, uid, turn, window, decodes=True, running=True)


def prompt(uid: int, tokens: int, priority: int = 0) -> RowView:
    return RowView(priority, uid, 0, tokens, decodes=False, running=False)


def round_of(policy: Scheduling, rows: list[RowView], left: int) -> dict[int, int]:
    """What each row gets in a round, in order, as the request table goes through it."""
    given: dict[int, int] = {}
    for row in policy.order(rows):
        if left < 1 or not (tokens := policy.tokens(row, left)):
            break
        given[row.uid] = tokens
        left -= tokens
    return given


def test_who_waited_longest_comes_first_and_nobody_passes_one_that_does_not_fit() -> None:
    rows = [decoding(0, 9, 1), decoding(1, 3, 4), decoding(2, 5, 4), decoding(3, 7, 1)]
    policy = DecodesFirst()
    assert list(round_of(policy, rows, 20)) == [1, 2, 3, 0]
    assert list(round_of(policy, rows, 8)) == [1, 2]
    assert list(round_of(policy, rows, 7)) == [1]  # the narrow ones would fit behind 2
    assert round_of(policy, rows, 3) == {}


def test_prompts_go_by_priority_and_arrival_and_take_what_is_left() -> None:
    rows = [prompt(3, 5), prompt(1, 9, priority=1), prompt(2, 4)]
    assert round_of(DecodesFirst(), rows, 12) == {2: 4, 3: 5, 1: 3}


def test_a_long_prompt_gets_so_many_tokens_of_a_step_and_no_more() -> None:
    rows = [prompt(0, 50), prompt(1, 3)]
    assert round_of(DecodesFirst(prompt_tokens=8), rows, 16) == {0: 8, 1: 3}
    assert round_of(DecodesFirst(prompt_tokens=8), rows, 6) == {0: 6}


def test_while_prompts_wait_a_share_of_the_budget_is_theirs_but_a_window_always_fits() -> None:
    policy = Shared(prompts=0.75)
    assert policy.share(16, widest=3, prompts=0) == 16
    assert policy.share(16, widest=3, prompts=1) == 4
    assert policy.share(16, widest=9, prompts=1) == 9
    assert DecodesFirst().share(16, widest=3, prompts=5) == 16


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(5, 12))
def test_rotation_gives_every_window_its_share(windows: list[int], tokens: int) -> None:
    turns = dict.fromkeys(range(len(windows)), 0)
    gap = dict.fromkeys(turns, 0)
    turn = 0
    for _ in range(40):
        rows = [decoding(uid, turns[uid], windows[uid]) for uid in turns]
        chosen = round_of(DecodesFirst(), rows, tokens)
        assert sum(windows[uid] for uid in chosen) <= tokens
        for uid in turns:
            gap[uid] = 0 if uid in chosen else gap[uid] + 1
            assert gap[uid] < len(windows), "it waits longer than if it were one row a step"
        for uid in chosen:
            turn += 1
            turns[uid] = turn


@given(st.lists(st.integers(-2, 2), min_size=1, max_size=8))
def test_the_last_in_the_order_of_admission_is_the_victim(priorities: list[int]) -> None:
    rows = [prompt(uid, 1, priority) for uid, priority in enumerate(priorities)]
    order = DecodesFirst().order(rows[::-1])
    for one, two in itertools.pairwise(order):
        assert one.priority < two.priority or (one.priority == two.priority and one.uid < two.uid)
    running = [RunningView(row.priority, row.uid, tokens=1, blocks=1) for row in rows]
    assert LastCome().victim(running) == order[-1].uid


def test_the_fewest_tokens_are_given_up_first_within_the_lowest_priority() -> None:
    running = [
        RunningView(1, 0, tokens=40, blocks=3),
        RunningView(1, 1, tokens=7, blocks=1),
        RunningView(0, 2, tokens=1, blocks=1),
        RunningView(1, 3, tokens=7, blocks=1),
    ]
    assert FewestTokens().victim(running) == 3
    assert FewestTokens().victim(running[:3]) == 1
