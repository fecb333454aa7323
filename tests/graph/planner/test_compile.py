"""The whole compilation: deterministic, exact in its form, fast."""

from __future__ import annotations

import json
import sys

import pytest

from stepweave.graph.errors import DeadlockError, GraphError
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.step_graph import StepGraph
from stepweave.graph.verifier.verify import verify
from stepweave.testing import decode_step
from stepweave.testing.graphs import random_step_graph
from tests.graph.build import device, host, op, staged, value


@pytest.mark.parametrize("speculation", [True, False])
@pytest.mark.parametrize("grammar", [True, False])
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("order", ["keep", "search"])
def test_every_decode_step_has_a_plan_that_the_verifier_accepts(
    depth: int, grammar: bool, speculation: bool, order: str
) -> None:
    graph = decode_step(depth, speculation=speculation, grammar=grammar)
    verify(compile_plan(graph, order=order))  # type: ignore[arg-type]


def test_the_plan_of_the_small_example_in_full() -> None:
    plan = compile_plan(staged(2))
    assert plan.actors == {
        "driver": (("schedule.host", 0), ("prepare.host", 0), ("forward.host", 0)),
        "compute": (("prepare.device", 0), ("forward.device", 0)),
    }
    assert plan.slots == {"batch": None, "staging": 2, "inputs": 1, "sampled": 1}
    assert plan.period_us == 4030.0
    assert plan.critical_cycle == (("prepare.device", 0), ("forward.device", 1))
    assert plan.requirements == len(plan.edges) == 14


def test_the_same_graph_gives_the_same_plan_to_the_byte() -> None:
    plans = [compile_plan(decode_step(2)) for _ in range(2)]
    assert plans[0].digest == plans[1].digest
    json.dumps(plans[0].to_json())


def test_every_witness_is_a_path_of_at_most_the_distance() -> None:
    plan = compile_plan(decode_step(2))
    for edge in (*plan.edges, *plan.launch_order):
        assert edge.witness[0] == (edge.source, 0)
        op, total = edge.witness[-1]
        assert op == edge.target
        assert total <= edge.distance


def test_searched_plans_of_random_graphs_pass_the_verifier() -> None:
    for seed in range(40):
        try:
            plan = compile_plan(random_step_graph(seed, most_nodes=5, order="search"))
        except DeadlockError:
            continue
        verify(plan)


def test_a_value_that_nobody_reads_is_noted() -> None:
    graph = StepGraph.build(
        [device("write", op(), op(writes="x y")), host("see", op("x"))],
        [value("x", "pinned"), value("y", "pinned")],
    )
    assert compile_plan(graph).notes == ("value 'y' is never read",)
    assert compile_plan(decode_step(2)).notes == ()


def test_costs_of_unknown_ops_are_refused_with_the_nearest() -> None:
    with pytest.raises(GraphError, match=r"did you mean 'forward\.device'"):
        compile_plan(staged(), costs={"forward.devic": 1.0})


def test_a_full_pipeline_compiles_in_milliseconds() -> None:
    graph = decode_step(2)
    compile_plan(graph)
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        compile_plan(graph)
    finally:
        sys.setprofile(None)
    assert calls < 60_000, "a call takes some 0.1 µs"
