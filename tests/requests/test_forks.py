"""Completions of one prompt: it is computed once, its full blocks shared, its last one copied."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from stepweave.requests.request import Request
from tests.requests.memory_model import request
from tests.requests.test_memory import served, simulation


def completions(first: int, n: int, prompt: tuple[int, ...], **asked: int) -> list[Request]:
    return [request(first + index, prompt, fork_of=first, **asked) for index in range(n)]


@pytest.mark.sampled(10)
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("seed", range(10))
def test_whatever_happens_every_read_finds_its_own_tokens(seed: int, depth: int) -> None:
    rnd = random.Random(seed)
    world = simulation(
        seed,
        depth,
        prefix_cache=seed % 3 == 0,
        ahead=seed % 2,
        window=rnd.choice([None, None, 2, 9]),
        reuse=rnd.choice([1, 1, 2]),
        swap=(12, rnd.choice([0, 2]), rnd.choice([0, 1])) if seed % 4 == 3 else (0, 0, 0),
        copies=seed % 5 > 0,
        num_blocks=rnd.randrange(15, 32),
        token_budget=rnd.randrange(4, 24),
    )
    table = world.table

    def arriving(first: int) -> list[Request]:
        prompt = tuple(rnd.randrange(3) for _ in range(rnd.randrange(1, 24)))
        asked = {
            "max_tokens": rnd.randrange(1, 16),
            "window": rnd.choice([1, 3]),
            "priority": rnd.randrange(2),
        }
        return completions(first, rnd.randrange(1, 5), prompt, **asked)

    served(world, rnd, 0.15, arriving)
    assert not table.blocks.forks._running
    assert table.totals.forked_tokens > 0
    assert bool(table.totals.copied_blocks) == (seed % 5 > 0)


@pytest.mark.parametrize(("copies", "again"), [(True, 1), (False, 3)])
@pytest.mark.parametrize("prefix_cache", [False, True])
def test_the_prompt_is_computed_once(copies: bool, again: int, prefix_cache: bool) -> None:
    """Of 11 tokens in blocks of 4 two are full, and the last is computed by each completion."""
    world = simulation(depth=2, prefix_cache=prefix_cache, copies=copies, num_blocks=40)
    prompt = tuple(range(11))
    made = completions(0, 3, prompt, max_tokens=4, window=1)
    world.table.submit_all(made)
    computed: Counter[int] = Counter()
    held = 0
    while not world.table.idle:
        batch = world.step()
        computed.update({row.request.uid: len(row.tokens) for row in batch.rows})
        held = max(held, len(world.table.blocks.pool.held))
    world.drain()
    assert computed == {0: 11, 1: again, 2: again}
    assert [each.cached_tokens for each in made] == [0, 11 - again, 11 - again]
    assert world.table.totals.forked_tokens == 2 * (11 - again)
    assert world.table.totals.copied_blocks == (2 if copies else 0)
    assert held <= 2 + 3 * 2, "two of the prompt, and two that each writes on in"
    assert world.table.prefix_hits == (2 * 8 if prefix_cache else 0)


def test_nobody_waits_for_a_prompt_that_fills_no_block() -> None:
    world = simulation(prefix_cache=False, copies=True)
    world.table.submit_all(completions(0, 3, (1, 2, 0, 1), max_tokens=2, window=1))
    assert len(world.step().rows) == 3


def test_others_do_not_wait_with_those_that_wait_for_a_prompt() -> None:
    world = simulation(prefix_cache=False, token_budget=8)
    world.table.submit_all([*completions(0, 3, tuple(range(20)), max_tokens=2), request(9, (1,))])
    rows = [[row.request.uid for row in world.step().rows] for _ in range(3)]
    assert rows[0] == rows[1] == [0], "the budget is the first one's"
    assert rows[2] == [0, 9]


def test_without_the_prefix_cache_nothing_of_a_single_request_is_kept() -> None:
    world = simulation(prefix_cache=False, copies=True)
    for uid in range(2):
        world.table.submit(request(uid, 9, max_tokens=2))
        world.drain()
        world.steps = 0
    assert world.table.blocks.pool.kept == frozenset()
    assert [each.cached_tokens for each in world.table.requests.values()] == []
    assert world.table.totals.cached_tokens == 0


def test_the_prompt_is_computed_once_in_the_place_of_others_too() -> None:
    """Those of a worse priority give way to the first completion, not to those that wait for it."""
    world = simulation(depth=2, prefix_cache=False, copies=True, num_blocks=60, token_budget=64)
    world.table.submit_all([request(90, 6, max_tokens=30, window=1, priority=5)])
    world.step()
    world.table.submit_all(completions(0, 3, tuple(range(11)), max_tokens=4, window=1))
    computed: Counter[int] = Counter()
    while not world.table.idle:
        for row in world.step().rows:
            computed[row.request.uid] += len(row.tokens)
    world.drain()
    assert (computed[0], computed[1], computed[2]) == (11, 1, 1)
