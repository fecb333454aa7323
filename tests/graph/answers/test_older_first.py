"""The order of a thread that does what it launches. Runs by it: `test_caller_runs.py`."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given

from stepweave.graph.answers.older_first import older_first
from stepweave.graph.node import Node, Op, Read, Value
from stepweave.graph.plan import Plan
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.step_graph import StepGraph
from stepweave.graph.verifier.verify import violations
from tests.graph.oracle import unordered_pairs
from tests.graph.shipped_plans import SHIPPED, shipped_plan
from tests.graph.strategies import examples, plans


def test_what_is_settled_goes_ahead_of_launches_and_not_of_the_schedule() -> None:
    plan = shipped_plan("async", 2)
    (program,) = older_first(plan).values()
    names = [op for op, _ in program]
    assert names[:3] == ["schedule.host", "commit.host.advance", "commit.host.finish"]
    assert sorted(program) == sorted(plan.actors["driver"])
    assert older_first(shipped_plan("async", 1)) == {}, "no older step is in its iterations"


def test_versions_in_flight_are_no_more_than_the_plan_has_room_for() -> None:
    """`use` is done with a version before `tell` writes the next but one, since `ask` waits for it:
    with `tell` ahead of `ask` one more could be in flight."""
    graph = StepGraph.build(
        [
            Node("ask", (Op((Read("used", 2),), ("asked",)),)),
            Node("tell", (Op((), ("told",)),), offset=1),
            Node("use", (Op((Read("told"),), ("used",)),), actor="helper"),
            Node("end", (Op((Read("asked"),)),), actor="helper"),
        ],
        [Value("asked"), Value("told"), Value("used")],
        [],
        order="keep",
        name="room",
    )
    plan = compile_plan(graph)
    assert plan.actors["driver"] == (("ask.host", 0), ("tell.host", 1))
    assert older_first(plan) == {}


def faults(plan: Plan) -> list[str]:
    """What the verifier finds, but for paths: those that the plan keeps are of its own order."""
    return [each.code for each in violations(plan) if each.code != "SW-WITNESS"]


def by_the_other_order(plan: Plan) -> Plan | None:
    found = older_first(plan)
    return replace(plan, actors={**plan.actors, **found}) if found else None


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("name", "depth"), SHIPPED)
def test_the_verifier_passes_shipped_plans_by_the_other_order(name: str, depth: int | None) -> None:
    plan = shipped_plan(name, depth)
    other = by_the_other_order(plan)
    if other is None:
        pytest.skip("nothing can go ahead")
    assert other.actors != plan.actors
    assert faults(other) == []


@examples(8)
@given(plans())
def test_random_plans_hold_by_the_other_order(plan: Plan) -> None:
    """By the verifier and by the oracle, which shares no rule with it."""
    other = by_the_other_order(plan)
    assume(other is not None)
    assert other is not None
    assert faults(other) == []
    assert unordered_pairs(other) == []
