"""Blocks under overlap: shared by prefix, freed by window, never written under a reader."""

import random
from collections.abc import Callable

import pytest

from stepweave.requests.blocks import BlockManager
from stepweave.requests.pools import one_class
from stepweave.requests.request import Request
from stepweave.requests.table import RequestTable
from tests.requests.memory_model import Device, Simulation, limits, request, settle


def simulation(
    seed: int = 0,
    depth: int = 1,
    *,
    prefix_cache: bool = True,
    ahead: int = 1,
    window: int | None = None,
    reuse: int = 1,
    swap: tuple[int, int, int] = (0, 0, 0),
    copies: bool = False,
    **sizes: int,
) -> Simulation:
    """`swap`: host blocks, and the leases from an owner to the copy and back."""
    host_blocks, out_after, back_after = swap
    ways = {("owner", "swap"): out_after, ("swap", "owner"): back_after, ("swap", "swap"): 1}
    size = limits(**{"draft_tokens": 3, "context_length": 48, "max_rows": 4, **sizes})
    table = RequestTable(
        size,
        block_leases={**one_class(reuse), **ways},
        prefix_cache=prefix_cache,
        cache_tail=ahead,
        sliding_window=window,
        host_blocks=host_blocks,
        copies=copies,
    )
    device = Device(size, window, ahead)
    rnd = random.Random(seed)
    return Simulation(table, device, depth, reuse, rnd, out_after=out_after)


def arrivals(rnd: random.Random, priorities: int = 1) -> Callable[[int], Request]:
    """Requests that begin like each other, or go on where an earlier one ended."""
    stems = [tuple(rnd.randrange(3) for _ in range(30)) for _ in range(2)]
    before: list[Request] = []

    def make(uid: int) -> Request:
        stem = rnd.choice(stems)[: rnd.randrange(1, 31)]
        over = [each for each in before if each.phase == "done" and each.settled < 40]
        if over and rnd.random() < 0.5:
            last = rnd.choice(over)
            stem = (*last.prompt_ids, *last.output_ids)
        prompt = stem + tuple(rnd.randrange(3) for _ in range(rnd.randrange(3)))
        before.append(
            request(
                uid,
                prompt,
                rnd.randrange(1, min(16, 49 - len(prompt))),
                window=rnd.choice([1, 1, 3, 4]),
                priority=rnd.randrange(priorities),
                prompt_logprobs=rnd.choice([None, None, None, 0]),
            )
        )
        return before[-1]

    return make


def served(
    world: Simulation,
    rnd: random.Random,
    often: float,
    arriving: Callable[[int], list[Request]],
) -> list[Request]:
    """24 requests or some more, each `arriving` at random; some are cancelled, some give way.

    All of them come to an end, and nothing is left of them.
    """
    table, requests = world.table, list[Request]()
    world.stop = 0.05
    while len(requests) < 24 or not table.idle:
        if len(requests) < 24 and rnd.random() < often:
            made = arriving(len(requests))
            requests += made
            table.submit_all(made)
        if rnd.random() < 0.03:
            table.cancel(rnd.randrange(24))
        running = [each for each in table.requests.values() if each.phase == "running"]
        if running and rnd.random() < 0.1:
            table.preempt(rnd.choice(running))
        world.step()
        assert world.steps < 3000, "it does not end"
    world.drain()
    assert all(each.phase == "done" for each in requests)
    assert table.request_slots.held == table.blocks.pool.held == frozenset()
    assert not table.blocks._records, "of requests that have ended"
    return requests


@pytest.mark.sampled(20)
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_every_read_finds_its_own_tokens(seed: int, depth: int) -> None:
    rnd = random.Random(seed)
    world = simulation(
        seed,
        depth,
        prefix_cache=seed % 5 > 0,
        ahead=seed % 2,
        window=rnd.choice([None, 1, 2, 5, 9]),
        reuse=rnd.choice([1, 1, 2, 3]),
        num_blocks=rnd.randrange(15, 32),
        token_budget=rnd.randrange(4, 24),
    )
    table = world.table
    make = arrivals(rnd, priorities=rnd.choice([1, 3]))
    requests = served(world, rnd, 0.3, lambda first: [make(first)])
    assert table.preemptions > 0
    if seed % 5:
        assert 0 < table.prefix_hits < table.prefix_queries
        assert all(
            each.cached_tokens == 0 for each in requests if each.params.prompt_logprobs is not None
        )


def test_requests_that_give_way_find_on_the_host_what_they_left() -> None:
    out = back = preempted = waited = 0
    for seed in range(24):
        rnd = random.Random(seed)
        swap = (rnd.choice([3, 12, 12]), rnd.choice([0, 1, 2, 3]), rnd.choice([0, 0, 1, 2]))
        world = simulation(
            seed,
            depth=seed % 3 + 1,
            prefix_cache=seed % 4 == 0,
            ahead=seed % 2,
            window=5 if seed % 7 == 0 else None,
            swap=swap,
            num_blocks=rnd.randrange(15, 20),
            token_budget=rnd.randrange(8, 24),
        )
        table, make = world.table, arrivals(rnd, priorities=3)
        requests = [make(uid) for uid in range(16)]
        for uid, each in enumerate(requests):
            table.submit(each)
            for _ in range(rnd.randrange(6)):
                waited += bool(table.blocks.swap.leaving)
                world.step()
            if rnd.random() < 0.05:
                table.cancel(rnd.randrange(uid + 1))
        world.drain()
        assert all(each.phase == "done" for each in requests)
        assert table.blocks.swap.host.held == table.blocks.pool.held == frozenset()
        out += table.totals.swapped_out
        back += table.totals.swapped_in
        preempted += table.preemptions
    assert min(preempted, out, back, waited) > 10


def serve(world: Simulation, *requests: Request) -> None:
    world.table.submit_all(requests)
    world.drain()


def first_row(world: Simulation, asked: Request) -> tuple[int, int, int]:
    """Start, prefix and tokens of the request's first row."""
    world.table.submit(asked)
    rows = [row for row in world.step().rows if row.request is asked.spec]
    return rows[0].start, len(rows[0].prefix), len(rows[0].tokens)


PROMPT = tuple(range(10, 22))


@pytest.mark.parametrize(
    ("prompt", "hit"),
    [
        (PROMPT, 8),  # at least one token is computed
        ((*PROMPT, 5), 12),
        ((*PROMPT[:11], 5, 5), 8),
        (PROMPT[:8], 4),
        ((5, *PROMPT[1:]), 0),
        (PROMPT[:4], 0),
    ],
)
def test_a_hit_is_the_longest_known_chain_of_whole_blocks_but_never_the_whole_prompt(
    prompt: tuple[int, ...], hit: int
) -> None:
    world = simulation(ahead=0)
    serve(world, request(0, PROMPT, 3, window=1))
    again = request(1, prompt, 3, window=1)
    assert first_row(world, again) == (hit, hit, len(prompt) - hit)
    assert again.cached_tokens == hit
    assert (world.table.prefix_queries, world.table.prefix_hits) == (12 + len(prompt), hit)
    world.drain()


@pytest.mark.parametrize(("spoken", "known"), [(8, 16), (9, 20)])
@pytest.mark.parametrize("depth", [1, 2])
def test_what_one_request_said_is_known_to_the_next_but_for_its_last_token(
    spoken: int, known: int, depth: int
) -> None:
    world = simulation(ahead=0, depth=depth)
    first = request(0, PROMPT, spoken, window=1)
    serve(world, first)
    again = request(1, (*PROMPT, *first.output_ids, 1, 2), 3, window=1)
    assert first_row(world, again)[0] == known
    world.drain()


def test_requests_with_and_without_a_drafter_share_nothing() -> None:
    world = simulation(ahead=0)
    serve(world, request(0, PROMPT, 3, window=1))
    assert first_row(world, request(1, PROMPT, 3, window=3))[0] == 0
    world.drain()
    assert first_row(world, request(2, PROMPT, 3, window=4))[0] == 8  # the drafter's are there now


def test_a_block_whose_last_position_knows_the_next_token_is_shared_only_where_that_is_equal() -> (
    None
):
    world = simulation(ahead=1)
    serve(world, request(0, (*PROMPT[:8], 1, 1), 3))
    assert first_row(world, request(1, (*PROMPT[:8], 2, 2), 3))[0] == 4
    world.drain()
    assert first_row(world, request(2, (*PROMPT[:8], 1, 2), 3))[0] == 8


def test_requests_that_want_every_logit_get_no_prefix_but_leave_one() -> None:
    world = simulation(ahead=0)
    serve(world, request(0, PROMPT, 3, window=1, prompt_logprobs=0))
    assert first_row(world, request(1, PROMPT, 3, window=1, prompt_logprobs=0))[0] == 0
    assert world.table.prefix_queries == 0
    world.drain()
    assert first_row(world, request(2, PROMPT, 3, window=1))[0] == 8


def test_two_equal_prompts_in_one_step_are_both_computed_and_one_stays() -> None:
    world = simulation(ahead=0, token_budget=64)
    serve(world, request(0, PROMPT, 3, window=1), request(1, PROMPT, 3, window=1))
    assert world.table.prefix_hits == 0
    assert len(world.table.blocks.pool.kept) == 3
    assert first_row(world, request(2, PROMPT, 3, window=1))[0] == 8


def test_the_prefixes_of_one_step_fit_the_staging_buffer() -> None:
    world = simulation(ahead=0, token_budget=64, num_blocks=60)
    serve(world, request(0, (1,) * 20, 3, window=1))
    again = [request(uid, (1,) * 22, 3, window=1) for uid in (1, 2, 3)]
    world.table.submit_all([*again, request(4, (2, 2), 3, window=1)])
    first, second = world.step(), world.step()
    assert [row.start for row in first.rows] == [20, 20]  # 60 tokens would be over 48
    assert [row.start for row in second.rows if not row.decodes] == [20, 0]
    world.drain()


def test_a_preempted_request_finds_its_own_blocks_again() -> None:
    world = simulation(ahead=0, depth=1)
    asked = request(0, PROMPT, 12, window=1)
    world.table.submit(asked)
    for _ in range(7):
        world.step()
    world.table.preempt(asked)
    world.step()
    row = world.step().rows[0] if not world.flying[-1].rows else world.flying[-1].rows[0]
    settled = asked.settled
    assert row.start == (settled - 2) // 4 * 4
    assert row.prefix == PROMPT[:12] + tuple(asked.output_ids[: row.start - 12])
    assert row.forced == asked.output_ids[-1] == row.following
    assert asked.cached_tokens == 0  # of the first admission
    world.drain()


def test_known_blocks_are_evicted_only_when_a_grant_needs_them_and_the_oldest_first() -> None:
    world = simulation(ahead=0, num_blocks=13, context_length=48, token_budget=64)
    serve(world, request(0, (1,) * 9, 2, window=1))
    serve(world, request(1, (2,) * 9, 2, window=1))
    assert len(world.table.blocks.pool.kept) == 4
    serve(world, request(2, (0,) * 37, 6, window=1))  # 11 blocks, of which 9 are free
    assert len(world.table.blocks.pool.kept) == 2 + 10
    assert first_row(world, request(3, (2,) * 9, 2, window=1))[0] == 8
    world.drain()
    assert first_row(world, request(4, (1,) * 9, 2, window=1))[0] == 0


def test_of_one_prefix_the_end_is_evicted_before_the_beginning() -> None:
    world = simulation(ahead=0, num_blocks=12, token_budget=64)
    serve(world, request(0, (1,) * 17, 2, window=1))
    serve(world, request(1, (0,) * 36, 5, window=1))  # 10 blocks, of which 8 are free
    assert first_row(world, request(2, (1,) * 17, 2, window=1))[0] == 8


def test_following_is_the_settled_token_after_a_chunk() -> None:
    world = simulation(prefix_cache=False, token_budget=5)
    asked = request(0, PROMPT, 6, window=1)
    world.table.submit(asked)
    chunks = [world.step().rows[0] for _ in range(3)]
    assert [row.following for row in chunks] == [PROMPT[5], PROMPT[10], -1]
    world.drain()


# -- sliding windows -------------------------------------------------------------------------


@pytest.mark.parametrize("window", [1, 2, 4, 5, 7])
def test_a_block_is_given_back_at_the_first_settled_token_that_allows_it(window: int) -> None:
    world = simulation(prefix_cache=False, window=window, token_budget=64)
    asked = request(0, 6, 30, window=1)
    world.table.submit(asked)
    frees: dict[int, int] = {}
    while asked.phase != "done":
        world.step()
        for index, block in enumerate(asked.blocks):
            if block == 0:
                frees.setdefault(index, asked.settled)
    # Brute force: the next query is at settled − 1 and attends to `window` keys, itself one.
    for index, settled in frees.items():
        seen = range(settled - 1 - window + 1, settled)
        assert index not in {position // 4 for position in seen}
        earlier = range(settled - 2 - window + 1, settled - 1)
        before_all = settled == asked.prompt_ids.__len__() + 1
        assert before_all or index in {position // 4 for position in earlier if position >= 0}
    assert len(frees) == (36 - 1 - window) // 4
    assert world.table.freed_by_window == len(frees)


def drafts_accepted(ledger: BlockManager, asked: Request) -> int:
    return asked.upper_bound() - 1


@pytest.mark.parametrize("depth", [2, 3])
def test_freeing_by_what_drafts_in_flight_may_come_to_would_be_noticed(
    depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run() -> None:
        world = simulation(3, depth, prefix_cache=False, window=3)
        make = arrivals(random.Random(3))
        for uid in range(24):
            world.table.submit(make(uid))
            for _ in range(5):
                world.step()
        world.drain()

    run()
    monkeypatch.setattr(BlockManager, "_in_place", drafts_accepted)
    with pytest.raises(AssertionError, match="gave back"):
        run()


def test_chunks_of_a_long_prompt_free_what_they_have_left_behind() -> None:
    world = simulation(prefix_cache=False, window=4, token_budget=8)
    asked = request(0, 40, 4, window=1)
    world.table.submit(asked)
    for _ in range(4):
        world.step()
    assert asked.blocks[:5] == [0] * 5  # 24 tokens committed; 21 … 24 are yet attended to
    assert asked.blocks[5] != 0
    assert len(asked.blocks) == 11
    world.drain()


def test_what_the_window_left_behind_can_still_be_found() -> None:
    world = simulation(window=4, ahead=0)
    serve(world, request(0, PROMPT, 20, window=1))
    assert world.table.freed_by_window > 0
    assert first_row(world, request(1, (*PROMPT, 1), 3, window=1))[0] == 12


# -- another run on the same table -----------------------------------------------------------


def test_steps_may_begin_anew_and_what_is_known_is_kept() -> None:
    table = RequestTable(
        limits(max_rows=1), slot_leases=one_class(2), block_leases=one_class(3), prefix_cache=True
    )
    table.submit(request(0, PROMPT, 3, window=1))
    for step in range(40, 60):
        settle(table, table.schedule(step))
    assert table.idle
    table.submit(request(1, PROMPT, 3, window=1))
    batch = table.schedule(0)
    assert [row.start for row in batch.rows] == [8]
    assert table.request_slots.available(10_000) == 0
    table.check_conservation()


def test_what_a_broken_run_left_running_is_computed_again_by_the_next() -> None:
    table = RequestTable(limits(), prefix_cache=True)
    asked = request(0, PROMPT, 5, window=1)
    table.submit(asked)
    settle(table, table.schedule(0))
    table.schedule(1)  # never committed
    batch = table.schedule(0)
    assert [(row.start, row.forced) for row in batch.rows] == [(8, asked.output_ids[-1])]
    table.check_conservation()


def test_what_comes_back_from_the_host_does_not_leave_again_in_the_same_step() -> None:
    size = limits(block_size=4, num_blocks=20, context_length=48, draft_tokens=0, max_rows=4)
    leases = {**one_class(1), ("swap", "swap"): 1, ("swap", "owner"): 0, ("owner", "swap"): 2}
    blocks = BlockManager(size, leases=leases, host_blocks=8)
    one = request(0, tuple(range(10)), max_tokens=20)
    one.arrive()
    assert blocks.admit(one, 0)
    one.prefilled = 10
    blocks._record(one).computed = 10
    one.output_ids = [7]
    one.last_step = 0
    assert blocks.can_keep(one, 3) == 2
    blocks.swap_out(one, 2, 3)
    blocks.release(one, 3)
    one.preemptions = 1
    assert blocks.swap.take() is not None
    assert blocks.admit(one, 6)
    assert blocks.can_keep(one, 6) == 0, "the copy to the device is of this very step"
    assert blocks.can_keep(one, 7) == 2


def test_what_is_kept_on_the_host_is_of_the_embedding_that_it_was_made_with() -> None:
    """A request gives way while it is short; steps in flight take it past the switch."""
    size = limits(block_size=4, num_blocks=20, draft_tokens=0, max_rows=4, rope_switch=11)
    leases = {**one_class(1), ("swap", "swap"): 1, ("swap", "owner"): 0, ("owner", "swap"): 0}
    for settled in (11, 12):
        blocks = BlockManager(size, leases=leases, host_blocks=8)
        one = request(0, tuple(range(10)), max_tokens=20, window=1)
        one.arrive()
        assert blocks.admit(one, 0)
        one.prefilled, one.output_ids, one.last_step = 10, [7], 0
        blocks._record(one).computed = 10
        blocks.swap_out(one, blocks.can_keep(one, 3), 3)
        blocks.release(one, 3)
        assert blocks.swap.take() is not None
        one.preemptions, one.output_ids = 1, [7] * (settled - 10)
        assert blocks.admit(one, 6)
        assert (one.long, one.prefilled) == ((False, 8) if settled == 11 else (True, 0))
        assert not blocks.swap.host.held
        blocks.release(one, 6)
        blocks.forget(one)
        blocks.check_conservation(())


def test_blocks_that_are_being_filled_are_found_by_nobody_else() -> None:
    leases = {**one_class(1), ("swap", "swap"): 1, ("swap", "owner"): 2, ("owner", "swap"): 1}
    table = RequestTable(
        limits(num_blocks=8, token_budget=32, context_length=40, draft_tokens=0),
        block_leases=leases,
        prefix_cache=True,
        host_blocks=16,
    )
    prompt = tuple(range(50, 62))
    first = request(0, prompt, 20, window=1, priority=1)
    better = request(1, tuple(range(100, 124)), 6, window=1)
    same, later = (request(uid, (*prompt, 7), 3, window=1, priority=1) for uid in (2, 3))
    table.submit_all([first])
    filled: dict[int, int] = {}
    sharing: set[int] = set()
    for step in range(60):
        if step == 3:
            table.submit_all([better])
        if filled and same.uid not in table.requests and not same.output_ids:
            table.submit_all([same])
        if filled and step == max(filled.values()) + 2:
            table.submit_all([later])
        batch = table.schedule(step)
        if batch.swaps is not None:
            filled |= {block: step for _, block in batch.swaps.into}
        for row in batch.rows:
            used = [step - filled[block] for block in row.blocks if block in filled]
            assert not used or min(used) >= 2
            if used:
                sharing.add(row.request.uid)
        settle(table, batch)
        if table.idle:
            break
    assert sharing == {0, 3}, "from then on others find them"
    assert same.output_ids


def test_a_block_that_was_copied_for_a_completion_rests_from_the_copy_on() -> None:
    leases = {**one_class(1), ("swap", "swap"): 1, ("swap", "owner"): 0, ("owner", "swap"): 3}
    table = RequestTable(
        limits(max_rows=4, num_blocks=40, token_budget=64, context_length=32, draft_tokens=0),
        block_leases=leases,
        host_blocks=16,
        copies=True,
    )
    made = [request(uid, 22, 6, window=1, fork_of=0) for uid in range(3)]
    table.submit_all(made)
    settle(table, table.schedule(0))
    batch = table.schedule(1)
    copied = {block for _, block in batch.copies}
    rowless = [each for each in made if each.uid not in {row.request.uid for row in batch.rows}]
    (waits,) = rowless
    assert waits.blocks[5] in copied
    target = waits.blocks[5]
    table.preempt(waits)
    assert table.blocks.pool.ready([target], "swap") == 1 + 3
