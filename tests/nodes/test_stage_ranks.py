"""The graph of all stages: sound, and as fast as theorem D says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from stepweave.configs.load import load_config
from stepweave.configs.schema import PipelineConfig
from stepweave.configs.stages import for_stages
from stepweave.graph.errors import UnsoundPlan
from stepweave.graph.plan import Plan, Wait
from stepweave.graph.planner.leases import pool_leases
from stepweave.graph.planner.projection import parts, project, together
from stepweave.graph.verifier.verify import verify
from stepweave.nodes.stage_ranks import costs_of_stages, model_ops
from stepweave.nodes.values import BLOCKS, HOST_BLOCKS
from stepweave.serving.pipeline import compiled, placed, step_graph
from stepweave.timelines.simulated import simulate


def in_stages(
    stages: int, groups: int, name: str = "async", said: Mapping[str, Any] | None = None
) -> PipelineConfig:
    settings = {"depth": groups, **(said or {})}
    found = load_config(name, for_stages(stages, settings) | settings)
    assert isinstance(found, PipelineConfig)
    return found


def period(works: list[float], message: float, host: float, groups: int) -> float:
    """Of the plan whose stages take `works` µs; of the other ops only `schedule` takes time."""
    config = in_stages(len(works), groups)
    graph = step_graph(config)
    costs = dict.fromkeys(graph.vertices, 0.0) | dict(zip(model_ops(graph), works, strict=True))
    costs |= {op: message for op in costs if op.startswith("send") and op.endswith("leave")}
    costs |= {op: host for op in costs if op.startswith("schedule")}
    plan = placed(config, graph, costs)
    verify(plan)
    assert simulate(plan, steps=40).period_us == pytest.approx(plan.period_us)
    return plan.period_us


def theorem_d(works: list[float], message: float, host: float, groups: int) -> float:
    total = sum(works) + (len(works) - 1) * message + host
    return max(*works, total / groups)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("stages", [2, 3])
def test_the_period_is_that_of_theorem_d(stages: int) -> None:
    works = [1000.0, 1300.0, 900.0][:stages]
    for groups in range(1, stages + 2):
        found = period(works, 40.0, 200.0, groups)
        assert found == pytest.approx(theorem_d(works, 40.0, 200.0, groups))


def test_one_group_more_than_stages_hides_what_as_many_as_stages_do_not() -> None:
    works = [1000.0, 1000.0]
    assert period(works, 40.0, 200.0, groups=2) == pytest.approx(2240 / 2)
    assert period(works, 40.0, 200.0, groups=3) == pytest.approx(1000)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "name", ["async_eagle3_grammar", "grammar_worker", "drafter_stream", "async_ngram"]
)
def test_every_pipeline_can_be_divided_and_its_plan_is_sound(name: str) -> None:
    plan = compiled(in_stages(2, 2, name))
    verify(plan)
    actors = {name: vertex.actor for name, vertex in plan.graph.vertices.items()}
    first, last = (actors[op] for op in model_ops(plan.graph))
    assert (first, last) == ("compute@0", "compute@1")
    assert actors["sample@1.device"] == last
    assert not {op for op in actors if op.startswith(("sample@0", "draft@0", "bitmask@0"))}


def test_a_plan_without_the_message_between_stages_is_refused() -> None:
    """The oracle of soundness bites: leave out a wait of a stage for its message."""
    plan = compiled(in_stages(2, 3))
    _, last = model_ops(plan.graph)
    lost: list[Plan] = []
    for wait in plan.waits:
        if wait.target in (last, "send0@0.device.enter"):
            lost.append(replace(plan, waits=tuple(w for w in plan.waits if w is not wait)))
    assert len(lost) >= 2
    for each in lost:
        with pytest.raises(UnsoundPlan, match=r"arrived|hidden"):
            verify(each)


def test_all_stages_hand_keys_on_after_as_many_steps() -> None:
    """Or one of them would schedule a row that another has no blocks for."""
    plan = compiled(in_stages(3, 2, "async_swap"))
    own = [pool_leases(project(plan, rank), BLOCKS) for rank in plan.graph.ranks]
    assert own[0] != own[1] != own[2], "there is something to make alike"
    running = parts(plan)
    verify(together(plan, running))
    for part in running:
        verify(part)
    alike = [[pool_leases(part, keys) for part in running] for keys in (BLOCKS, HOST_BLOCKS)]
    assert all(each == stages[0] for stages in alike for each in stages)
    assert alike[0][0] == {move: max(each[move] for each in own) for move in own[0]}


def test_what_runs_is_proved_where_a_stage_has_another_wait_for_keys_than_the_whole() -> None:
    plan = compiled(in_stages(2, 1, said={"nodes.swap": {"after": "schedule"}}))
    running = parts(plan)
    [whole], [first] = lease_waits(plan, "kv@0"), lease_waits(running[0], "kv")
    assert (whole.distance, first.distance) == (1, 0)
    verify(together(plan, running))
    lost = replace(running[0], waits=tuple(each for each in running[0].waits if each != first))
    with pytest.raises(UnsoundPlan, match="kv@0"):
        verify(together(plan, [lost, running[1]]))


def lease_waits(plan: Plan, state: str) -> list[Wait]:
    return [
        wait
        for wait in plan.waits
        if ("LEASE", state) in {(each.hazard, each.value) for each in wait.protects}
    ]


def test_what_is_said_of_the_model_is_divided_and_what_is_said_of_a_rank_is_not() -> None:
    graph = step_graph(in_stages(2, 3))
    said = {"forward.device": 600.0, "sample.device": 40.0, "forward.host": 5.0}
    found = costs_of_stages(graph, said)
    assert {op: us for op, us in found.items() if "forward" in op} == {
        **{"forward@0.host": 5.0, "forward@1.host": 5.0},
        **{"forward@0.device": 300.0, "forward@1.device": 300.0},
    }
    assert found["sample@1.device"] == 40.0
    assert costs_of_stages(graph, {**said, "forward@0.device": 1.0})["forward@0.device"] == 1.0
