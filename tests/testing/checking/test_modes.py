"""Checking mode where a value tells the modes of steps: what a mode leaves out is left out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepweave.executors.errors import ContractViolation, NodeFailure
from stepweave.executors.run import run
from stepweave.executors.run_arguments import RunArguments
from stepweave.graph.modes import Mode
from stepweave.graph.node import Node, Op, OpContext, Read, Value
from stepweave.graph.plan import Plan
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.step_graph import StepGraph
from stepweave.testing.checking.mode import Strict
from stepweave.testing.unverified import run_unverified
from tests.graph.planner.test_conditional import changed

STEPS = 12


def masks(*, reads_in: tuple[str, ...] = ("masked",)) -> Plan:
    """`fill`, on a thread of its own, writes what `draw` reads in the steps of those modes."""

    def begin(context: OpContext) -> None:
        context.write("kind", "masked" if context.step % 3 else "plain")

    def fill(context: OpContext) -> None:
        context.write("mask", context.step if context.read("kind") == "masked" else None)

    def draw(context: OpContext) -> None:
        if context.read("kind") in reads_in:
            context.read("mask")

    nodes = [
        Node("begin", (Op(writes=("kind",), run=begin, cost_us=1),)),
        Node("fill", (Op((Read("kind"),), ("mask",), run=fill, cost_us=9),), actor="masks"),
        Node("draw", (Op((Read("kind"), Read("mask")), run=draw, cost_us=5),)),
    ]
    modes = [Mode("masked"), Mode("plain", untouched={"draw.host": ("mask",)})]
    values = [Value("kind"), Value("mask", storage="slots", slots=2)]
    return compile_plan(StepGraph.build(nodes, values, modes=modes, told_by="kind", order="keep"))


def violation(plan: Plan) -> ContractViolation:
    with pytest.raises(NodeFailure) as caught:
        run_unverified(plan, Strict(), RunArguments(steps=STEPS))
    assert isinstance(caught.value.__cause__, ContractViolation)
    return caught.value.__cause__


def in_modes(plan: Plan, *modes: str) -> Plan:
    """The wait of `draw` for its mask in these modes only."""
    for index, wait in enumerate(plan.waits):
        if (wait.source, wait.target) == ("fill.host", "draw.host"):
            return changed(plan, index, replace(wait, modes=modes))
    raise AssertionError("there is no such wait")


@pytest.mark.parametrize("executor", ["serial", "threads"])
def test_an_op_that_leaves_out_what_its_mode_leaves_out_passes(executor: str) -> None:
    plan = masks()
    assert any(wait.modes == ("masked",) for wait in plan.waits)
    assert run(plan, executor=Strict(executor), steps=STEPS).steps == STEPS


def test_a_wait_that_is_left_out_in_the_mode_that_needs_it_is_a_race() -> None:
    found = violation(in_modes(masks(), "plain"))
    assert (found.code, found.value) == ("SW-RACE", "mask")


def test_an_op_that_touches_what_its_mode_leaves_out_is_named() -> None:
    found = violation(masks(reads_in=("masked", "plain")))
    assert (found.code, found.value, found.op) == ("SW-MODE", "mask", "draw.host")
    assert "in mode 'plain'" in found.message
