"""Views of plans of several ranks: lanes together by rank, and what ranks wait for drawn."""

from __future__ import annotations

import re

import pytest

from stepweave.graph.answers.between import between, ops_named
from stepweave.graph.plan import Plan
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.planner.events import comm_edges
from stepweave.views.dot import dot
from stepweave.views.lanes import lanes
from stepweave.views.mermaid import mermaid
from stepweave.views.svg_dag import dag_svg
from stepweave.views.svg_lanes import lanes_svg
from tests.graph.ranked import pipeline


@pytest.fixture(scope="module")
def plan() -> Plan:
    return compile_plan(pipeline((300.0, 300.0), 2, comm_us=20.0))


def test_the_lanes_of_a_rank_stand_together(plan: Plan) -> None:
    assert list(plan.actors) == ["driver@0", "compute@0", "driver@1", "compute@1"]
    shown = lanes(plan)
    places = [shown.index(f"\n{actor}") for actor in plan.actors]
    assert places == sorted(places)
    assert "send0 (rank 0 → 1, capacity 0; from_0_to_1)" in shown
    assert "feedback (rank 1 → 0, capacity 1; from_1_to_0)" in shown


def test_every_meeting_is_drawn_in_every_picture(plan: Plan) -> None:
    edges = comm_edges(plan.graph)
    assert len(edges) == 4
    graphviz, flow = dot(plan), mermaid(plan)
    assert graphviz.count("darkorange") == flow.count('|"meets') == len(edges)
    assert graphviz.count("subgraph cluster_rank_") == 2
    assert graphviz.count("{") == graphviz.count("}")
    for picture in (dag_svg(plan), lanes_svg(plan)):
        for source, target, *_ in edges:
            drawn = rf'class="comm"[^>]*data-from="{source}"[^>]*data-to="{target}"'
            assert re.search(drawn, picture), (source, target)


def test_why_goes_through_the_meeting_of_two_ranks(plan: Plan) -> None:
    found = between(plan, ("stage0@0.device",), ("stage1@1.device",))
    assert any("comm" in str(leg) for order in found.orders for leg in order.legs)


def test_a_name_without_a_rank_means_its_ops_on_all_ranks(plan: Plan) -> None:
    assert ops_named(plan, "send0@1") == (
        "send0@1.host", "send0@1.device.enter", "send0@1.device.leave"
    )  # fmt: skip
    assert len(ops_named(plan, "send0")) == 6
    assert set(ops_named(plan, "send0.device.enter")) == {
        "send0@0.device.enter",
        "send0@1.device.enter",
    }
    assert set(ops_named(plan, "send0.host")) == {"send0@0.host", "send0@1.host"}
