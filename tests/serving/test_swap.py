"""Requests that give way by swapping: tokens and counts of the plain loop, no race, no key lost."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from stepweave.executors import NodeFailure
from stepweave.graph.errors import StepweaveError
from stepweave.graph.planner.leases import pool_leases
from stepweave.policies.chosen import Policies
from stepweave.policies.resumption import Cheaper
from stepweave.requests.request import SamplingParams
from stepweave.requests.swap import SwapSpace
from stepweave.requests.table import RequestTable
from stepweave.serving.llm import LLM
from stepweave.testing.engines import TinyConfig, fitted, tiny_engine, tiny_requests
from tests.graph.shipped_plans import shipped_plan
from tests.shares import one_in

DRAFTERS = {
    "none": TinyConfig(),
    "eagle": TinyConfig(draft_tokens=2, method="eagle"),
    "model": TinyConfig(draft_tokens=3, method="draft_model"),
    "ngram": TinyConfig(draft_tokens=3, method="ngram"),
    "suffix": TinyConfig(draft_tokens=3, method="suffix"),
}
RUNS = ((1, "serial"), (2, "threads"), (3, "threads"))
ROOM: dict[str, Any] = {"num_blocks": 10, "max_rows": 3}  # of 4 tokens; three rows need more

Found = list[tuple[list[int], int, int]]


def params() -> list[SamplingParams]:
    return [
        SamplingParams(max_tokens=12, temperature=(0.0, 0.9)[uid % 2], seed=uid) for uid in range(4)
    ]


def served(config: TinyConfig) -> tuple[Found, RequestTable]:
    engine = tiny_engine(config)
    requests = tiny_requests(params(), longest=12)
    table = engine.new_table()
    table.submit_all([fitted(engine, each) for each in requests])
    engine.run(table)
    assert [each.error for each in requests] == [None] * len(requests)
    return [(list(r.output_ids), r.drafted, r.accepted) for r in requests], table


@cache
def plain(drafter: str) -> Found:
    """The synchronous loop, with room for everybody."""
    return served(DRAFTERS[drafter])[0]


@pytest.mark.parametrize(
    ("run", "drafter", "prefix_cache", "check"),
    one_in(24, RUNS, DRAFTERS, (False, True), ("strict", "off")),
)
def test_requests_that_are_swapped_give_the_tokens_of_the_plain_loop(
    run: tuple[int, str], drafter: str, prefix_cache: bool, check: Any
) -> None:
    depth, executor = run
    config = replace(
        DRAFTERS[drafter], depth=depth, executor=executor, swap=16, check=check,
        prefix_cache=prefix_cache, **ROOM,
    )  # fmt: skip
    found, table = served(config)
    assert found == plain(drafter)
    assert table.preemptions > 0
    assert table.totals.swapped_out > 0
    assert table.totals.swapped_in > 0 or prefix_cache
    assert table.blocks.swap.host.held == frozenset()


def test_a_request_larger_than_the_whole_pool_ends_with_its_error_and_the_run_with_it() -> None:
    engine = tiny_engine(replace(DRAFTERS["none"], depth=2, swap=16, num_blocks=4))
    large, small = tiny_requests(
        [SamplingParams(max_tokens=20), SamplingParams(max_tokens=3)], longest=5
    )
    table = engine.new_table()
    table.submit_all([large, small])
    engine.run(table)
    assert "KV blocks" in (large.error or "")
    assert small.error is None
    assert small.output_ids


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("copy_us", "swaps"), [(10.0, True), (1000.0, False)])
def test_blocks_are_copied_where_that_is_predicted_to_take_less(
    copy_us: float, swaps: bool
) -> None:
    rule = Cheaper(block_us=copy_us, token_us=100.0)
    config = replace(
        DRAFTERS["eagle"], depth=2, executor="threads", swap=16,
        policies=Policies(resumption=rule), **ROOM,
    )  # fmt: skip
    found, table = served(config)
    assert found == plain("eagle")
    assert table.preemptions > 0
    assert (table.totals.swapped_out > 0) == swaps


TIGHT = {
    "scheduler.num_blocks": 10,
    "scheduler.block_size": 8,
    "scheduler.max_rows": 3,
    "scheduler.prefix_cache": False,
}
COSTS: dict[str, dict[str, Any]] = {
    "shipped": {},
    "some": {"policies.resumption.block_us": 250.0, "policies.resumption.start_us": 1500.0},
    "none": {"policies.resumption.block_us": 2500.0},
}
"""With the second, copies of two blocks take longer than their tokens, those of three do not."""


def test_the_shipped_pipeline_swaps_what_its_costs_say_is_cheaper() -> None:
    asked = [
        {"prompt": f"Tell {count} stories.", "max_tokens": 24 + 4 * count, "ignore_eos": True}
        for count in range(5)
    ]

    def found(settings: dict[str, Any]) -> tuple[list[tuple[int, ...]], int, int]:
        with LLM(pipeline="async_swap", overrides={"graphs": False, **settings}) as llm:
            tokens = [output.token_ids for output in llm.generate(asked, progress=False)]
            totals = llm.engine.totals
        return tokens, totals.preemptions, totals.swapped_out

    roomy, none, _ = found({})
    assert none == 0
    swapped = {}
    for name, costs in COSTS.items():
        tokens, preemptions, swapped[name] = found({**TIGHT, **costs})
        assert tokens == roomy
        assert preemptions > 0
    assert swapped["shipped"] > swapped["some"] > swapped["none"] == 0


def test_the_plan_hands_blocks_to_the_copy_and_back() -> None:
    leases = pool_leases(shipped_plan("async_swap"), "blocks")
    assert leases["swap", "owner"] == 0, "a block that is filled may be read in the same step"
    assert leases["owner", "swap"] == 2
    slow = tiny_engine(replace(DRAFTERS["eagle"], depth=2, swap=16)).plan
    assert pool_leases(slow, "blocks")["swap", "owner"] == 1, "or the step would take longer"
    assert pool_leases(slow, "host_blocks") == {("owner", "owner"): 1}


def test_a_copy_that_begins_too_early_is_found_in_checking_mode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As by a table that knows of one distance only."""
    made = SwapSpace.__init__

    def early(self: SwapSpace, blocks: int, pool: Any, leases: Any, *more: Any) -> None:
        made(self, blocks, pool, {**leases, ("owner", "swap"): 0}, *more)
        pool._next["owner"] = [("owner", 1)]

    monkeypatch.setattr(SwapSpace, "__init__", early)
    config = replace(DRAFTERS["eagle"], depth=2, executor="threads", swap=16, **ROOM)
    with pytest.raises(NodeFailure, match="SW-KEY"):
        served(replace(config, check="strict"))


def test_a_place_larger_than_the_machine_is_refused_when_it_is_loaded() -> None:
    with (
        pytest.raises(
            StepweaveError, match=r"16777216 KV blocks needs .*lower nodes\.swap\.blocks"
        ),
        LLM(pipeline="async_swap", overrides={"nodes.swap.blocks": 1 << 24}) as llm,
    ):
        llm.generate("Write a short story about a fox.", SamplingParams(max_tokens=2))
