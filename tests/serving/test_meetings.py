"""Ranks that share a model meet one after another on a device, whatever streams nodes are on."""

from dataclasses import replace
from typing import Any

import pytest

from stepweave.configs.load import load_config
from stepweave.configs.schema import PipelineConfig
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.step_graph import StepGraph
from stepweave.nodes.values import MEETINGS
from stepweave.serving.pipeline import compiled, step_graph
from tests.serving.test_uniform import SHIPPED, on_two_ranks

LATE = {"nodes.prepare_inputs.reads": {"drafts": "drafts@-2"}}
"""Drafts are used a step later, so that drafting may go on beside the next forward pass."""

Waits = list[tuple[str, str, int]]


def waits(config: PipelineConfig, graph: StepGraph) -> Waits:
    """Source, target and distance of each wait."""
    plan = compile_plan(graph, costs=config.costs, slots=config.slots, order=config.order)
    return [(each.source, each.target, each.distance) for each in plan.waits]


def unaware(graph: StepGraph) -> StepGraph:
    """The graph in which no node says that it meets others."""

    def alone(ops: Any) -> Any:
        return tuple(
            replace(
                op,
                reads=tuple(read for read in op.reads if read.name != MEETINGS.name),
                writes=tuple(name for name in op.writes if name != MEETINGS.name),
            )
            for op in ops
        )

    nodes = [
        replace(each, host=alone(each.host), device=alone(each.device)) for each in graph.nodes
    ]
    states = [each for name, each in graph.states.items() if name != MEETINGS.name]
    return StepGraph.build(
        nodes,
        graph.values.values(),
        states,
        name=graph.name,
        order=graph.order,
        launches=graph.launches,
    )


@pytest.mark.parametrize("name", SHIPPED)
def test_in_shipped_pipelines_that_needs_no_wait(name: str) -> None:
    for depth in (1, 2):
        config = on_two_ranks(name, depth=depth)
        graph = step_graph(config)
        meeting = [op for op, each in graph.vertices.items() if MEETINGS.name in each.op.writes]
        drafts = [] if config.drafter is None else ["draft.device"]
        assert meeting == ["forward.device", "sample.device", *drafts]
        assert waits(config, graph) == waits(config, unaware(graph))


def test_a_drafter_on_a_stream_of_its_own_does_not_meet_beside_the_forward_pass() -> None:
    config = on_two_ranks("drafter_stream", **LATE)
    graph = step_graph(config)
    free, aware = waits(config, unaware(graph)), waits(config, graph)
    assert set(free) - set(aware) == {("draft.device", "sample.device", 1)}
    assert set(aware) - set(free) == {("draft.device", "forward.device", 1)}


def test_on_one_rank_nobody_meets() -> None:
    alone = load_config("drafter_stream", LATE)
    assert isinstance(alone, PipelineConfig)
    assert MEETINGS.name not in compiled(alone).graph.states
