"""The scheduler's promises: whole windows, fair gaps, upper bounds, conservation."""

import random

import pytest

from stepweave.requests.batch import StepBatch
from stepweave.requests.counts import InFlight
from stepweave.requests.pools import one_class
from stepweave.requests.request import RequestError, SamplingParams
from stepweave.requests.table import RequestTable
from tests.requests.memory_model import limits, request, settle


def test_a_decode_row_gets_its_own_whole_window_or_no_row() -> None:
    table = RequestTable(limits(token_budget=8))
    for uid, window in enumerate((1, 3, 4)):
        table.submit(request(uid, window=window))
    seen = set()
    for step in range(30):
        batch = table.schedule(step)
        used = sum(row.request.window if row.decodes else len(row.tokens) for row in batch.rows)
        assert used == sum(row.queries for row in batch.rows) <= 8
        seen |= {row.queries for row in batch.rows if row.decodes}
        settle(table, batch)
    assert seen == {1, 3, 4}


def test_a_step_that_has_no_drafts_has_windows_of_one_token_and_offers_none() -> None:
    table = RequestTable(limits(draft_tokens=3, num_blocks=60))
    for uid in range(2):
        table.submit(request(uid, prompt=1, max_tokens=40, window=4))
    windows, offered = [], []
    for step, drafts in enumerate([3, 3, 0, 0, 3, 3, 1, 3, None]):
        batch = table.schedule(step, drafts)
        windows.append({row.queries for row in batch.rows if row.decodes})
        offered.append({row.drafts for row in batch.rows})
        settle(table, batch)
    assert windows == [set(), {4}, {1}, {1}, {1}, {4}, {2}, {2}, {4}]
    assert offered == [{3}, {3}, {0}, {0}, {3}, {3}, {1}, {3}, {3}]


def test_a_wide_window_is_not_starved_by_narrow_ones() -> None:
    table = RequestTable(limits(token_budget=5, max_rows=4, draft_tokens=4, num_blocks=60))
    for uid, window in enumerate((1, 5, 1, 1)):
        table.submit(request(uid, prompt=1, max_tokens=40, window=window))
    turns = dict.fromkeys(range(4), 0)
    for step in range(40):
        batch = table.schedule(step)
        for row in batch.rows:
            turns[row.request.uid] += row.decodes
        settle(table, batch)
    assert min(turns.values()) > 10
    assert max(turns.values()) - min(turns.values()) <= 3


def test_a_window_in_flight_counts_with_the_drafts_that_it_has() -> None:
    """The step after one without drafts offers none, and what may come is known all the better."""
    table = RequestTable(limits(draft_tokens=3, num_blocks=60))
    asked = request(0, prompt=8, window=4)
    table.submit(asked)
    batches = [table.schedule(0), table.schedule(1), table.schedule(2, 1)]
    widths = [row.window for batch in batches[1:] for row in batch.rows]
    assert widths == [4, 2]
    assert asked.upper_bound() == 8 + 1 + sum(widths)
    for batch in batches:
        settle(table, batch)
    assert asked.in_flight == InFlight()


def test_blocks_are_reserved_for_the_window_that_the_request_has() -> None:
    table = RequestTable(limits(num_blocks=40))
    narrow, wide = request(0, prompt=8, window=1), request(1, prompt=8, window=3)
    table.submit_all([narrow, wide])
    table.schedule(0)
    assert (len(narrow.blocks), len(wide.blocks)) == (3, 4)  # 8 + 1 tokens; 8 + 1 + 2 · 2
    table.schedule(1)
    assert (narrow.upper_bound(), wide.upper_bound()) == (10, 12)
    table.schedule(2)
    assert (len(narrow.blocks), len(wide.blocks)) == (3, 4)  # 10 tokens; 12 + 2 · 2
    table.schedule(3)
    assert (len(narrow.blocks), len(wide.blocks)) == (3, 5)  # 11 tokens; 15 + 2 · 2


def test_a_narrow_window_may_fit_where_the_widest_would_not() -> None:
    table = RequestTable(limits(num_blocks=12))
    assert table.refuse_reason(40, 8, window=1) is None
    for window in (2, 3, None):
        assert "need 13 KV blocks" in str(table.refuse_reason(40, 8, window=window))


def test_with_a_tight_budget_no_row_waits_twice_as_long_as_another() -> None:
    table = RequestTable(limits(token_budget=6, draft_tokens=2))
    requests = [request(uid, prompt=2, max_tokens=12) for uid in range(3)]
    for each in requests:
        table.submit(each)
    turns = {0: 0, 1: 0, 2: 0}
    for step in range(14):
        batch = table.schedule(step)
        for row in batch.rows:
            turns[row.request.uid] += row.decodes
        settle(table, batch)
    assert max(turns.values()) - min(turns.values()) <= 1
    assert min(turns.values()) > 3


def test_rows_keep_their_place_for_life_and_a_new_life_has_a_new_generation() -> None:
    table = RequestTable(limits(max_rows=1))
    for uid in range(2):
        table.submit(request(uid, max_tokens=3))
    seen: dict[int, set[tuple[int, int]]] = {0: set(), 1: set()}
    for step in range(20):
        batch = table.schedule(step)
        for row in batch.rows:
            seen[row.request.uid].add((row.request_slot, row.generation))
        settle(table, batch)
    assert seen == {0: {(0, 1)}, 1: {(0, 2)}}


def test_a_request_certain_to_end_is_not_scheduled_again() -> None:
    table = RequestTable(limits(draft_tokens=0, token_budget=32))
    table.submit(request(0, prompt=4, max_tokens=2, window=1))
    first = table.schedule(0)  # prefill, one token in flight
    second = table.schedule(1)  # second token in flight
    third = table.schedule(2)
    assert [len(batch.rows) for batch in (first, second, third)] == [1, 1, 0]


def test_when_blocks_run_out_the_last_to_arrive_is_preempted_and_resumes_where_it_was() -> None:
    table = RequestTable(limits(num_blocks=8, draft_tokens=0, token_budget=32))
    early, late = request(0, prompt=12, window=1), request(1, prompt=8, window=1)
    table.submit(early)
    table.submit(late)
    for step in range(60):
        before = list(late.output_ids)
        batch = table.schedule(step)
        for row in batch.rows:
            if row.request is late.spec and row.forced >= 0:
                assert row.forced == before[-1]
                assert row.start + len(row.tokens) == late.settled - 1
                assert not row.yields
        settle(table, batch)
        table.check_conservation()
    assert late.preemptions > 0
    assert early.preemptions == 0
    assert early.phase == late.phase == "done"
    assert len(late.output_ids) == 20


def test_a_preempted_request_waits_for_its_steps_in_flight() -> None:
    table = RequestTable(limits(num_blocks=30, draft_tokens=0, token_budget=32))
    late = request(0, window=1)
    table.submit(late)
    first = table.schedule(0)
    table.preempt(late)
    assert not table.schedule(1)
    settle(table, first)
    resumed = table.schedule(2)
    assert [row.forced for row in resumed.rows] == [1]


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("seed", range(12))
def test_every_request_ends_and_every_block_comes_back(depth: int, seed: int) -> None:
    rnd = random.Random(seed)
    k = rnd.choice([0, 1, 3])
    table = RequestTable(
        limits(
            draft_tokens=k,
            token_budget=rnd.randrange(k + 1, 24),
            num_blocks=rnd.randrange(12, 20),
            context_length=40,
        ),
        block_leases=one_class(rnd.choice([1, 2])),
    )
    requests = [
        request(
            uid,
            prompt=rnd.randrange(1, 20),
            max_tokens=rnd.randrange(1, 16),
            window=rnd.choice([1, k + 1]),
        )
        for uid in range(8)
    ]
    for each in requests:
        assert table.refuse_reason(len(each.prompt_ids), each.max_tokens) is None
        table.submit(each)
    flying: list[StepBatch] = []
    step = 0
    while not table.idle and step < 2000:
        if len(flying) == depth:
            settle(table, flying.pop(0), rnd.randrange(1, k + 2))
        if rnd.random() < 0.02:
            table.cancel(rnd.randrange(8))
        batch = table.schedule(step)
        for row in batch.rows:
            drafts = row.request.window - 1
            settled = table.find(row.request.uid).settled
            reach = settled + 2 * drafts if row.decodes else row.start + len(row.tokens)
            assert len(row.blocks) * 4 >= min(reach, 40), "KV written past its blocks"
        flying.append(batch)
        table.check_conservation()
        step += 1
    while flying:
        settle(table, flying.pop(0))
    assert all(each.phase == "done" for each in requests)
    assert table.request_slots.held == table.blocks.pool.held == frozenset()
    assert sorted(table.take_ended()) == list(range(8))


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "reason"),
    [
        (0, 5, "the prompt is empty"),
        (64, 5, "the context of 64 tokens must hold it"),
        (40, 60, "KV blocks"),
    ],
)
def test_a_request_that_can_never_be_served_is_refused_with_the_reason(
    prompt: int, max_tokens: int, reason: str
) -> None:
    table = RequestTable(limits(num_blocks=12))
    refusal = table.refuse_reason(prompt, max_tokens)
    assert refusal is not None
    assert reason in refusal


def test_one_that_nobody_asked_whether_it_can_be_served_ends_with_the_reason() -> None:
    """Past `refuse_reason`, by `submit_all`: it would wait for room for ever, and all behind it."""
    table = RequestTable(limits(num_blocks=12))
    large, small = request(0, prompt=30, max_tokens=30), request(1)
    table.submit_all([large, small])
    for step in range(40):
        settle(table, table.schedule(step))
    assert table.idle
    assert (large.finish_reason, small.finish_reason) == ("error", "length")
    assert large.error == table.refuse_reason(30, 30, large.window)
    assert len(small.output_ids) == 20
    table.check_conservation()


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"seed": -1}, "seed"),
        ({"stop": ("",)}, "stop.0. must not be empty"),
    ],
)
def test_sampling_parameters_out_of_range_are_refused_by_name(
    wrong: dict[str, object], reason: str
) -> None:
    with pytest.raises(RequestError, match=reason):
        SamplingParams(**wrong)  # type: ignore[arg-type]
