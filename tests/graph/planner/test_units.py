"""Launches that only launch, kept directly behind the launch before them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepweave.graph.errors import DeadlockError
from stepweave.graph.node import Node
from stepweave.graph.plan import Plan
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.planner.segments import segments
from stepweave.graph.planner.units import units
from stepweave.graph.step_graph import StepGraph
from stepweave.graph.verifier.verify import verify, violations
from tests.graph.build import device, host, op, value


def step_graph(*nodes: Node, launches: str = "together", order: str = "search") -> StepGraph:
    names = {name for node in nodes for each in (*node.host, *node.device) for name in each.writes}
    values = [value(name, "pinned") for name in sorted(names)]
    return StepGraph.build(nodes, values, launches=launches, order=order)  # type: ignore[arg-type]


def names(graph: StepGraph) -> list[str]:
    return [" ".join(node.name for node in unit.nodes) for unit in units(graph)]


def work(name: str, launch: str = "", **where: object) -> Node:
    return device(name, op(launch), op(writes=f"{name}_out"), **where)  # type: ignore[arg-type]


FEED = host("feed", op(writes="batch"))


@pytest.mark.parametrize(
    ("second", "together"),
    [
        (work("b"), True),
        (work("b", stream="copy"), True),
        (work("b", "batch"), False),  # it reads on the host
        (device("b", op(writes="staged"), op("staged")), False),  # it writes there
        (device("b", (op(phase="p"), op(phase="q")), op(writes="z")), False),
        (host("b"), False),
        (work("b", actor="helper"), False),
        (work("b", offset=1), False),
    ],
)
def test_a_node_joins_the_one_before_if_its_host_part_only_launches(
    second: Node, together: bool
) -> None:
    parted = ["feed", "a", "b", "c"]
    whole = [*parted[:1], "a b", "c"]
    graph = step_graph(FEED, work("a", "batch"), second, host("c"))
    assert names(graph) == (whole if together else parted)
    assert names(replace(graph, launches="apart")) == parted


def test_a_node_listed_between_parts_them_whatever_its_thread() -> None:
    graph = step_graph(work("a"), host("aside", actor="helper"), work("b"), work("c"))
    assert names(graph) == ["a", "aside", "b c"]


def test_nothing_joins_a_host_node() -> None:
    assert names(step_graph(host("a"), work("b"))) == ["a", "b"]


def parted_by_the_search() -> StepGraph:
    """`look` of the step before fits between the launches as well as behind them."""
    return step_graph(
        host("feed", op(writes="batch", cost=10)),
        device("a", op("batch", cost=5), op("b_out@-1", "a_out", cost=100)),
        device("b", op(cost=0), op("a_out", "b_out", cost=100)),
        host("look", op("b_out", cost=50)),
    )


def program(plan: Plan) -> list[str]:
    return [name.removesuffix(".host") for name, _ in plan.actors["driver"]]


def test_what_the_search_would_part_stays_together() -> None:
    graph = parted_by_the_search()
    apart = compile_plan(replace(graph, launches="apart"))
    assert program(apart).index("b") != program(apart).index("a") + 1
    plan = compile_plan(graph)
    assert program(plan).index("b") == program(plan).index("a") + 1
    assert plan.period_us == apart.period_us
    assert "compute: a → b" in [str(segment) for segment in segments(plan)]
    verify(plan)


def test_the_verifier_refuses_a_plan_that_parts_them() -> None:
    graph = parted_by_the_search()
    apart = compile_plan(replace(graph, launches="apart"))
    verify(apart)
    [found] = violations(replace(apart, graph=graph))
    assert found.code == "SW-ACTORS"
    assert "launch 'b.host' does not stand directly behind 'a.host'" in found.message


def test_the_order_of_the_listing_keeps_them_together() -> None:
    graph = replace(parted_by_the_search(), order="keep")
    plan = compile_plan(graph)
    assert program(plan) == ["feed", "a", "b", "look"]
    verify(plan)


def test_a_host_op_that_has_to_come_between_must_be_listed_there() -> None:
    look = host("look", op("a_out", "seen"))
    needs_it = device("b", op(), op("seen", "b_out"))
    makes_it = device("a", op(), op(writes="a_out"))
    graph = step_graph(makes_it, needs_it, look)
    verify(compile_plan(replace(graph, launches="apart")))
    with pytest.raises(DeadlockError, match="launches that are issued as one, together"):
        compile_plan(graph)
    verify(compile_plan(step_graph(makes_it, look, needs_it)))


def test_a_graph_too_large_to_search_keeps_them_together() -> None:
    nodes = [
        node
        for k in range(40)
        for node in (
            device(f"a{k}", op(f"h{k}" if k else "", cost=5), op(writes=f"x{k}", cost=50)),
            device(f"b{k}", op(cost=1), op(f"x{k}", f"y{k}", cost=50), stream="copy"),
            host(f"look{k}", op(f"y{k}", f"h{k + 1}", cost=20)),
        )
    ]
    plan = compile_plan(step_graph(*nodes))
    assert any("too many nodes to search" in note for note in plan.notes)
    assert program(plan) != program(compile_plan(plan.graph, order="keep"))
    verify(plan)  # which refuses a plan that parts any of them
