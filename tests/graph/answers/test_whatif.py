"""What other durations do: exact derivatives and corners, against plans that are timed anew."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepweave.graph.answers.extensions import extensions
from stepweave.graph.answers.sensitivity import Sensitivity, sensitivities
from stepweave.graph.answers.whatif import Point, bound_by, outcome, scaled, speedup, with_costs
from stepweave.graph.node import Node, Op, Read, Value
from stepweave.graph.plan import Plan
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.step_graph import StepGraph
from tests.graph.answers.test_explain import slowest
from tests.graph.build import device, host, op, value
from tests.graph.pipelines import decode
from tests.graph.shipped_plans import SHIPPED, shipped_plan
from tests.graph.strategies import examples, plans

CLOSE = 1e-6


def at(plan: Plan, op: str, us: float) -> float:
    return with_costs(plan, {op: us}).period_us


def check(plan: Plan, each: Sensitivity) -> None:
    """Finite differences on both sides, small enough to stay on one straight piece."""
    cost, period = each.cost_us, plan.period_us
    assert each.period_us == period
    if cost:
        step = min(0.01, (each.until_us or cost) / 2)
        assert at(plan, each.op, cost - step) == pytest.approx(
            period - each.faster * step, abs=CLOSE
        )
    if each.slack_us:
        assert each.slower == 0
        assert at(plan, each.op, cost + each.slack_us) == pytest.approx(period, abs=CLOSE)
        assert at(plan, each.op, cost + each.slack_us + 1) > period + CLOSE
    else:
        assert each.slower > 0
        assert at(plan, each.op, cost + 1e-3) == pytest.approx(
            period + each.slower * 1e-3, abs=CLOSE
        )
    assert at(plan, each.op, 0.0) == pytest.approx(each.free_us, abs=CLOSE)
    if each.until_us is None:
        assert period - each.faster * cost == pytest.approx(each.free_us, abs=CLOSE)
    else:
        corner = cost - each.until_us
        assert at(plan, each.op, corner) == pytest.approx(
            period - each.faster * each.until_us, abs=CLOSE
        )
        beyond = min(0.5, corner / 2)
        line = period - each.faster * (each.until_us + beyond)
        assert at(plan, each.op, corner - beyond) > line + CLOSE


@pytest.mark.sampled(12)
@pytest.mark.parametrize(("name", "depth"), SHIPPED)
def test_the_derivatives_of_shipped_plans_are_finite_differences(
    name: str, depth: int | None
) -> None:
    plan = shipped_plan(name, depth)
    found = sensitivities(plan)
    assert {each.op for each in found} == set(plan.graph.vertices)
    for each in found:
        check(plan, each)


@examples(25)
@given(plans(), st.lists(st.integers(0, 400), min_size=16, max_size=16))
def test_the_derivatives_of_any_plan_are_finite_differences(plan: Plan, costs: list[int]) -> None:
    durations = {op: float(costs[k % 16]) for k, op in enumerate(plan.graph.vertices)}
    timed = with_costs(plan, durations)
    for each in sensitivities(timed):
        check(timed, each)


def test_fractions_of_microseconds_and_launch_latencies_are_exact_too() -> None:
    graph = StepGraph.build(
        [
            host("a", op(writes="x", cost=10.3)),
            device("b", op("x", cost=7.1), op(cost=20.7), latency=2.3),
        ],
        [],
        ["x"],
        order="keep",
    )
    plan = compile_plan(graph)
    for each in sensitivities(plan):
        check(plan, each)


def test_next_cycle_is_the_one_that_binds_beyond_the_corner() -> None:
    plan = shipped_plan("abstract_decode")
    first = sensitivities(plan)[0]
    assert (first.op, first.until_us, first.free_us) == ("forward.device", 2765, 2105)
    assert first.until_us is not None
    assert first.share == pytest.approx(4000 / 4870)
    faster = with_costs(plan, {first.op: first.cost_us - first.until_us - 1})
    assert set(faster.critical_cycle) == set(first.next_cycle or ())


def test_a_cycle_over_two_steps_gives_half_a_microsecond_for_each() -> None:
    graph = StepGraph.build(
        [
            host("a", op("z@-2", "x", 100), actor="one"),
            host("b", op("x", "y", 100), actor="two"),
            host("c", op("y", "z", 100), actor="three"),
        ],
        [value("x"), value("y"), value("z")],
        order="keep",
    )
    plan = compile_plan(graph)
    assert plan.period_us == 150
    for each in sensitivities(plan):
        check(plan, each)
        assert (each.faster, each.slower, each.free_us) == (0.5, 0.5, 100)
        assert each.until_us is None


def test_where_two_cycles_take_as_long_the_derivatives_differ() -> None:
    graph = StepGraph.build(
        [host("a", op(cost=100), actor="one"), host("b", op(cost=100), actor="two")],
        [],
        order="keep",
    )
    plan = compile_plan(graph)
    for each in sensitivities(plan):
        check(plan, each)
        assert (each.faster, each.slower, each.slack_us, each.free_us) == (0, 1, 0, 100)


def test_what_pays_most_comes_first() -> None:
    found = sensitivities(shipped_plan("quickstart", 1))
    shares = [each.share for each in found]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) == pytest.approx(1)  # each op of the one critical cycle, once around


def test_the_same_plan_under_other_costs_keeps_all_but_its_period() -> None:
    plan = shipped_plan("drafter_stream")
    slower = with_costs(plan, scaled(plan.costs, {"draft.device": 3.0}))
    assert slower.costs["draft.device"] == 300
    assert slower.period_us == slowest(slower) == 600
    assert (slower.actors, slower.waits, slower.slots) == (plan.actors, plan.waits, plan.slots)
    assert slower.edges == plan.edges


def test_the_bound_names_the_actors_around_the_cycle_once() -> None:
    assert bound_by(shipped_plan("quickstart", 2)) == "compute"
    assert bound_by(shipped_plan("quickstart", 1)) == "compute → copy → driver"
    free = with_costs(compile_plan(decode()), dict.fromkeys(decode().vertices, 0.0))
    assert speedup(compile_plan(decode()), free) == float("inf")
    assert outcome(free, free)["period_us"] == 0


def test_a_refused_point_says_why() -> None:
    plan = compile_plan(decode())
    assert Point(("1",), None, "SW-DEADLOCK").to_json(plan) == {
        "values": ["1"],
        "refused": "SW-DEADLOCK",
    }
    assert Point(("1",), plan).to_json(plan)["speedup"] == 1


def test_a_graph_that_needs_its_rates_has_no_plan_without_them() -> None:
    nodes = [
        Node("ping", (Op((Read("b"),), ("a",), cost_us=10.0),), every=2, first=0),
        Node("pong", (Op((Read("a"),), ("b",), cost_us=10.0),), every=2, first=1),
    ]
    plan = compile_plan(StepGraph.build(nodes, [Value("a"), Value("b")]))
    assert extensions(plan) == ()
