"""KV caches in 8 bits: the tokens of a plain loop over a model whose keys and values are rounded.

The plain loop has no cache. Its attention is that of a textbook, of keys and values that it rounds
itself, so it shares neither the paged cache nor the rounding with what is tested.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from stepweave.configs.load import load_config
from stepweave.configs.schema import PipelineConfig
from stepweave.models.cache_dtype import CacheDType
from stepweave.requests.request import Request, SamplingParams
from stepweave.requests.table import RequestTable
from stepweave.serving.loading import load_engine
from stepweave.testing.engines import (
    TinyConfig,
    fitted,
    tiny_engine,
    tiny_pair,
    tiny_request,
    tiny_requests,
)
from tests.serving.reference import expected
from tests.serving.rounding import rounding
from tests.shares import one_in

NARROW: tuple[CacheDType, ...] = ("int8", "float8_e4m3")
DRAFTERS = {
    "none": TinyConfig(),
    "model": TinyConfig(draft_tokens=3, method="draft_model"),
    "eagle": TinyConfig(draft_tokens=2, method="eagle"),
    "mtp": TinyConfig(draft_tokens=2, method="mtp"),
}
SITUATIONS: dict[str, dict[str, Any]] = {
    "chunks": {"token_budget": 7},
    "preemption": {"num_blocks": 10, "max_rows": 3},
    "swap": {"num_blocks": 10, "max_rows": 3, "swap": 16},
    "prefix cache": {"prefix_cache": True, "max_rows": 1},
}
DEPTHS = ((1, "serial"), (2, "threads"), (3, "threads"))


def params() -> list[SamplingParams]:
    return [
        SamplingParams(max_tokens=12, temperature=(0.0, 0.9)[uid % 2], seed=uid, logprobs=0)
        for uid in range(4)
    ]


def asked() -> list[Request]:
    """Four requests; the last has the prompt of the first, which a prefix cache can give it."""
    *others, last = tiny_requests(params(), longest=12)
    return [*others, tiny_request(last.uid, others[0].prompt_ids, last.params)]


@cache
def plain(kept: str) -> tuple[list[list[int]], list[float]]:
    """The tokens of each request, and the log-probabilities of all of them."""
    model = rounding(tiny_pair(torch.float64)[0], kept)
    found = [expected(model, each.prompt_ids, each.params) for each in asked()]
    chosen = [
        float(row[token])
        for each in found
        for token, row in zip(each.tokens, each.log_probs, strict=True)
    ]
    return [each.tokens for each in found], chosen


def log_probs(requests: Sequence[Request]) -> list[float]:
    return [each.logprob for request in requests for each in request.logprobs]


def served(config: TinyConfig) -> tuple[list[Request], RequestTable]:
    engine = tiny_engine(config)
    requests = asked()
    table = engine.new_table()
    table.submit_all([fitted(engine, each) for each in requests])
    engine.run(table)
    assert [each.error for each in requests] == [None] * len(requests)
    return requests, table


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("drafter", "situation", "kept"), one_in(6, DRAFTERS, SITUATIONS, NARROW))
def test_tokens_are_those_of_the_plain_loop_and_counts_equal_at_every_depth(
    drafter: str, situation: str, kept: CacheDType
) -> None:
    counts = set()
    for depth, executor in DEPTHS:
        config = replace(
            DRAFTERS[drafter], depth=depth, executor=executor, cache_dtype=kept,
            check="strict" if depth == 1 else "off", **SITUATIONS[situation],
        )  # fmt: skip
        requests, table = served(config)
        tokens, chosen = plain(kept)
        assert [each.output_ids for each in requests] == tokens
        assert log_probs(requests) == pytest.approx(chosen, abs=1e-6)
        counts.add(tuple((each.drafted, each.accepted) for each in requests))
        if situation in ("preemption", "swap"):
            assert table.preemptions > 0
        if situation == "swap":
            assert table.totals.swapped_out > 0
        if situation == "prefix cache":
            assert table.prefix_hits > 0
    assert len(counts) == 1
    assert (sum(drafted for drafted, _ in counts.pop()) > 0) == (drafter != "none")


def test_each_format_is_told_apart_by_its_log_probabilities() -> None:
    exact = log_probs(served(TinyConfig())[0])
    int8, float8 = (plain(kept)[1] for kept in NARROW)
    for one, other in ((exact, int8), (exact, float8), (int8, float8)):
        apart = [abs(a - b) for a, b in zip(one, other, strict=False)]
        assert sum(each > 1e-5 for each in apart) > len(apart) / 2


def test_neighbours_change_no_bit_of_a_row() -> None:
    """In float32 with the invariant arithmetic, whatever the batch, its chunks and its room."""
    base = TinyConfig(dtype=torch.float32, invariant=True, cache_dtype="int8")
    texts = set()
    batches: list[dict[str, Any]] = [{}, {"max_rows": 1}, {"token_budget": 7}]
    for changes in (*batches, {"num_blocks": 10, "max_rows": 3}):
        requests, _ = served(replace(base, **changes))
        texts.add(str([each.output_ids for each in requests]))
    assert len(texts) == 1


@pytest.mark.parametrize("kept", NARROW)
def test_a_pipeline_file_chooses_it_for_the_caches_of_target_and_drafter(kept: str) -> None:
    config = load_config("async_eagle", {"model.kv_cache_dtype": kept, "scheduler.num_blocks": 8})
    assert isinstance(config, PipelineConfig)
    engine = load_engine(config)
    for name in ("kv", "draft_kv"):
        found: Any = engine._states[name]
        assert found.cache_dtype == kept
        assert found.keys[0].itemsize == 1
