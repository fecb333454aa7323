"""Suffix decoding in the engine: earlier outputs help, and nothing depends on the depth."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

from stepweave.configs.load import load_config
from stepweave.configs.schema import PipelineConfig
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.verifier.verify import verify
from stepweave.nodes.suffix import OUTPUTS
from stepweave.requests.params import SamplingParams
from stepweave.serving.engine import Engine
from stepweave.serving.pipeline import step_graph
from stepweave.testing.engines import (
    TinyConfig,
    fitted,
    tiny_engine,
    tiny_request,
)

BASE = TinyConfig(draft_tokens=3, method="suffix")
PROMPTS = ([17, 44, 101, 9, 230, 75, 18], [3, 5, 8, 13], [99, 98])
Found = list[tuple[list[int], int, int]]


def rounds(engine: Engine, times: int) -> list[Found]:
    """The same prompts again and again, each time when those before have ended."""
    uids, found = count(), []
    for _ in range(times):
        requests = [
            tiny_request(next(uids), prompt, SamplingParams(max_tokens=24, ignore_eos=True))
            for prompt in PROMPTS
        ]
        table = engine.new_table()
        for request in requests:
            table.submit(fitted(engine, request))
        engine.run(table)
        found.append([(list(r.output_ids), r.drafted, r.accepted) for r in requests])
    return found


def test_what_was_said_before_is_drafted_again_and_counts_are_equal_at_every_depth() -> None:
    seen = []
    for depth, executor in ((1, "serial"), (2, "threads"), (3, "threads")):
        engine = tiny_engine(replace(BASE, depth=depth, executor=executor))
        first, second = rounds(engine, 2)
        assert [tokens for tokens, _, _ in first] == [tokens for tokens, _, _ in second]
        accepted = [sum(each for _, _, each in outcome) for outcome in (first, second)]
        assert accepted[1] > 2 * max(1, accepted[0])
        seen.append((first, second))
    assert seen[0] == seen[1] == seen[2]


def test_outputs_are_kept_as_far_as_there_is_room() -> None:
    engine = tiny_engine(BASE, settings={"nodes.draft.remembered": 60})
    rounds(engine, 3)
    kept: Any = engine._states[OUTPUTS.name]
    assert 0 < kept.tokens <= 60
    assert len(kept) == 2, "of 24 tokens each"
    none = tiny_engine(BASE, settings={"nodes.draft.remembered": 0})
    first, second = rounds(none, 2)
    assert first == second, "without outputs, the second time is as the first"


def test_on_a_thread_of_its_own_it_drafts_the_same_and_waits_for_no_device() -> None:
    config = replace(BASE, depth=2, executor="threads")
    engine = tiny_engine(config, settings={"nodes.draft.actor": "grammar"})
    verify(engine.plan)
    assert [op for op, _ in engine.plan.actors["grammar"]] == ["draft.host"]
    waits = {(each.source, each.target) for each in engine.plan.waits}
    assert ("sample.host", "draft.host") in waits, "launched behind it, on one stream"
    assert not any(".device" in source for source, target in waits if target == "draft.host")
    assert rounds(engine, 2) == rounds(tiny_engine(config), 2)


def period_us(look_up_us: float) -> float:
    config = load_config("async_suffix")
    assert isinstance(config, PipelineConfig)
    costs = {"forward.device": 1000.0, "sample.device": 50.0, "draft.host": look_up_us}
    graph = step_graph(config)
    return compile_plan(graph, costs={**dict.fromkeys(graph.vertices, 1.0), **costs}).period_us


def test_the_look_up_takes_no_time_of_the_period_while_it_is_shorter_than_the_pass() -> None:
    assert period_us(900.0) == period_us(1.0)
    assert period_us(1500.0) > period_us(1.0) + 300
