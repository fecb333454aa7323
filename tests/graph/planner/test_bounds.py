"""How far an op may run ahead of another: bounded in every plan, at no cost."""

from __future__ import annotations

from dataclasses import replace

import networkx as nx
import pytest
from hypothesis import given

from stepweave.cli.planned import planned
from stepweave.configs.load import shipped
from stepweave.graph.answers.explain import explain_wait
from stepweave.graph.plan import Plan
from stepweave.graph.planner.bounds import BOUND, is_bound, without_bounds
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.planner.events import plan_edges
from stepweave.graph.planner.period import period
from stepweave.graph.step_graph import StepGraph
from stepweave.graph.verifier.verify import verify, violations
from stepweave.testing import explore
from tests.graph.build import device, host, op, value, waits
from tests.graph.shipped_plans import GRAPHS
from tests.graph.strategies import examples, plans


def is_bounded(plan: Plan) -> bool:
    """Each two ops are ordered at some distance: every op reaches every other."""
    order = nx.DiGraph([(u, v) for u, v, _, _ in plan_edges(plan)])
    order.add_nodes_from(plan.graph.vertices)
    return bool(nx.is_strongly_connected(order))


@examples(40)
@given(plans())
def test_every_plan_is_bounded_by_waits_that_are_all_needed_and_cost_nothing(plan: Plan) -> None:
    assert is_bounded(plan)
    for wait in plan.waits:
        if is_bound(wait):
            assert not is_bounded(replace(plan, waits=tuple(w for w in plan.waits if w != wait)))
    free = without_bounds(plan)
    assert period(plan.graph, plan_edges(free), plan.costs).us == plan.period_us
    assert any(map(is_bound, plan.waits)) != is_bounded(free)


@pytest.mark.sampled(30)
@pytest.mark.parametrize("name", shipped())
@pytest.mark.parametrize("depth", ["1", "2", "3"])
def test_the_requirements_bound_shipped_pipelines_already(name: str, depth: str) -> None:
    plan = planned(name, {} if name in GRAPHS else {"depth": depth})
    if plan.graph.told_by is None:  # else waits of some modes may have bounded it
        assert not any(map(is_bound, plan.waits))


def runaway() -> StepGraph:
    return StepGraph.build(
        [host("make", op(writes="x", cost=1)), host("take", op("x", cost=10), actor="other")],
        [value("x")],
    )


def test_a_producer_waits_for_its_slow_reader_far_behind() -> None:
    plan = compile_plan(runaway())
    assert waits(plan) == ["make.host → take.host +0", f"take.host → make.host +{BOUND}"]
    [edge] = [edge for edge in plan.edges if edge.hazard == "BOUND"]
    assert edge.witness == (("take.host", 0), ("make.host", BOUND))
    said = f"take.host → make.host (+{BOUND}): nothing else limits how far make.host runs ahead"
    assert f"bounding wait {said}" in plan.notes
    verify(plan)


def test_why_a_bound_exists_is_said() -> None:
    plan = compile_plan(runaway())
    why = explain_wait(plan, plan.waits[1])
    assert why.protects[0].title == "bound"
    assert why.protects[0].needed == (
        "make.host on driver is at most 64 steps ahead of take.host on other."
    )
    assert why.cost.startswith("nothing")


def test_a_plan_without_its_bound_is_refused_and_seen_to_run_away() -> None:
    plan = compile_plan(runaway())
    assert explore(plan, seeds=range(3)).failure is None
    loose = without_bounds(plan)
    [found] = violations(loose)
    assert found.code == "SW-BOUND"
    assert "'make.host' on driver runs ahead of 'take.host' on other" in found.message
    failure = explore(loose, seeds=range(3)).failure
    assert failure is not None
    assert failure.hazard == "BOUND"


def test_a_missing_wait_that_also_lets_an_op_run_away_is_one_report() -> None:
    plan = compile_plan(runaway())
    assert [v.code for v in violations(replace(plan, waits=()))] == ["SW-RAW-HOST-HOST"]


def test_work_that_nobody_reads_is_launched_no_further_ahead() -> None:
    plan = compile_plan(
        StepGraph.build([device("work", op(), op(writes="x"))], [value("x", "device")])
    )
    assert waits(plan) == [f"work.device → work.host +{BOUND}"]


def test_a_bound_that_would_cost_time_is_doubled() -> None:
    """A step takes as long as 100 of its periods: all of them are in flight."""
    nodes = [
        host(f"n{k}", op(f"x{k}" if k else "", f"x{k + 1}", cost=1), actor=f"a{k}")
        for k in range(100)
    ]
    plan = compile_plan(StepGraph.build(nodes, [value(f"x{k}") for k in range(1, 101)]))
    assert [wait.distance for wait in plan.waits if is_bound(wait)] == [2 * BOUND]
    assert plan.period_us == 1.0
