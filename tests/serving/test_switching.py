"""An engine that goes from plan to plan while it runs: the tokens of the plain loop, to the bit."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

import pytest

from stepweave.executors.course import Course, Goal
from stepweave.policies.chosen import Policies
from stepweave.policies.fastest import Fastest
from stepweave.requests.request import SamplingParams
from stepweave.serving.engine import Engine
from stepweave.serving.plans import Load, Steer
from stepweave.testing.engines import TinyConfig, fitted, tiny_engine, tiny_requests
from tests.shares import one_in

DRAFTERS = {
    "none": TinyConfig(),
    "eagle": TinyConfig(draft_tokens=2, method="eagle"),
    "model": TinyConfig(draft_tokens=3, method="draft_model"),
    "ngram": TinyConfig(draft_tokens=3, method="ngram"),
}
FORMS: dict[str, dict[str, Any]] = {
    "depths": {"one": {"depth": 1}, "three": {"depth": 3}},
    "threads": {"apart": {"nodes.bitmask.actor": "grammar"}, "one": {"depth": 1}},
}
Found = list[tuple[list[int], int, int]]


def at_random(seed: int) -> Steer:
    """Another plan every few steps."""
    random = Random(seed)

    def steer(course: Course, step: int, load: Load) -> Goal:
        other = random.random() < 0.4
        return Goal(random.choice([*course.plans]), reason="drawn") if other else Goal(course.at)

    return steer


def served(config: TinyConfig, others: dict[str, dict[str, Any]], seed: int) -> tuple[Found, int]:
    """What requests got, and how often the engine switched."""
    found, engine = served_by(tiny_engine(config, others=others, steer=at_random(seed)))
    moves = engine.totals.switches
    assert sum(moves.values()) == len(engine.turned)
    assert {reason for _, _, reason in moves} <= {"drawn"}
    return found, len(engine.turned)


def served_by(engine: Engine) -> tuple[Found, Engine]:
    """What four requests got."""
    params = [
        SamplingParams(max_tokens=16, temperature=(0.0, 0.9)[uid % 2], seed=uid) for uid in range(4)
    ]
    requests = tiny_requests(params, longest=12)
    table = engine.new_table()
    table.submit_all([fitted(engine, each) for each in requests])
    engine.run(table)
    assert [each.error for each in requests] == [None] * len(requests)
    return [(list(r.output_ids), r.drafted, r.accepted) for r in requests], engine


@cache
def plain(drafter: str, structured: bool) -> Found:
    """The synchronous loop."""
    return served(replace(DRAFTERS[drafter], structured=structured), {}, 0)[0]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("form", "drafter", "structured", "executor", "seed"),
    one_in(6, FORMS, DRAFTERS, (False, True), ("serial", "threads"), (1, 2, 3)),
)
def test_an_engine_that_switches_gives_the_tokens_of_the_plain_loop(
    form: str, drafter: str, structured: bool, executor: str, seed: int
) -> None:
    structured = structured or form == "threads"
    config = replace(DRAFTERS[drafter], structured=structured, depth=2, executor=executor)
    found, switches = served(config, FORMS[form], seed)
    assert found == plain(drafter, structured)
    assert switches > 0


# --- other nodes ---------------------------------------------------------------------------------

BARE: dict[str, dict[str, Any]] = {
    "bare": {"nodes.draft": None},
    "bare_at_once": {"nodes.draft": None, "depth": 1},
    "deep": {"depth": 3},
}
LOAD = Fastest(rows=(1, 4), periods_us=((100.0, 101.0, 102.0), (100.0, 200.0, 300.0)))
"""A drafting policy by which rows have more drafts the fewer requests run."""


@pytest.mark.parametrize(
    ("drafter", "structured", "executor", "drafting", "seed"),
    one_in(
        12,
        ("eagle", "model", "ngram"),
        (False, True),
        ("serial", "threads"),
        ("full", "by load"),
        (1, 2, 3),
    ),
)
def test_an_engine_that_goes_on_without_its_drafter_gives_the_tokens_of_the_plain_loop(
    drafter: str, structured: bool, executor: str, drafting: str, seed: int
) -> None:
    policies = Policies(drafting=LOAD) if drafting == "by load" else Policies()
    config = replace(
        DRAFTERS[drafter], structured=structured, depth=2, executor=executor, policies=policies
    )
    found, switches = served(config, BARE, seed)
    assert [tokens for tokens, _, _ in found] == [t for t, _, _ in plain(drafter, structured)]
    assert switches > 0
    assert sum(drafted for _, drafted, _ in found) > 0


def test_a_plan_without_the_drafter_verifies_no_draft() -> None:
    config = replace(DRAFTERS["ngram"], depth=2)
    engine = tiny_engine(
        config, others={"bare": {"nodes.draft": None}}, steer=lambda *_: Goal("bare")
    )
    found, _ = served_by(engine)
    assert [tokens for tokens, _, _ in found] == [t for t, _, _ in plain("ngram", False)]
    assert engine.at == "bare"
    first = engine.turned[0].step
    assert 0 < first < 20
    before = sum(drafted for _, drafted, _ in found)
    usual = sum(drafted for _, drafted, _ in plain("ngram", False))
    assert before < usual / 2
