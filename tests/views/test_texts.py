"""Drawings: goldens, and what holds for every plan. UPDATE_GOLDEN=1 rewrites the goldens."""

from __future__ import annotations

import os
import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given

from stepweave.graph.answers.timetable import timetable
from stepweave.graph.node import Node, Op
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


@examples(25)
@given(plans())
def test_no_line_is_wider_than_asked(plan: Plan) -> None:
    for width in (40, 80, 133):
        assert max(len(line) for line in lanes(plan, width=width).splitlines()) <= width


@examples(25)
@given(plans())
def test_the_lanes_keep_every_order_of_the_plan(plan: Plan) -> None:
    times = timetable(plan)
    for wait in plan.waits:
        later = times.starts[wait.target] + wait.distance * times.period_us
        assert later >= times.ends[wait.source] - 1e-3
    for program in plan.actors.values():
        for (u, at), (v, then) in pairwise(program):
            assert times.starts[v] + (at - then) * times.period_us >= times.ends[u] - 1e-3


@examples(25)
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
