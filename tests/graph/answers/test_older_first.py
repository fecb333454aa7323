"""The order of a thread that does what it launches. Runs by it: `test_caller_runs.py`."""

from __future__ import annotations

from stepweave.graph.answers.older_first import older_first
from stepweave.graph.node import Node, Op, Read, Value
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.step_graph import StepGraph
from tests.graph.shipped_plans import shipped_plan


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
