"""An open node runs where the predicted period is the shortest, and the plan says why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import pytest

from stepweave.configs.errors import ConfigError
from stepweave.configs.load import load_config
from stepweave.configs.schema import PipelineConfig
from stepweave.graph.answers.placement import HAND_OVER_US, Where, best_placed, hand_overs
from stepweave.graph.errors import GraphError
from stepweave.graph.node import Node, Op, Read, Value
from stepweave.graph.plan import Plan
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.step_graph import StepGraph
from stepweave.graph.verifier.verify import verify
from stepweave.serving.pipeline import compiled

DRIVER, HELPER = Where("driver"), Where("helper")


def a_step(*host_us: float) -> StepGraph:
    """`begin`, so many host nodes that read it and nothing else, and `end`, which reads them."""
    nodes = [Node("begin", (Op(writes=("begun",), cost_us=1.0),))]
    nodes += [
        Node(f"n{k}", (Op((Read("begun"),), (f"v{k}",), cost_us=us),))
        for k, us in enumerate(host_us)
    ]
    everything = tuple(Read(f"v{k}") for k in range(len(host_us)))
    nodes.append(Node("end", (Op(everything, cost_us=1.0),)))
    return StepGraph.build(nodes, [Value("begun"), *(Value(f"v{k}") for k in range(len(host_us)))])


def placed(graph: StepGraph, open_to: Mapping[str, Sequence[Where]]) -> Plan:
    plan = best_placed(graph, open_to, compile_plan)
    verify(plan)
    return plan


def threads_of(plan: Plan) -> dict[str, str]:
    return {node.name: node.actor for node in plan.graph.nodes}


def test_one_of_two_long_nodes_gets_a_thread_of_its_own() -> None:
    plan = placed(a_step(500.0, 600.0), {"n1": (DRIVER, HELPER)})
    assert threads_of(plan)["n1"] == "helper"
    assert plan.period_us == 600
    (said,) = plan.notes
    assert said.startswith("placement: node 'n1' is on thread 'helper': 600 µs a step and 2 waits")
    assert said.endswith("on thread 'driver' 1,102 µs a step, bound by driver")


@pytest.mark.parametrize(("us", "thread"), [(4 * HAND_OVER_US, "helper"), (HAND_OVER_US, "driver")])
def test_what_is_gained_must_exceed_what_threads_take_to_hand_over(us: float, thread: str) -> None:
    plan = placed(a_step(500.0, us), {"n1": (DRIVER, HELPER)})
    assert threads_of(plan)["n1"] == thread
    assert len(hand_overs(plan)) == 2 * (thread == "helper")


def test_where_nothing_is_gained_the_first_place_is_kept() -> None:
    graph = a_step(500.0)
    assert threads_of(placed(graph, {"n0": (DRIVER, HELPER)}))["n0"] == "driver"
    assert threads_of(placed(graph, {"n0": (HELPER, DRIVER)}))["n0"] == "driver", "fewer waits"


def test_nodes_are_placed_together_and_many_of_them_one_after_another() -> None:
    graph = a_step(400.0, 400.0, 400.0)
    three = (DRIVER, Where("a"), Where("b"))
    assert placed(graph, {f"n{k}": three for k in range(3)}).period_us == 402
    many = a_step(*[300.0] * 7)
    listed = partial(compile_plan, order="keep")
    found = best_placed(many, {f"n{k}": (DRIVER, HELPER) for k in range(7)}, listed)
    assert found.period_us == 4 * 300 + 2
    assert sum(note.startswith("placement") for note in found.notes) == 7


def test_a_place_without_a_plan_is_left_out_and_only_none_at_all_is_refused() -> None:
    graph = a_step(500.0, 600.0)

    def refused(each: StepGraph) -> Plan:
        if threads_of_graph(each)["n1"] == "helper":
            raise GraphError("no", code="SW-TEST")
        return compile_plan(each)

    plan = best_placed(graph, {"n1": (DRIVER, HELPER)}, refused)
    assert threads_of(plan)["n1"] == "driver"
    assert plan.notes[-1].endswith("on thread 'helper' there is no plan (SW-TEST)")
    with pytest.raises(GraphError, match="no"):
        best_placed(graph, {"n1": (HELPER,)}, refused)


def threads_of_graph(graph: StepGraph) -> dict[str, str]:
    return {node.name: node.actor for node in graph.nodes}


def test_a_plan_without_open_nodes_is_the_plan_as_written() -> None:
    graph = a_step(500.0, 600.0)
    assert best_placed(graph, {}, compile_plan).digest == compile_plan(graph).digest


@pytest.mark.parametrize(("fill_us", "thread"), [(20.0, "driver"), (4000.0, "grammar")])
def test_a_pipeline_places_a_node_by_its_costs(fill_us: float, thread: str) -> None:
    costs = {
        "bitmask.host": fill_us,
        "schedule.host": 2000.0,
        "forward.device": 4500.0,
        "commit.host.advance": 500.0,
    }
    config = load_config("async_grammar", {"nodes.bitmask.actor": "auto", "costs": costs})
    assert isinstance(config, PipelineConfig)
    plan = compiled(config)
    verify(plan)
    assert threads_of(plan)["bitmask"] == thread


@pytest.mark.parametrize("key", ["actors", "streams"])
def test_what_leaves_the_choice_open_is_no_name(key: str) -> None:
    with pytest.raises(ConfigError, match="'auto' leaves the choice open"):
        load_config("async_grammar", {key: ["driver", "compute", "copy", "auto"]})


def test_a_node_of_the_host_has_no_stream_to_choose() -> None:
    config = load_config("async_grammar", {"nodes.commit.stream": "auto"})
    assert isinstance(config, PipelineConfig)
    with pytest.raises(GraphError, match=r"'commit'.* runs on the host only.*stream: auto"):
        compiled(config)
