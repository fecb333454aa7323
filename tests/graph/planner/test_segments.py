"""Runs of device ops that can be launched as one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given

from stepweave.cli.planned import planned
from stepweave.configs.load import shipped
from stepweave.graph.node import Node, Op, Read, Value
from stepweave.graph.plan import Plan
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.planner.segments import segments
from stepweave.graph.step_graph import StepGraph
from tests.graph.strategies import examples, plans


def texts(name: str, **settings: str) -> list[str]:
    return [str(segment) for segment in segments(planned(name, settings))]


def test_a_grammar_parts_the_step_where_its_mask_comes_from_the_host() -> None:
    assert texts("async_eagle3_grammar") == [
        "compute: prepare_inputs → forward",
        "compute: bitmask → sample → draft",
        "copy: d2h_copy",
    ]


def test_without_a_grammar_the_synchronous_step_is_one_segment() -> None:
    assert texts("async", depth="1") == [
        "compute: prepare_inputs → forward → sample",
        "copy: d2h_copy",
    ]


def test_a_wait_before_or_an_event_after_ends_a_segment() -> None:
    assert texts("drafter_stream") == [
        "compute: prepare_inputs",  # the driver commits before it launches the forward
        "compute: forward → sample",  # both others wait for the sample
        "draft: draft",
        "copy: d2h_copy",
    ]


def chain(*, reads: tuple[Read, ...] = ()) -> Plan:
    nodes = [
        Node("fill", (Op(writes=("batch",)),)),
        Node("one", (Op(),), (Op(writes=("x",)),), stream="compute"),
        Node("two", (Op(reads),), (Op((Read("x"),), ("y",)),), stream="compute"),
    ]
    values = [Value("batch"), Value("x", "device", "slots"), Value("y", "device", "slots")]
    return compile_plan(StepGraph.build(nodes, values, order="keep"))


def test_a_launch_that_has_something_to_read_ends_a_segment() -> None:
    assert [segment.ops for segment in segments(chain())] == [("one.device", "two.device")]
    apart = segments(chain(reads=(Read("batch"),)))
    assert [segment.ops for segment in apart] == [("one.device",), ("two.device",)]
    assert apart[1].reads == {"x"}
    assert apart[1].writes == {"y"}


def parts(
    *between: Node,
    two: Node | None = None,
    one: Op | None = None,
    before: Sequence[Node] = (),
    after: Sequence[Node] = (),
) -> list[tuple[str, ...]]:
    """Segments of `one` and `two` on one stream, whose launches have nothing else to do.

    `one`: the host op of the first; `two`: another second; the others are listed before, between
    and after them.
    """
    nodes = [
        *before,
        Node("one", (one or Op(),), (Op(writes=("x",)),), stream="compute"),
        *between,
        two or Node("two", (Op(),), (Op((Read("x"),), ("y",)),), stream="compute"),
        *after,
    ]
    names = {name for node in nodes for op in (*node.host, *node.device) for name in op.writes}
    values = [
        Value(name, "device" if name in "xyz" else "pinned", "slots") for name in sorted(names)
    ]
    plan = compile_plan(StepGraph.build(nodes, values, order="keep"))
    check(plan)
    return [segment.ops for segment in segments(plan) if segment.stream == "compute"]


TOGETHER = [("one.device", "two.device")]
APART = [("one.device",), ("two.device",)]


def test_launches_that_only_launch_one_after_the_other_are_one_segment() -> None:
    assert parts() == TOGETHER
    assert parts(Node("aside", (Op(writes=("note",)),), actor="worker")) == TOGETHER


def test_an_event_that_another_stream_waits_for_ends_a_segment() -> None:
    """Recorded after both, it would come later than it might."""
    read = Node("read", (Op(),), (Op((Read("x"),), ("z",)),), stream="copy")
    assert parts(after=[read]) == APART


def test_a_wait_for_another_stream_ends_a_segment() -> None:
    """Waited for before both, it would hold up the first."""
    write = Node("write", (Op(),), (Op(writes=("z",)),), stream="copy")
    two = Node("two", (Op(),), (Op((Read("x"), Read("z")), ("y",)),), stream="compute")
    assert parts(before=[write], two=two) == APART


def test_a_launch_that_waits_for_another_thread_ends_a_segment() -> None:
    """Launched with the first, the second would not have waited."""
    read = Op((Read("x"), Read("note")), ("y",))
    two = Node("two", (Op(),), (read,), stream="compute")
    assert parts(Node("aside", (Op(writes=("note",)),), actor="worker"), two=two) == APART


def test_a_launch_that_another_thread_waits_for_ends_a_segment() -> None:
    """Launching more there would keep that thread waiting."""
    look = Node("look", (Op((Read("note"),)),), actor="worker")
    assert parts(look, one=Op(writes=("note",))) == APART


def test_a_launch_that_writes_ends_a_segment() -> None:
    two = Node("two", (Op(writes=("note",)),), (Op((Read("x"),), ("y",)),), stream="compute")
    assert parts(two=two) == APART


def test_a_host_op_between_the_launches_ends_a_segment() -> None:
    assert parts(Node("between")) == APART


def test_launches_of_different_steps_are_no_segment() -> None:
    """The second of step i comes right after the first of step i + 1."""
    two = Node("two", (Op(),), (Op((Read("x"),), ("y",)),), stream="compute", offset=1)
    assert sorted(parts(two=two)) == APART


def test_phases_of_one_node_are_one_segment() -> None:
    """Whatever the host op that launches both has to do before."""
    phases = (Op((Read("x"),), ("y",), phase="a"), Op((Read("y"),), ("z",), phase="b"))
    found = parts(two=Node("two", (Op(writes=("note",)),), phases, stream="compute"))
    assert found == [("one.device",), ("two.device.a", "two.device.b")]


def test_what_a_segment_reads_of_the_step_before_comes_from_outside() -> None:
    nodes = [
        Node("one", (Op(),), (Op((Read("y", 1),), ("x",)),), stream="compute"),
        Node("two", (Op(),), (Op((Read("x"),), ("y",)),), stream="compute"),
    ]
    values = [Value("x", "device", "slots"), Value("y", "device", "slots", initial=0)]
    [segment] = segments(compile_plan(StepGraph.build(nodes, values, order="keep")))
    assert segment.reads == {"y"}
    assert segment.writes == {"x", "y"}
    assert segment.inner == {"x"}, "what the next step reads is read outside"


def check(plan: Plan) -> None:
    found = segments(plan)
    on_streams = [
        op
        for actor, program in plan.actors.items()
        for op, _ in program
        if plan.graph.vertices[op].side == "device"
    ]
    assert [op for segment in found for op in segment.ops] == on_streams
    for segment in found:
        assert {plan.graph.vertices[op].actor for op in segment.ops} == {segment.stream}
        assert not set(segment.ops[:-1]) & plan.records
        assert not set(segment.ops[1:]) & {wait.target for wait in plan.waits}
        launchers = {
            plan.graph.vertices[plan.graph.vertices[op].launch or ""].actor for op in segment.ops
        }
        assert len(launchers) == 1


@examples(40)
@given(plans())
def test_segments_are_the_streams_programs_cut_up(plan: Plan) -> None:
    check(plan)


@pytest.mark.sampled(10)
@pytest.mark.parametrize("name", shipped())
def test_and_so_they_are_for_shipped_pipelines(name: str) -> None:
    check(planned(name))
