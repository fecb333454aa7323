"""What is ordered between two ops, against the unrolled graph."""

from __future__ import annotations

from itertools import pairwise

import networkx as nx
import pytest
from hypothesis import given

from stepweave.graph.answers.between import Between, between, ops_named
from stepweave.graph.errors import GraphError
from stepweave.graph.plan import Plan
from stepweave.graph.planner.bounds import without_bounds
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.step_graph import StepGraph
from stepweave.graph.verifier.order import arcs_of
from tests.graph.build import device, host, op
from tests.graph.pipelines import decode
from tests.graph.shipped_plans import shipped_plan
from tests.graph.strategies import examples, plans


def unrolled(plan: Plan, steps: int) -> nx.DiGraph:
    graph = nx.DiGraph()
    graph.add_nodes_from((name, step) for name in plan.graph.vertices for step in range(steps))
    for u, v, d in arcs_of(plan):
        for step in range(steps):
            if 0 <= step + d < steps:
                graph.add_edge((u, step), (v, step + d))
    return nx.transitive_closure_dag(graph)


def of(plan: Plan, first: str, then: str) -> Between:
    return between(plan, ops_named(plan, first), ops_named(plan, then))


@examples(15)
@given(plans(most_nodes=5))
def test_what_is_said_to_be_ordered_is_ordered_when_unrolled(plan: Plan) -> None:
    steps, middle = 25, 12
    graph = unrolled(plan, steps)
    names = tuple(plan.graph.vertices)
    for each in between(plan, names, names).orders:
        for d in (-3, -2, -1, 0, 1, 2, 3):
            if each.first == each.then and d == 0:
                continue
            before = graph.has_edge((each.first, middle), (each.then, middle + d))
            after = graph.has_edge((each.then, middle + d), (each.first, middle))
            wanted = "before" if before else "after" if after else "overlap"
            assert each.at(d) == wanted, (each.first, each.then, d)
            least, most = each.overlap
            inside = (least is None or d >= least) and (most is None or d <= most)
            assert inside == (wanted == "overlap")


def test_the_path_leads_there_at_the_distance_said() -> None:
    plan = shipped_plan("quickstart")
    arcs = set(arcs_of(plan))
    for each in of(plan, "forward", "commit").orders:
        assert each.path[0] == (each.first, 0)
        assert each.path[-1] == (each.then, each.ahead)
        for (u, at), (v, then) in pairwise(each.path):
            assert (u, v, then - at) in arcs


def test_the_legs_tell_the_same_path_in_fewer_pieces() -> None:
    plan = shipped_plan("quickstart")
    (each,) = of(plan, "prepare_inputs.device", "prepare_inputs.host").orders
    assert [(leg.target, leg.total, leg.reason) for leg in each.legs] == [
        ("draft.device", 0, "program of compute"),
        ("d2h_copy.device", 0, "wait"),
        ("commit.host.advance", 0, "wait"),
        ("prepare_inputs.host", 2, "program of driver"),
    ]
    ops = list(each.path)
    assert all((leg.target, leg.total) in ops for leg in each.legs)


def test_what_may_overlap_is_said() -> None:
    plan = shipped_plan("quickstart")
    (each,) = of(plan, "forward.device", "commit.host.advance").orders
    assert (each.ahead, each.behind) == (0, -2)
    assert each.overlap_words() == "may overlap with commit.host.advance of step i-1"
    assert [each.at(d) for d in (-2, -1, 0)] == ["after", "overlap", "before"]


def test_actors_that_share_nothing_may_overlap_in_any_steps() -> None:
    graph = StepGraph.build([host("a", op()), host("b", op(), actor="other")], [], order="keep")
    (each,) = of(without_bounds(compile_plan(graph)), "a", "b").orders
    assert (each.ahead, each.behind, each.path) == (None, None, ())
    assert each.words() == "nothing orders them: they may overlap in any steps"


def test_a_launched_op_lets_its_launcher_run_ahead_without_bound() -> None:
    graph = StepGraph.build([device("a", op(), op(), stream="s")], [], order="keep")
    (each,) = of(without_bounds(compile_plan(graph)), "a.host", "a.device").orders
    assert each.overlap == (None, -1)
    assert each.overlap_words() == "may overlap with a.device of steps i-1 or earlier"


def test_an_op_and_itself_run_one_after_another() -> None:
    plan = compile_plan(decode())
    (each,) = of(plan, "forward.device", "forward.device").orders
    assert each.words() == "forward.device runs its steps one after another"


def test_waits_and_requirements_lead_one_way_or_the_other() -> None:
    plan = compile_plan(decode())
    there, back = of(plan, "d2h_copy", "commit"), of(plan, "commit", "d2h_copy")
    assert [w.wait for w in there.waits] == [w.wait for w in back.back_waits] != []
    assert there.back_waits == back.waits == ()
    assert there.requirements == back.back_requirements
    titles = {(r.title, r.edge.source) for r in there.requirements}
    assert titles == {("RAW out", "d2h_copy.device")}
    assert {r.title for r in there.back_requirements} == {"WAR out"}


@pytest.mark.parametrize(
    ("name", "ops"),
    [
        ("commit", ("commit.host.advance", "commit.host.finish")),
        ("commit.host", ("commit.host.advance", "commit.host.finish")),
        ("commit.host.finish", ("commit.host.finish",)),
        ("forward", ("forward.host", "forward.device")),
        ("forward.device", ("forward.device",)),
    ],
)
def test_ops_are_named_whole_or_by_node(name: str, ops: tuple[str, ...]) -> None:
    assert ops_named(shipped_plan("quickstart"), name) == ops


@pytest.mark.parametrize(
    ("name", "near"), [("comit", "commit"), ("forward.devise", "forward.device"), ("host", "")]
)
def test_an_unknown_name_gets_the_nearest_right_one(name: str, near: str) -> None:
    with pytest.raises(GraphError) as caught:
        ops_named(shipped_plan("quickstart"), name)
    assert caught.value.code == "SW-UNKNOWN-NAME"
    assert f"did you mean {near!r}" in caught.value.message or not near
