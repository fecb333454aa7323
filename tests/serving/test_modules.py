"""Several modules that predict further tokens, in the engine: tokens and counts of every loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch

from stepweave.nodes.tree import Growth
from stepweave.policies.acceptance import Rejection
from stepweave.policies.chosen import Policies
from stepweave.requests.request import SamplingParams
from stepweave.testing.engines import (
    TinyConfig,
    fitted,
    tiny_engine,
    tiny_request,
    tiny_requests,
)
from tests.shares import one_in

BASE = TinyConfig(method="mtp", draft_tokens=4)
ASKED = [
    SamplingParams(max_tokens=20),
    SamplingParams(max_tokens=15, temperature=0.8, seed=3, top_k=30),
    SamplingParams(max_tokens=11),
]
Outcome = tuple[list[list[int]], list[tuple[int, int]]]


def outcome(config: TinyConfig, asked: Sequence[SamplingParams] = ASKED) -> tuple[Outcome, int]:
    """Tokens of each request, its drafted and accepted ones; and how often one gave way."""
    engine, requests = tiny_engine(config), tiny_requests(asked)
    table = engine.new_table()
    for request in requests:
        table.submit(fitted(engine, request))
    engine.run(table)
    assert [request.error for request in requests] == [None] * len(requests)
    counts = [(each.drafted, each.accepted) for each in requests]
    return ([list(each.output_ids) for each in requests], counts), table.preemptions


@cache
def by_serial_loop(config: TinyConfig) -> Outcome:
    """Tokens and counts at depth 1, with room for all."""
    return outcome(config)[0]


RUNS: list[dict[str, Any]] = [
    {"depth": 1, "padded": False},
    {"depth": 2, "executor": "threads"},
    {"depth": 3, "executor": "threads"},
    {"depth": 2, "executor": "threads", "padded": False},
]
ROOM: list[dict[str, Any]] = [
    {},
    {"token_budget": 9},
    {"num_blocks": 22},
    {"num_blocks": 22, "swap": 12},
    {"invariant": True, "dtype": torch.float32},
    {"cache_dtype": "fp8"},
    {"policies": Policies(acceptance=Rejection())},
]


TREES: dict[str, dict[str, Any]] = {
    "chain": {},
    "listed": {"tree": ((0,), (1,), (0, 0), (0, 1), (0, 0, 0)), "draft_tokens": 5},
    "grown": {"tree": Growth(width=2, depth=3, children=3), "draft_tokens": 6},
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("count", "run", "room", "tree"), [*product((2, 3), RUNS, ROOM, TREES)])
def test_tokens_are_those_without_modules_and_counts_those_of_the_serial_loop(
    count: int, run: dict[str, Any], room: dict[str, Any], tree: str
) -> None:
    means = {
        key: room[key] for key in ("invariant", "dtype", "cache_dtype", "policies") if key in room
    }
    config = replace(BASE, modules=count, **means, **TREES[tree])
    tokens, counts = by_serial_loop(config)
    (found, again), preemptions = outcome(replace(config, **run, **room))
    assert (found, again) == (tokens, counts)
    drafted, accepted = (sum(column) for column in zip(*counts, strict=True))
    assert 0 < accepted < drafted
    if "policies" not in room:
        plain = replace(TinyConfig(), **means)
        assert found == by_serial_loop(plain)[0]
    else:  # greedy rows are as without drafts
        assert found[::2] == by_serial_loop(TinyConfig())[0][::2]
    assert (preemptions > 0) == ("num_blocks" in room)


def test_further_modules_draft_other_tokens_than_one_repeated() -> None:
    counts = {count: by_serial_loop(replace(BASE, modules=count))[1] for count in (1, 3)}
    assert counts[1] != counts[3]
    one = [replace(each, draft_tokens=1) for each in ASKED]
    first = {outcome(replace(BASE, modules=count), one)[0][1][0] for count in (1, 3)}
    assert len(first) == 1, "the first draft is of the first module"


def test_a_long_prompt_beside_short_ones_is_read_by_every_module() -> None:
    """Rows of a pass gather as many keys as they reach: the next module's, too."""
    lengths = (70, 3, 5, 4)

    def served(config: TinyConfig) -> list[list[int]]:
        requests = [
            tiny_request(
                uid,
                [3 + (7 * uid + 11 * place) % 300 for place in range(length)],
                SamplingParams(max_tokens=9),
                context=128,
            )
            for uid, length in enumerate(lengths)
        ]
        engine = tiny_engine(replace(config, token_budget=96, context=128))
        table = engine.new_table()
        for request in requests:
            table.submit(fitted(engine, request))
        engine.run(table)
        assert [request.error for request in requests] == [None] * len(requests)
        return [list(request.output_ids) for request in requests]

    assert served(replace(BASE, modules=3)) == served(TinyConfig())


def test_a_tree_of_several_modules_keeps_more_than_its_likeliest_chain() -> None:
    listed = TREES["listed"]["tree"]
    chain = [node for node in listed if not any(node)]
    accepted = []
    for tree in (tuple(chain), listed):
        config = replace(BASE, modules=3, tree=tree, draft_tokens=len(tree))
        counts = by_serial_loop(config)[1]
        accepted.append(sum(each for _, each in counts))
    assert accepted[1] > accepted[0] > 0


@pytest.mark.sampled(1)
@pytest.mark.parametrize("depth", [1, 2])
def test_checking_mode_finds_no_access_that_is_not_declared(depth: int) -> None:
    config = replace(BASE, modules=3)
    found, _ = outcome(replace(config, depth=depth, check="strict"))
    assert found == by_serial_loop(config)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_prefix_that_is_shared_has_what_every_module_left_there(count: int) -> None:
    prompt = list(range(20, 49))
    params = SamplingParams(max_tokens=24, ignore_eos=True)
    engine = tiny_engine(replace(BASE, modules=count, prefix_cache=True, token_budget=11))
    table = engine.new_table()
    found = []
    for uid in range(2):
        request = fitted(engine, tiny_request(uid, prompt, params))
        table.submit(request)
        engine.run(table)
        found.append((list(request.output_ids), request.drafted, request.accepted))
    # Blocks of four, but that in which some module waits for a token behind the prompt.
    assert table.prefix_hits == (len(prompt) - count) // 4 * 4
    assert found[0] == found[1]
    assert 0 < found[0][2] < found[0][1]


@pytest.mark.parametrize(("tree", "prompt"), one_in(3, TREES, ([7], [7, 9], [7, 9, 11])))
def test_a_text_shorter_than_there_are_modules_is_the_plain_one(
    tree: str, prompt: list[int]
) -> None:
    """Its first windows have no place for what later modules keep."""

    def served(config: TinyConfig) -> list[int]:
        engine = tiny_engine(config)
        request = fitted(engine, tiny_request(0, prompt, SamplingParams(max_tokens=16)))
        table = engine.new_table()
        table.submit(request)
        engine.run(table)
        assert request.error is None
        return list(request.output_ids)

    assert served(replace(BASE, modules=4, **TREES[tree])) == served(TinyConfig())
