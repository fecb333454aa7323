"""The graph with stages: sound, and as fast as theorem D says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepweave.clusters.stages import Staged, staged
from stepweave.configs.load import load_config
from stepweave.configs.schema import PipelineConfig
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.verifier.verify import verify
from stepweave.serving.pipeline import step_graph
from stepweave.timelines.simulated import simulate


def spread(stages: int, groups: int, pipeline: str = "async") -> Staged:
    config = load_config(pipeline, {"depth": str(groups)})
    assert isinstance(config, PipelineConfig)
    return staged(
        step_graph(config),
        forward="forward",
        scheduler="schedule",
        settle="commit",
        stages=stages,
        groups=groups,
    )


def period(found: Staged, works: list[float], message: float, host: float) -> float:
    """Of the plan whose stages take `works` µs; of the other ops only `schedule` takes time."""
    costs = dict.fromkeys(found.graph.vertices, 0.0)
    costs |= dict(zip(found.stages, works, strict=True))
    costs |= dict.fromkeys(found.messages, message)
    plan = compile_plan(found.graph, costs={**costs, "schedule.host": host})
    verify(plan)
    simulated = simulate(plan, steps=40)
    assert simulated.period_us == pytest.approx(plan.period_us)
    return plan.period_us


def theorem_d(works: list[float], message: float, host: float, groups: int) -> float:
    total = sum(works) + (len(works) - 1) * message + host
    return max(*works, total / groups)


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_the_period_is_that_of_theorem_d(stages: int) -> None:
    works = [1000.0, 1300.0, 900.0, 1100.0][:stages]
    for groups in range(1, stages + 2):
        found = period(spread(stages, groups), works, 40.0, 200.0)
        assert found == pytest.approx(theorem_d(works, 40.0, 200.0, groups))


def test_one_group_more_than_stages_hides_what_as_many_as_stages_do_not() -> None:
    works = [1000.0, 1000.0]
    assert period(spread(2, 2), works, 40.0, 200.0) == pytest.approx(2240 / 2)
    assert period(spread(2, 3), works, 40.0, 200.0) == pytest.approx(1000)


@pytest.mark.parametrize(
    "pipeline", ["async", "async_eagle3_grammar", "grammar_worker", "drafter_stream", "async_ngram"]
)
def test_every_pipeline_can_be_spread_and_its_plan_is_sound(pipeline: str) -> None:
    for stages, groups in ((1, 2), (3, 2)):
        found = spread(stages, groups, pipeline)
        verify(compile_plan(found.graph))
        assert len(found.stages) == stages == len(found.messages) + 1


def test_one_stage_and_one_group_is_the_graph_as_it_is() -> None:
    config = load_config("async")
    assert isinstance(config, PipelineConfig)
    graph = step_graph(config)
    found = staged(
        graph, forward="forward", scheduler="schedule", settle="commit", stages=1, groups=1
    )
    assert found.graph is graph


def test_sampling_and_drafting_lie_on_the_last_stage() -> None:
    found = spread(3, 4, "async_eagle3_grammar")
    actors = {name: vertex.actor for name, vertex in found.graph.vertices.items()}
    last = actors[found.stages[-1]]
    assert actors["sample.device"] == actors["draft.device"] == last
    assert len({actors[op] for op in (*found.stages, *found.messages)}) == 5


def test_a_plan_without_the_message_between_stages_is_refused() -> None:
    """The oracle of soundness bites: leave out a wait of a stage for its message."""
    found = spread(2, 3)
    plan = compile_plan(found.graph)
    waits = tuple(w for w in plan.waits if w.target != found.stages[1])
    assert len(waits) < len(plan.waits)
    with pytest.raises(Exception, match=r"SW-|not"):
        verify(replace(plan, waits=waits))
