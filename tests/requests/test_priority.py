"""Who goes first, who gives way, and that nobody gives way to his equals."""

import random

import pytest

from stepweave.requests.batch import StepBatch
from stepweave.requests.pools import one_class
from stepweave.requests.request import Request
from stepweave.requests.table import RequestTable
from tests.requests.memory_model import limits, request, settle


def run(table: RequestTable, first: int, steps: int) -> list[StepBatch]:
    batches = []
    for step in range(first, first + steps):
        batches.append(table.schedule(step))
        settle(table, batches[-1])
        table.check_conservation()
    return batches


def uids(batch: StepBatch) -> list[int]:
    return [row.request.uid for row in batch.rows]


def running(table: RequestTable) -> set[int]:
    return {each.uid for each in table.requests.values() if each.phase == "running"}


def test_requests_are_admitted_by_priority_and_then_by_arrival() -> None:
    table = RequestTable(limits(max_rows=8, token_budget=64, max_queue=9))
    for uid, priority in enumerate((1, 0, 2, 0, -1, 1)):
        table.submit(request(uid, prompt=2, window=1, priority=priority))
    assert uids(table.schedule(0)) == [4, 1, 3, 0, 5, 2]


def test_a_better_request_takes_the_row_of_the_worst_that_came_last() -> None:
    table = RequestTable(limits(max_rows=3, token_budget=64))
    table.submit_all(
        [request(uid, window=1, priority=priority) for uid, priority in enumerate((5, 7, 7))]
    )
    run(table, 0, 2)
    better = request(3, window=1, priority=6)
    table.submit(better)
    (batch,) = run(table, 2, 1)
    assert running(table) == {0, 1, 3}
    assert batch.rows[-1].request is better.spec
    assert table.preemptions == 1
    run(table, 3, 10)
    assert running(table) == {0, 1, 3}  # who gave way does not come back before there is room
    table.finish(better, "stop")
    run(table, 13, 1)
    assert running(table) == {0, 1, 2}
    assert table.preemptions == 1


def test_nobody_gives_way_to_an_equal() -> None:
    table = RequestTable(limits(max_rows=2, token_budget=64))
    table.submit_all([request(uid, window=1, priority=uid) for uid in range(2)])
    run(table, 0, 2)
    table.submit_all([request(2, window=1, priority=1), request(3, window=1, priority=1)])
    run(table, 2, 5)
    assert running(table) == {0, 1}
    assert table.preemptions == 0


def test_as_many_give_way_as_its_blocks_take_and_no_more() -> None:
    table = RequestTable(limits(max_rows=8, token_budget=64, num_blocks=12))
    table.submit_all([request(uid, prompt=11, window=1, priority=3) for uid in range(4)])
    run(table, 0, 1)
    assert running(table) == {0, 1, 2, 3}  # 3 blocks each
    table.submit(request(4, prompt=18, window=1, priority=2))  # 5 blocks
    table.schedule(1)
    assert running(table) == {0, 1, 4}
    table.check_conservation()


@pytest.mark.parametrize("equal", [0, 1])
def test_nobody_gives_way_in_vain(equal: int) -> None:
    table = RequestTable(limits(max_rows=8, token_budget=64, num_blocks=12))
    table.submit(request(0, prompt=30, max_tokens=18, window=1, priority=equal))  # 8 blocks
    table.submit(request(1, prompt=6, max_tokens=5, window=1, priority=2))
    run(table, 0, 1)
    table.submit(request(2, prompt=20, max_tokens=2, window=1, priority=1))  # 6 blocks
    run(table, 1, 1)
    assert running(table) == {0, 1}
    assert table.preemptions == 0


def test_blocks_that_others_hold_too_are_no_room() -> None:
    table = RequestTable(
        limits(max_rows=8, token_budget=64, num_blocks=12, draft_tokens=0), prefix_cache=True
    )
    table.submit(request(0, prompt=30, max_tokens=18, window=1, priority=1))  # 8 blocks
    run(table, 0, 2)
    table.submit(request(1, prompt=22, max_tokens=2, window=1, priority=2))  # 5 of these, and one
    run(table, 2, 1)
    assert table.prefix_hits == 20
    table.submit(request(2, (60,) * 20, max_tokens=2, window=1, priority=1))  # 6 blocks
    run(table, 3, 1)
    assert table.preemptions == 0


def test_a_prompt_under_way_goes_on_while_a_better_one_waits_for_room() -> None:
    table = RequestTable(limits(max_rows=8, token_budget=9, num_blocks=12))
    table.submit(request(0, prompt=30, max_tokens=15, window=1, priority=0))  # 8 blocks
    run(table, 0, 4)
    table.submit(request(1, prompt=15, max_tokens=2, window=1, priority=2))  # 4 blocks
    table.schedule(4)
    table.submit(request(2, prompt=20, max_tokens=2, window=1, priority=1))  # 6 blocks
    assert uids(table.schedule(5)) == [0, 1]
    assert running(table) == {0, 1}


@pytest.mark.parametrize("reuse", [1, 2, 3])
def test_room_that_rests_is_kept_for_whom_it_was_made(reuse: int) -> None:
    table = RequestTable(
        limits(max_rows=3, num_blocks=9, token_budget=64), block_leases=one_class(reuse)
    )
    worse = [request(uid, prompt=7, window=1, priority=2) for uid in range(3)]
    table.submit_all(worse)
    run(table, 0, 2)  # 2 blocks each, one more is about to be wanted by all
    better = request(3, prompt=14, window=1, priority=1)
    table.submit(better)
    run(table, 2, reuse)
    assert better.phase == "running"
    assert table.preemptions == 1


def test_where_blocks_run_out_the_worst_and_then_the_last_gives_way() -> None:
    table = RequestTable(limits(max_rows=4, num_blocks=8, token_budget=64))
    asked = [
        request(uid, prompt=7, window=1, priority=priority)
        for uid, priority in enumerate((1, 3, 1, 3))
    ]
    table.submit_all(asked)
    order: list[int] = []
    step = 0
    while not table.idle:
        before = [each.preemptions for each in asked]
        still = running(table)
        run(table, step, 1)
        for uid, each in enumerate(asked):
            if each.preemptions > before[uid]:
                assert (asked[uid].params.priority, uid) == max(
                    (asked[other].params.priority, other)
                    for other in still
                    if asked[other].preemptions == before[other] or other == uid
                )
                order.append(uid)
        step += 1
        assert step < 300
    assert order[:2] == [3, 1]
    assert asked[0].preemptions == 0


def test_who_is_the_worst_itself_keeps_what_it_has_until_somebody_wants_it() -> None:
    table = RequestTable(limits(max_rows=2, num_blocks=6, token_budget=64))
    early = request(0, prompt=8, max_tokens=16, window=1)
    late = request(1, prompt=11, max_tokens=9, window=1)
    table.submit_all([early, late])
    batches = run(table, 0, 3)
    assert [len(each.blocks) for each in (early, late)] == [3, 3]
    assert [uids(batch) for batch in batches] == [[0, 1], [0, 1], [0]]  # it lacks a fourth one
    assert late.phase == "running"
    run(table, 3, 2)
    assert (early.settled, late.preemptions) == (13, 0)
    run(table, 5, 1)
    assert (early.settled, late.preemptions) == (14, 1)


@pytest.mark.parametrize("seed", range(15))
def test_within_one_priority_nobody_is_overtaken_and_all_end(seed: int) -> None:
    rnd = random.Random(seed)
    depth = rnd.randrange(1, 4)
    table = RequestTable(
        limits(num_blocks=rnd.randrange(14, 24), token_budget=rnd.randrange(3, 20)),
        block_leases=one_class(rnd.choice([1, 2])),
        prefix_cache=rnd.random() < 0.5,
    )
    asked: list[Request] = []
    flying: list[StepBatch] = []
    started: list[int] = []
    step = 0
    while len(asked) < 25 or not table.idle:
        if len(asked) < 25 and rnd.random() < 0.4:
            asked.append(
                request(
                    len(asked),
                    prompt=rnd.randrange(1, 20),
                    max_tokens=rnd.randrange(1, 12),
                    window=rnd.choice([1, 3]),
                    priority=rnd.randrange(3),
                )
            )
            table.submit_all([asked[-1]])
        if len(flying) == depth:
            settle(table, flying.pop(0), rnd.randrange(1, 4))
        best = min(
            (each for each in asked if each.phase != "done"),
            key=lambda each: (each.params.priority, each.uid),
            default=None,
        )
        given_up = None if best is None else best.preemptions
        flying.append(table.schedule(step))
        assert best is None or best.preemptions == given_up, "the best is never preempted"
        for row in flying[-1].rows:
            if row.request.uid not in started:
                started.append(row.request.uid)
        step += 1
        assert step < 3000, "somebody starves"
    for priority in range(3):
        mine = [uid for uid in started if asked[uid].params.priority == priority]
        assert mine == sorted(mine)
    assert len(started) == 25
