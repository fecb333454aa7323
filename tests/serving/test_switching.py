"""An engine that goes from plan to plan while it runs: the tokens of the plain loop, to the bit."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

import pytest

from stepweave.executors.course import Course, Goal
from stepweave.requests.request import SamplingParams
from stepweave.serving.plans import Steer
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

    def steer(course: Course, step: int) -> Goal:
        return Goal(random.choice([*course.plans]) if random.random() < 0.4 else course.at)

    return steer


def served(config: TinyConfig, others: dict[str, dict[str, Any]], seed: int) -> tuple[Found, int]:
    """What requests got, and how often the engine switched."""
    engine = tiny_engine(config, others=others, steer=at_random(seed))
    params = [
        SamplingParams(max_tokens=20, temperature=(0.0, 0.9)[uid % 2], seed=uid) for uid in range(6)
    ]
    requests = tiny_requests(params, longest=12)
    table = engine.new_table()
    table.submit_all([fitted(engine, each) for each in requests])
    engine.run(table)
    assert [each.error for each in requests] == [None] * len(requests)
    found = [(list(r.output_ids), r.drafted, r.accepted) for r in requests]
    return found, len(engine.turned)


@cache
def plain(drafter: str, structured: bool) -> Found:
    """The synchronous loop."""
    return served(replace(DRAFTERS[drafter], structured=structured), {}, 0)[0]


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
