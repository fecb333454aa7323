"""The period: the slowest cycle of the event graph, exactly, and what it is made of."""

from __future__ import annotations

from fractions import Fraction

import networkx as nx
import pytest

from stepweave.graph.errors import DeadlockError
from stepweave.graph.plan import Plan
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.planner.events import Precedence, event_graph
from stepweave.graph.planner.period import DEVICE_US, HOST_US, delays, op_costs, period
from stepweave.graph.step_graph import StepGraph
from stepweave.testing import decode_step
from stepweave.testing.graphs import random_step_graph
from tests.graph.build import device, host, op, staged, value


def sides(plan: Plan) -> set[str]:
    return {plan.graph.vertices[op].side for op, _ in plan.critical_cycle}


def test_the_synchronous_step_takes_the_sum_of_host_and_device() -> None:
    plan = compile_plan(decode_step(1))
    assert plan.period_us == 6050.0
    assert sides(plan) == {"host", "device"}
    ops = [name for name, _ in plan.critical_cycle]
    assert ops[0] == "schedule.host"
    assert ops[-1] == "commit.host.finish"


@pytest.mark.parametrize("depth", [2, 3])
def test_the_pipelined_step_takes_what_the_device_takes(depth: int) -> None:
    plan = compile_plan(decode_step(depth))
    assert plan.period_us == 4790.0
    assert plan.critical_cycle == (
        ("prepare_inputs.device", 0),
        ("forward.device", 0),
        ("bitmask.device", 0),
        ("sample.device", 0),
        ("draft.device", 1),
    )


def test_a_third_step_in_flight_gains_where_the_host_is_the_longer() -> None:
    costs = {"schedule.host": 4600.0}
    two, three = (compile_plan(decode_step(d), costs=costs).period_us for d in (2, 3))
    assert three <= two


def test_an_actor_that_never_waits_is_a_cycle_too() -> None:
    graph = StepGraph.build(
        [host("a", op(cost=3)), host("b", op(cost=4)), host("c", op(cost=9), actor="other")],
        [],
        order="keep",
    )
    plan = compile_plan(graph)
    assert plan.period_us == 9.0
    assert plan.critical_cycle == (("c.host", 1),)


def test_a_cycle_over_two_steps_counts_half() -> None:
    graph = StepGraph.build(
        [
            device("a", op(cost=1), op("y@-2", "x", cost=60), stream="one"),
            device("b", op(cost=1), op("x", "y", cost=40), stream="two"),
        ],
        [value("x", "device", 8), value("y", "device", 8)],
        order="keep",
    )
    assert compile_plan(graph).period_us == 60.0
    slower = compile_plan(graph, costs={"b.device": 70.0})
    assert slower.period_us == 70.0  # the stream is busier than the cycle: (60 + 70) / 2


def test_costs_are_named_declared_or_assumed() -> None:
    graph = StepGraph.build([device("a", op(cost=5), op())], [], order="keep")
    assert op_costs(graph) == {"a.host": 5.0, "a.device": DEVICE_US}
    assert op_costs(graph, {"a.host": 7}) == {"a.host": 7.0, "a.device": DEVICE_US}
    assert op_costs(StepGraph.build([host("a")], []))["a.host"] == HOST_US


def test_work_without_cost_has_no_period() -> None:
    graph = StepGraph.build([host("a", op(cost=0))], [], order="keep")
    assert compile_plan(graph).period_us == 0.0


def test_a_period_of_thirds_is_exact_to_the_last_bit() -> None:
    graph = StepGraph.build(
        [device("a", op(cost=0), op("x@-3", "x", cost=1))], [value("x", "device", 8)], order="keep"
    )
    events = [
        Precedence("a.device", "a.device", 3, "wait"),
        Precedence("a.host", "a.host", 1, "order"),
    ]
    found = period(graph, events, {"a.host": 0.0, "a.device": 0.1})
    assert found.us == float(Fraction(0.1) / 3)


def test_a_launch_latency_lets_the_device_start_before_its_launch_is_done() -> None:
    def step(latency: float | None) -> StepGraph:
        return StepGraph.build(
            [
                host("see", op("x@-1", cost=10)),
                device("work", op(cost=100), op(writes="x", cost=300), latency=latency),
            ],
            [value("x", "pinned", 2)],
            order="keep",
        )

    assert compile_plan(step(None)).period_us == 410.0
    assert compile_plan(step(20.0)).period_us == 330.0


def test_a_device_op_cannot_end_before_its_launch_does() -> None:
    graph = StepGraph.build(
        [
            host("see", op("x@-1", cost=10)),
            device("work", op(cost=100), op(writes="x", cost=30), latency=5.0),
        ],
        [value("x", "pinned", 2)],
        order="keep",
    )
    plan = compile_plan(graph)
    assert plan.period_us == 110.0
    waiting = [Precedence("work.device", "see.host", 1, "wait")]
    assert [(d.source, d.via, d.delay_us) for d in delays(graph, waiting, plan.costs)] == [
        ("work.device", None, 30.0),
        ("work.host", "work.device", 100.0),
    ]


def test_among_equal_cycles_the_streams_own_is_named() -> None:
    plan = compile_plan(staged(2), costs={"schedule.host": 3480.0})  # the host is as busy
    assert plan.period_us == 4030.0
    assert sides(plan) == {"device"}


def test_the_period_is_the_greatest_ratio_of_all_cycles() -> None:
    for seed in range(60):
        graph = random_step_graph(seed, most_nodes=4)
        costs = {name: float(1 + (7 * k + seed) % 23) for k, name in enumerate(graph.vertices)}
        try:
            plan = compile_plan(graph, costs=costs)
        except DeadlockError:
            continue
        assert plan.period_us == float(slowest(plan)), f"seed {seed}"
        total = sum(Fraction(costs[op]) for op, _ in plan.critical_cycle)
        assert plan.period_us == float(total / sum(d for _, d in plan.critical_cycle))


def slowest(plan: Plan) -> Fraction:
    """The same by listing every simple cycle."""
    nearest = nx.DiGraph()
    for u, v, distance in event_graph(plan).edges(data="distance"):
        if not nearest.has_edge(u, v) or distance < nearest.edges[u, v]["distance"]:
            nearest.add_edge(u, v, distance=distance)
    ratios: list[Fraction] = []
    for cycle in nx.simple_cycles(nearest):
        hops = zip(cycle, [*cycle[1:], cycle[0]], strict=True)
        steps = sum(nearest.edges[hop]["distance"] for hop in hops)
        ratios.append(Fraction(sum(Fraction(plan.costs[op]) for op in cycle)) / steps)
    return max(ratios)
