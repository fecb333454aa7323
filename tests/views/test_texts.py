"""Drawings: goldens, and what holds for every plan. UPDATE_GOLDEN=1 rewrites the goldens."""

from __future__ import annotations

import os
import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given

from stepweave.graph.answers.timetable import timetable
from stepweave.graph.node import Node, Op, Read, Value
from stepweave.graph.plan import Plan
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.step_graph import StepGraph
from stepweave.views.dot import dot
from stepweave.views.lanes import lanes
from stepweave.views.mermaid import mermaid
from tests.graph.pipelines import decode
from tests.graph.strategies import examples, plans

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(scope="module")
def plan() -> Plan:
    return compile_plan(decode())


def matches_golden(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def test_lanes_of_the_decode_step(plan: Plan) -> None:
    matches_golden("decode_lanes.txt", lanes(plan))


def test_wide_lanes_of_the_decode_step(plan: Plan) -> None:
    matches_golden("decode_lanes_120.txt", lanes(plan, width=120, steps=4))


def test_dot_of_the_decode_step(plan: Plan) -> None:
    matches_golden("decode.dot", dot(plan))


def test_mermaid_of_the_decode_step(plan: Plan) -> None:
    matches_golden("decode.mmd", mermaid(plan))


def test_lanes_name_every_wait_with_its_streams_and_event(plan: Plan) -> None:
    text = " ".join(lanes(plan).split())
    assert (
        "forward.device → d2h_copy.device step+0 WAR staging, RAW sampled "
        "[compute ⇒ copy, event forward.device]"
    ) in text


def test_colour_changes_nothing_but_the_colour(plan: Plan) -> None:
    coloured = lanes(plan, color=True)
    assert "\x1b[36m├forward 0" in coloured
    assert re.sub(r"\x1b\[\d+m", "", coloured) == lanes(plan)


@examples(12)
@given(plans())
def test_no_line_is_wider_than_asked(plan: Plan) -> None:
    for width in (40, 80, 133):
        assert max(len(line) for line in lanes(plan, width=width).splitlines()) <= width


@examples(12)
@given(plans())
def test_the_lanes_keep_every_order_of_the_plan(plan: Plan) -> None:
    times = timetable(plan)
    for wait in plan.waits:
        later = times.starts[wait.target] + wait.distance * times.period_us
        assert later >= times.ends[wait.source] - 1e-3
    for program in plan.actors.values():
        for (u, at), (v, then) in pairwise(program):
            assert times.starts[v] + (at - then) * times.period_us >= times.ends[u] - 1e-3


@examples(12)
@given(plans())
def test_a_drawing_is_the_same_every_time(plan: Plan) -> None:
    again = compile_plan(plan.graph)
    assert lanes(plan) == lanes(again)
    assert dot(plan) == dot(again)
    assert mermaid(plan) == mermaid(again)


def test_names_are_escaped() -> None:
    graph = StepGraph.build([Node('say "hi"', (Op(),))], [], order="keep")
    plan = compile_plan(graph)
    assert r'"say \"hi\".host"' in dot(plan)
    assert "say &quot;hi&quot;.host" in mermaid(plan)


def on_host(**costs: float) -> Plan:
    nodes = [Node(name, (Op(cost_us=us),), actor="host") for name, us in costs.items()]
    return compile_plan(StepGraph.build(nodes, []))


def test_an_op_that_is_too_short_to_have_a_place_is_in_the_key() -> None:
    text = lanes(on_host(long=1e6, short=1e-3))
    assert "├long 0" in text
    assert "short.host" in text


def test_ops_without_a_cost_are_drawn_and_do_not_change_the_period() -> None:
    text = lanes(on_host(first=100.0, second=0.0, third=0.0))
    assert {"╵0", "╵100", "╵200"} <= {*text.split()}
    assert "├c0" in text
    assert "c third.host" in text


def test_a_letter_of_the_key_is_no_name_of_an_op() -> None:
    names = {"a": 1.0, "b": 1.0, "a_name_that_is_too_long_for_its_place": 1.0, "last": 97.0}
    text = lanes(on_host(**names), width=60)
    assert "e a_name_that_is_too_long_for_its_place.host" in text
    assert "c a.host" in text


def test_a_wait_has_its_number_beside_short_names() -> None:
    nodes = [
        Node("a", (Op(cost_us=10.0),), (Op(writes=("v",), cost_us=50.0),), actor="h", stream="g"),
        Node("b", (Op((Read("v"),), cost_us=10.0),), actor="h", offset=1),
    ]
    plan = compile_plan(StepGraph.build(nodes, [Value("v", "pinned")]))
    assert plan.waits
    assert "wait 1 " in lanes(plan)


def test_lanes_of_a_later_step_stand_where_those_of_the_first_do() -> None:
    """0.2 µs of 25.6 are an odd number of halves of a millionth, and rounded so or so by step."""
    text = lanes(on_host(a=0.0, b=0.0, c=0.0, d=5.0, e=20.0), steps=5)
    rows = [line for line in text.splitlines() if line.startswith("host")]
    assert len(re.findall("├e [0-4]", rows[0])) == 5
