"""The waits of a plan: enough, none too many, each with what it protects; and deadlocks."""

from __future__ import annotations

import pytest

from stepweave.graph.errors import DeadlockError
from stepweave.graph.plan import Edge, Plan, Protected
from stepweave.graph.planner.bounds import without_bounds
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.planner.events import event_graph, to_networkx
from stepweave.graph.step_graph import StepGraph
from stepweave.testing import decode_step
from tests.graph.build import device, host, op, staged, value, waits


def edge(plan: Plan, hazard: str, name: str) -> Edge:
    return next(
        e for e in (*plan.edges, *plan.launch_order) if (e.hazard, e.value) == (hazard, name)
    )


def test_one_slot_for_the_staging_buffer_brings_exactly_the_guard_that_was_once_forgotten() -> None:
    plan = compile_plan(decode_step(2), slots={"staging": 1})
    assert waits(plan) == [
        "prepare_inputs.device → prepare_inputs.host +1",
        "draft.device → d2h_copy.device +0",
        "d2h_copy.device → commit.host.advance +0",
    ]
    assert plan.waits[0].protects == (
        Protected("WAR", "staging", "prepare_inputs.device", "prepare_inputs.host"),
    )


def test_two_slots_for_the_staging_buffer_need_no_guard() -> None:
    plan = compile_plan(decode_step(2), slots={"staging": 2})
    assert waits(plan) == [
        "draft.device → d2h_copy.device +0",
        "d2h_copy.device → commit.host.advance +0",
    ]


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_speculation_and_grammar_overlapped_need_two_waits_at_every_depth(depth: int) -> None:
    assert len(compile_plan(decode_step(depth)).waits) == 2


def test_dropping_any_wait_would_break_what_it_protects() -> None:
    plan = compile_plan(decode_step(2))
    assert all(wait.protects for wait in plan.waits)
    protected = {(p.hazard, p.value) for p in plan.waits[0].protects}
    assert ("RAW", "drafts") in protected


def test_waits_between_the_same_two_ops_are_one_at_the_least_distance() -> None:
    graph = StepGraph.build(
        [device("a", op(), op(writes="x y")), host("b", op("x@-1 y"))],
        [value("x", "pinned", 4), value("y", "pinned", 4)],
        order="keep",
    )
    assert waits(compile_plan(graph)) == ["a.device → b.host +0"]


def test_a_wait_that_two_others_imply_is_dropped() -> None:
    graph = StepGraph.build(
        [
            device("a", op(), op(writes="x"), stream="one"),
            device("b", op(), op("x", "y"), stream="two"),
            device("c", op(), op("x y"), stream="three"),
        ],
        [value("x", "device", 8), value("y", "device", 8)],
        order="keep",
    )
    plan = compile_plan(graph)
    assert waits(plan)[:2] == ["a.device → b.device +0", "b.device → c.device +0"]
    assert not any(w.source == "a.device" and w.target == "c.device" for w in plan.waits)
    needed = next(e for e in plan.edges if (e.source, e.target) == ("a.device", "c.device"))
    assert needed.by == "path"
    assert needed.witness == (("a.device", 0), ("b.device", 0), ("c.device", 0))
    assert needed.event == "b.device"  # the last wait on the way


def test_each_requirement_says_how_it_is_met() -> None:
    plan = compile_plan(staged(1))
    met = {(e.hazard, e.value, e.target): (e.by, e.event) for e in plan.edges}
    assert met["RAW", "batch", "prepare.host"] == ("order", None)
    assert met["RAW", "staging", "prepare.device"] == ("launch", None)
    assert met["WAR", "staging", "prepare.host"] == ("wait", "prepare.device")
    assert edge(plan, "WAR", "staging").witness == (("prepare.device", 0), ("prepare.host", 1))
    assert edge(plan, "RAW", "staging").from_stream == "driver"
    assert edge(plan, "RAW", "staging").to_stream == "compute"


def test_a_host_op_on_another_thread_is_waited_for_at_the_launch() -> None:
    graph = StepGraph.build(
        [
            host("fill", op(writes="mask"), actor="grammar"),
            device("apply", op(), op("mask")),
        ],
        [value("mask", "pinned", 2)],
        order="keep",
    )
    plan = compile_plan(graph)
    assert waits(plan) == ["fill.host → apply.host +0", "apply.device → fill.host +2"]
    raw = edge(plan, "RAW", "mask")
    assert (raw.by, raw.event) == ("wait", "fill.host")
    assert raw.witness == (("fill.host", 0), ("apply.host", 0), ("apply.device", 0))


def test_two_streams_of_two_threads_bring_a_wait_between_the_launches() -> None:
    graph = StepGraph.build(
        [
            device("a", op(), op(writes="x"), stream="one", actor="left"),
            device("b", op(), op("x"), stream="two", actor="right"),
        ],
        [value("x", "device", 2)],
        order="keep",
    )
    plan = compile_plan(graph)
    assert waits(without_bounds(plan)) == [
        "a.host → b.host +0",
        "a.device → b.device +0",
        "b.host → a.host +2",
        "b.device → a.device +2",
    ]
    assert [(p.hazard, p.value) for p in plan.waits[0].protects] == [("LAUNCH", "")]


def test_records_are_made_only_of_ops_that_somebody_waits_for() -> None:
    plan = compile_plan(decode_step(2))
    assert plan.records == {"draft.device", "d2h_copy.device"}


# --- deadlocks ------------------------------------------------------------------------------------


def test_reading_what_is_written_later_in_the_step_is_a_deadlock_that_names_the_host_order() -> (
    None
):
    graph = StepGraph.build(
        [host("a", op("x"), line=3), host("b", op(writes="x"))], [value("x")], order="keep"
    )
    with pytest.raises(DeadlockError) as caught:
        compile_plan(graph)
    error = caught.value
    assert error.code == "SW-DEADLOCK"
    assert error.cycle == (("a.host", 0), ("b.host", 0))
    assert error.line == 3
    assert "a.host → (d=0, order) b.host → (d=0, RAW x) a.host" in error.message
    assert "'driver' cannot run in the order a.host, b.host" in error.message


def test_an_offset_makes_the_same_reads_possible() -> None:
    graph = StepGraph.build(
        [host("a", op("x"), offset=1), host("b", op(writes="x"))], [value("x")], order="keep"
    )
    assert compile_plan(graph).waits == ()


def test_a_cycle_of_reads_is_a_deadlock_in_every_order() -> None:
    graph = StepGraph.build(
        [
            device("a", op(), op("y", "x"), stream="one"),
            device("b", op(), op("x", "y"), stream="two"),
        ],
        [value("x", "device"), value("y", "device")],
    )
    for order in ("keep", "search"):
        with pytest.raises(DeadlockError) as caught:
            compile_plan(graph, order=order)
        assert sum(distance for _, distance in caught.value.cycle) <= 0


def test_reading_in_the_op_that_writes_is_a_deadlock_at_carry_0_only() -> None:
    for reads, possible in (("x", False), ("x@-1", True)):
        graph = StepGraph.build([host("a", op(reads, "x"))], [value("x")], order="keep")
        if possible:
            compile_plan(graph)
            continue
        with pytest.raises(DeadlockError):
            compile_plan(graph)


def test_a_device_op_launched_before_the_one_it_must_follow_is_refused() -> None:
    graph = StepGraph.build(
        [
            device("late", op(), op("x"), stream="one"),
            device("early", op(), op(writes="x"), stream="two"),
        ],
        [value("x", "device")],
        order="keep",
    )
    with pytest.raises(DeadlockError, match="LAUNCH"):
        compile_plan(graph)


def test_too_few_slots_are_a_deadlock_that_names_the_hazard() -> None:
    graph = StepGraph.build([host("a", op("x@-1", "x"))], [value("x", "pinned", 1)], order="keep")
    with pytest.raises(DeadlockError, match="WAR x"):
        compile_plan(graph)


# --- exports --------------------------------------------------------------------------------------


def test_the_event_graph_is_a_networkx_graph_of_free_edges_and_waits() -> None:
    plan = compile_plan(decode_step(2))
    events = event_graph(plan)
    assert set(events) == set(plan.graph.vertices)
    kinds = [kind for _, _, kind in events.edges(data="kind")]
    assert kinds.count("wait") == len(plan.waits)
    assert kinds.count("launch") == sum(bool(node.device) for node in plan.graph.nodes)
    assert events.edges["draft.device", "d2h_copy.device", "wait"]["distance"] == 0


def test_the_step_graph_is_a_networkx_graph_of_its_data_flow() -> None:
    flow = to_networkx(staged())
    reads = {(u, v, name, c) for u, v, name, c in _reads(flow)}
    assert ("forward.device", "prepare.device", "sampled", 1) in reads
    assert ("prepare.host", "prepare.device", "staging", 0) in reads


def _reads(flow: object) -> list[tuple[str, str, str, int]]:
    edges = flow.edges(data=True)  # type: ignore[attr-defined]
    return [(u, v, d["value"], d["carry"]) for u, v, d in edges if d["kind"] == "read"]
