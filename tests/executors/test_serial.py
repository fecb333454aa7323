"""The serial executor: the reference order, whatever the plan says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stepweave.executors import run
from stepweave.executors.serial_program import SerialProgram
from stepweave.graph.errors import GraphError, StepweaveError
from stepweave.graph.node import Node, Op, OpContext, Read, Value
from stepweave.graph.plan import Plan
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.step_graph import StepGraph
from stepweave.testing.exploring.nodes import Interleaved
from stepweave.testing.graphs import random_step_graph
from stepweave.testing.histories import recorded_states, recording


def noted(order: list[str], **offsets: int) -> Plan:
    def op(name: str) -> Op:
        def run(ctx: OpContext) -> None:
            order.append(f"{name}{ctx.step}")

        return Op(run=run)

    nodes = [Node(name, (op(name),), offset=offset) for name, offset in offsets.items()]
    return compile_plan(StepGraph.build(nodes, []))


def test_ops_run_by_step_plus_offset_then_by_listing() -> None:
    order: list[str] = []
    run(noted(order, commit=1, schedule=-1, forward=0), steps=3)
    assert " ".join(order) == (
        "schedule0 schedule1 forward0 commit0 schedule2 forward1 commit1 forward2 commit2"
    )


def test_the_order_owes_nothing_to_the_plan() -> None:
    order: list[str] = []
    plan = noted(order, a=0, b=1, c=0)
    run(plan, steps=3)
    expected = list(order)
    order.clear()
    backwards = {actor: tuple(reversed(ops)) for actor, ops in plan.actors.items()}
    run(replace(plan, actors=backwards, waits=()), steps=3)
    assert order == expected


def test_every_version_has_its_own_cell_even_where_the_plan_pins_one_slot() -> None:
    """The listing writes x before the read of the step before: no plan with one slot allows it."""
    seen: list[object] = []
    x: dict[str, Any] = {"storage": "slots", "slots": 1}
    nodes = [
        Node("make", (Op(writes=("x",), run=lambda ctx: ctx.write("x", ctx.step)),)),
        Node("look", (Op((Read("x", 1),), run=lambda ctx: seen.append(ctx.read("x"))),), actor="b"),
    ]
    plan = compile_plan(StepGraph.build(nodes, [Value("x", initial="-", **x)]))
    run(plan, steps=4)
    assert seen == ["-", 0, 1, 2]
    seen.clear()
    run(plan, executor="threads", steps=4)
    assert seen == ["-", 0, 1, 2]


def test_a_reader_past_the_last_step_takes_no_version_from_the_others() -> None:
    """At the last iteration `ahead` is beyond the end: it no longer counts as a reader."""
    seen: list[object] = []

    def look(ctx: OpContext) -> None:
        seen.append(ctx.read("x"))

    nodes = [
        Node("ahead", (Op((Read("x", 3),)),), offset=-1),
        Node("make", (Op(writes=("x",), run=lambda ctx: ctx.write("x", ctx.step)),), offset=1),
        Node("look", (Op((Read("x", 1),), run=look),)),
        Node("look_again", (Op((Read("x", 1),), run=look),)),
    ]
    run(compile_plan(StepGraph.build(nodes, [Value("x", initial="-")])), steps=6)
    assert seen == ["-", "-", 0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


def test_a_reader_that_is_listed_before_its_writer_comes_after_it_all_the_same() -> None:
    """Such a graph has a plan, and so a meaning: the serial executor gives what the plan does."""
    seen: list[object] = []
    nodes = [
        Node("look", (Op((Read("x"),), ("y",), run=lambda ctx: ctx.write("y", ctx.read("x"))),)),
        Node(
            "make",
            (Op(writes=("x",), run=lambda ctx: ctx.write("x", ctx.step)),),
            actor="other",
            offset=1,
        ),
        Node("last", (Op((Read("y", 1),), run=lambda ctx: seen.append(ctx.read("y"))),)),
    ]
    plan = compile_plan(StepGraph.build(nodes, [Value("x"), Value("y", initial="-")]))
    for executor in ("serial", "threads"):
        seen.clear()
        assert run(plan, executor=executor, steps=5, keep=["y"]).kept["y"] == [0, 1, 2, 3, 4]
        assert seen == ["-", 0, 1, 2, 3]


@pytest.mark.parametrize("seed", [34, 37, 103, 126, 135, 290, 356, 361])
def test_every_plan_has_a_serial_program_and_states_change_in_the_listing_order(seed: int) -> None:
    """These are random graphs that are listed in an order that no one thread could run."""
    graph = recording(random_step_graph(seed, most_nodes=5, order="search"))
    plan = compile_plan(graph)
    listed = [(op, vertex.offset) for op, vertex in graph.vertices.items()]
    assert SerialProgram.of(graph).order() != listed
    serial = _told(plan, "serial")
    assert all(_told(plan, Interleaved(chance)) == serial for chance in range(3))


def _told(plan: Plan, executor: str | Interleaved) -> tuple[object, object]:
    states = recorded_states(plan.graph)
    report = run(plan, executor=executor, steps=6, states=states, keep=list(plan.graph.values))
    return report.kept, states


def test_a_graph_whose_reads_form_a_cycle_has_no_serial_program() -> None:
    nodes = [
        Node("a", (Op((Read("y"),), ("x",)),)),
        Node("b", (Op((Read("x"),), ("y",)),), actor="other"),
    ]
    graph = StepGraph.build(nodes, [Value("x"), Value("y")])
    with pytest.raises(StepweaveError, match="its reads form a cycle"):
        SerialProgram.of(graph)
    with pytest.raises(GraphError):
        compile_plan(graph)


def test_ctrl_c_is_not_a_failure_of_the_op() -> None:
    def interrupt(ctx: OpContext) -> None:
        raise KeyboardInterrupt

    plan = compile_plan(StepGraph.build([Node("a", (Op(run=interrupt),))], []))
    with pytest.raises(KeyboardInterrupt):
        run(plan, steps=None)
