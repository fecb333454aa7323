"""Completions of one prompt share its blocks, and write what they would have written alone."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from stepweave import LLM
from stepweave.requests.request import SamplingParams
from stepweave.requests.step_counts import StepCounts
from stepweave.requests.table import RequestTable
from stepweave.testing.engines import TinyConfig, fitted, tiny_engine, tiny_request
from tests.shares import one_in

N = 3
PROMPT = (5, 9, 31, 7, 200, 41, 5, 9, 17, 88, 31)  # of 11 tokens; blocks are of 4
DRAFTERS = {
    "none": TinyConfig(),
    "model": TinyConfig(draft_tokens=3, method="draft_model"),
    "eagle": TinyConfig(draft_tokens=2, method="eagle"),
    "mtp": TinyConfig(draft_tokens=2, method="mtp"),
    "ngram": TinyConfig(draft_tokens=3, method="ngram"),
}
DEPTHS = ((1, "serial"), (2, "threads"), (3, "threads"))
Found = list[tuple[list[int], int, int]]


def served(config: TinyConfig, *, forks: bool, **changes: Any) -> tuple[Found, RequestTable]:
    engine = tiny_engine(replace(config, **changes))
    requests = [
        tiny_request(
            uid,
            PROMPT,
            SamplingParams(max_tokens=10, temperature=0.9, seed=uid, repetition_penalty=1.2),
        )
        for uid in range(N)
    ]
    table = engine.new_table()
    table.counts = StepCounts()
    for each in requests:
        each.fork_of = 0 if forks else None
    table.submit_all([fitted(engine, each) for each in requests])
    engine.run(table)
    assert [each.error for each in requests] == [None] * N
    return [(list(r.output_ids), r.drafted, r.accepted) for r in requests], table


@cache
def alone(drafter: str) -> Found:
    """As independent requests, by the synchronous loop."""
    return served(DRAFTERS[drafter], forks=False)[0]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("run", "drafter", "copies", "prefix_cache"),
    one_in(5, DEPTHS, DRAFTERS, (True, False), (False, True)),
)
def test_completions_are_those_of_independent_requests(
    run: tuple[int, str], drafter: str, copies: bool, prefix_cache: bool
) -> None:
    depth, executor = run
    config = replace(DRAFTERS[drafter], depth=depth, executor=executor, fork=copies)
    check = "strict" if executor == "serial" else "off"
    found, table = served(config, forks=True, prefix_cache=prefix_cache, check=check)
    assert found == alone(drafter)
    assert len({str(tokens) for tokens, _, _ in found}) == N, "seeds differ"
    assert table.totals.forked_tokens == (N - 1) * (10 if copies else 8)
    assert table.totals.copied_blocks == (N - 1 if copies else 0)


def test_they_take_fewer_blocks() -> None:
    def most(table: RequestTable) -> int:
        assert table.counts is not None
        return max(each.blocks for each in table.counts.all())

    _, shared = served(TinyConfig(), forks=True, fork=True)
    _, apart = served(TinyConfig(), forks=False)
    assert most(apart) - most(shared) == (N - 1) * 2, "the prompt fills two"


def test_short_of_blocks_they_write_the_same() -> None:
    config = replace(DRAFTERS["eagle"], depth=2, executor="threads", fork=True, num_blocks=10)
    found, table = served(config, forks=True, max_rows=3)
    assert found == alone("eagle")
    assert table.preemptions > 0


def test_n_completions_of_the_front_door_share_their_prompt() -> None:
    overrides = {"scheduler.prefix_cache": False, "scheduler.block_size": 4}
    prompt = "Write a short story about a fox named Ida."
    with LLM(pipeline="async", overrides={**overrides, "nodes.fork": {"after": "schedule"}}) as llm:
        output = llm.generate([prompt], {"n": 2, "max_tokens": 4, "temperature": 1.0})[0]
        told = llm.summary()
    first, second = output.choices
    assert first.cached_tokens == 0
    assert second.cached_tokens == told["forked_tokens"] == told["prompt_tokens"] // 2 - 1
    assert told["copied_blocks"] == 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("blocks", "depth"), [(8, 1), (9, 1), (10, 2)])
def test_a_block_that_is_being_filled_from_the_host_is_not_copied(blocks: int, depth: int) -> None:
    """One completion comes back from the host in the step in which the other begins."""
    config = TinyConfig(depth=depth, fork=True, max_rows=2, draft_tokens=1, method="eagle")
    order = {"nodes.fork.after": "schedule", "nodes.swap.after": "fork"}

    def served(config: TinyConfig, settings: dict[str, Any] | None) -> tuple[Any, RequestTable]:
        engine = tiny_engine(config, settings=settings)
        made = [
            tiny_request(uid, prompt, SamplingParams(max_tokens=24, temperature=0.9, seed=uid))
            for uid, prompt in enumerate(([5, 6, 7, 8], [9, 10, 11], [9, 10, 11]))
        ]
        for each in made[1:]:
            each.fork_of = 1
        table = engine.new_table()
        table.submit_all([fitted(engine, each) for each in made])
        engine.run(table)
        return [(each.output_ids, each.error) for each in made], table

    expected, _ = served(replace(config, num_blocks=200), None)
    found, table = served(replace(config, num_blocks=blocks, swap=16), order)
    assert table.totals.swapped_in > 0
    assert found == expected
