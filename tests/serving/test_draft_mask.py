"""Drafts are of tokens that the grammar allows: tokens unchanged, counts equal at each depth."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import count
from typing import Any

import pytest

from stepweave.cli.planned import planned
from stepweave.graph.verifier.verify import verify
from stepweave.policies.acceptance import Rejection
from stepweave.policies.chosen import Policies
from stepweave.requests.params import SamplingParams
from stepweave.serving.engine import Engine
from stepweave.testing.engines import (
    TinyConfig,
    fitted,
    serve,
    tiny_engine,
    tiny_requests,
)
from tests.serving.matrix import GRAMMARS, MODULES, SCHEMA, TREES

BASE = TinyConfig(draft_tokens=3, structured=True)
MASKED: dict[str, Any] = {
    "nodes.d2h_tokens.after": "sample",
    "nodes.draft_mask.after": "d2h_tokens",
    "nodes.draft.after": "draft_mask",
}
ALLOWED: dict[str, Any] = {"nodes.draft.propose": "allowed"}  # of a look-up on the host
RUNS = ((1, "serial"), (2, "threads"), (3, "threads"))
DRAFTERS = (
    *("draft_model", "eagle", "eagle3", "mtp", "medusa", "ngram", "suffix"),
    *("eagle3 tree", "mtp grown"),
)
GRAMMARED = ("schema", "regex", "structural tag", "mixed")
SETS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "seeded": {"temperature": 0.9, "seed": 4, "top_p": 0.95},
    "penalties": {"repetition_penalty": 1.3, "frequency_penalty": 0.4},
    "mixes": {"temperature": 0.8, "seed": 5, "no_repeat_ngram_size": 3, "min_p": 0.02},
}
RULES = {"coupled": Policies(), "rejection": Policies(acceptance=Rejection())}
Found = tuple[list[list[int]], list[tuple[int, int]]]


def engine_of(config: TinyConfig, drafter: str | None, by_grammar: bool) -> Engine:
    if drafter is None:
        return tiny_engine(replace(config, draft_tokens=0))
    method, tree, k = TREES.get(drafter, (drafter, None, 3))
    modules = MODULES.get(drafter, 1)
    config = replace(config, method=method, tree=tree, draft_tokens=k, modules=modules)  # type: ignore[arg-type]
    heeding = ALLOWED if method == "suffix" else MASKED
    return tiny_engine(config, settings=heeding if by_grammar else None)


def asked(sampling: str, grammars: str, most: int = 20) -> list[SamplingParams]:
    return [
        SamplingParams(max_tokens=most, structured_outputs=grammar, **SETS[sampling])
        for grammar in (GRAMMARS[grammars] * 4)[:4]
    ]


def outcome(engine: Engine, params: Sequence[SamplingParams]) -> Found:
    requests = tiny_requests(params)
    tokens = serve(engine, requests)
    assert [request.error for request in requests] == [None] * len(requests)
    return tokens, [(request.drafted, request.accepted) for request in requests]


@cache
def plain(sampling: str, grammars: str) -> list[list[int]]:
    return outcome(engine_of(BASE, None, False), asked(sampling, grammars))[0]


@cache
def at_depth_1(drafter: str, sampling: str, grammars: str, rule: str) -> Found:
    config = replace(BASE, policies=RULES[rule])
    return outcome(engine_of(config, drafter, True), asked(sampling, grammars))


def check(run: tuple[int, str], drafter: str, sampling: str, grammars: str, rule: str) -> None:
    depth, executor = run
    config = replace(BASE, depth=depth, executor=executor, policies=RULES[rule])
    found = outcome(engine_of(config, drafter, True), asked(sampling, grammars))
    assert found == at_depth_1(drafter, sampling, grammars, rule)
    if rule == "coupled" or sampling == "greedy":
        assert found[0] == plain(sampling, grammars)


def each_of(drafters: Sequence[str], one: str) -> list[object]:
    """All of them, but all but one in the night."""
    night = pytest.mark.nightly
    return [pytest.param(each, marks=() if each == one else night) for each in drafters]


ARGUMENTS = ("run", "drafter", "sampling", "grammars", "rule")


IN_THE_SUITE = [
    ((2, "threads"), "eagle3", "mixes", "mixed", "rejection"),
    ((3, "threads"), "ngram", "seeded", "regex", "coupled"),
]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ARGUMENTS, list(itertools.product(RUNS[1:], DRAFTERS, SETS, GRAMMARED, RULES))
)
def test_every_combination(
    run: tuple[int, str], drafter: str, sampling: str, grammars: str, rule: str
) -> None:
    check(run, drafter, sampling, grammars, rule)


@pytest.mark.parametrize("drafter", each_of(DRAFTERS, "eagle3"))
def test_checking_mode_finds_no_access_that_is_not_declared(drafter: str) -> None:
    outcome(engine_of(replace(BASE, check="strict"), drafter, True), asked("greedy", "mixed", 5))


@pytest.mark.parametrize(ARGUMENTS, IN_THE_SUITE)
def test_tokens_are_those_without_and_counts_equal_at_every_depth(
    run: tuple[int, str], drafter: str, sampling: str, grammars: str, rule: str
) -> None:
    check(run, drafter, sampling, grammars, rule)


@pytest.mark.parametrize("drafter", each_of(("eagle3", "mtp", "medusa"), "eagle3"))
def test_more_drafts_are_kept_of_a_drafter_that_knows_no_grammar(drafter: str) -> None:
    params = asked("greedy", "schema")
    tokens, counts = at_depth_1(drafter, "greedy", "schema", "coupled")
    again, without = outcome(engine_of(BASE, drafter, False), params)
    assert tokens == again == plain("greedy", "schema")
    accepted = [sum(kept for _, kept in each) for each in (counts, without)]
    assert accepted[0] >= accepted[1] + 20


@pytest.mark.nightly
def test_a_look_up_takes_the_next_place_whose_token_is_allowed() -> None:
    params = asked("greedy", "schema")
    _, counts = at_depth_1("ngram", "greedy", "schema", "coupled")
    _, without = outcome(engine_of(BASE, "ngram", False), params)
    assert sum(kept for _, kept in counts) > sum(kept for _, kept in without)


@pytest.mark.nightly
def test_ways_that_a_grammar_refuses_are_not_offered_and_counts_are_equal_at_every_depth() -> None:
    def rounds(config: TinyConfig, by_grammar: bool) -> list[Found]:
        engine, uids = engine_of(config, "suffix", by_grammar), count()
        found = []
        for _ in range(2):  # the second time, what was said the first time is remembered
            requests, table = tiny_requests(asked("greedy", "schema", 24)), engine.new_table()
            for request in requests:
                request.uid = next(uids)
                table.submit(fitted(engine, request))
            engine.run(table)
            assert [request.error for request in requests] == [None] * len(requests)
            counts = [(request.drafted, request.accepted) for request in requests]
            found.append(([list(request.output_ids) for request in requests], counts))
        return found

    serial = rounds(BASE, True)
    assert rounds(replace(BASE, depth=3, executor="threads"), True) == serial
    without = rounds(BASE, False)
    assert [tokens for tokens, _ in serial] == [tokens for tokens, _ in without]
    accepted = [sum(kept for _, kept in each[1][1]) for each in (serial, without)]
    assert accepted[0] > accepted[1]


@pytest.mark.parametrize("drafter", each_of(("suffix", "eagle3"), "suffix"))
def test_a_row_that_gave_way_is_drafted_what_it_would_have_been(drafter: str) -> None:
    params = [SamplingParams(max_tokens=20, structured_outputs=SCHEMA)] * 4
    engine = engine_of(replace(BASE, depth=2, executor="threads", num_blocks=17), drafter, True)
    found = outcome(engine, params)
    assert engine.totals.preemptions > 1
    assert found == at_depth_1(drafter, "greedy", "schema", "coupled")


def test_the_drafter_waits_for_the_host_once_and_a_look_up_on_the_host_for_nothing_more() -> None:
    def waits(config: TinyConfig, drafter: str, by_grammar: bool) -> set[tuple[str, str]]:
        plan = engine_of(config, drafter, by_grammar).plan
        verify(plan)
        return {(wait.source, wait.target) for wait in plan.waits}

    deep = replace(BASE, depth=2, executor="threads")
    assert waits(deep, "eagle3", True) - waits(deep, "eagle3", False) == {
        ("sample.device", "d2h_tokens.device"),
        ("d2h_tokens.device", "draft_mask.host"),
    }
    assert waits(deep, "suffix", True) == waits(deep, "suffix", False)


def test_what_the_wait_costs_is_on_the_critical_cycle() -> None:
    """Of a step of the assumed 8B model: the copy, the walk, the launch of the drafter."""
    without, masked = (
        planned("async_eagle3_grammar", changes, costs="llama_8b", rows=8)
        for changes in ({}, MASKED)
    )
    host = {"d2h_tokens.device", "draft_mask.host", "draft.host"}
    assert host < {vertex for vertex, _ in masked.critical_cycle}
    assert 200 < masked.period_us - without.period_us < 350
