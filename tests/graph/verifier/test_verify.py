"""The verifier passes sound plans and names the cause in each unsound one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from stepweave.graph.errors import UnsoundPlan
from stepweave.graph.node import Node, Op, Value
from stepweave.graph.plan import Edge, Plan, Wait
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.step_graph import StepGraph
from stepweave.graph.verifier.verify import verify, violations
from stepweave.graph.violation import Violation
from tests.graph.pipelines import decode, device_node, reads


@pytest.fixture(scope="module")
def plan() -> Plan:
    return compile_plan(decode())


def without_wait(plan: Plan, source: str, target: str) -> Plan:
    kept = tuple(w for w in plan.waits if (w.source, w.target) != (source, target))
    assert len(kept) == len(plan.waits) - 1, "the plan has that wait"
    return replace(plan, waits=kept)


def exchanged(plan: Plan, actor: str, first: str, second: str) -> Plan:
    other = {first: second, second: first}
    offsets = dict(plan.actors[actor])
    program = [other.get(op, op) for op, _ in plan.actors[actor]]
    return replace(plan, actors={**plan.actors, actor: tuple((op, offsets[op]) for op in program)})


def only(plan: Plan) -> Violation:
    found = violations(plan)
    assert len(found) == 1, "one report for one cause:\n" + "\n".join(map(str, found))
    return found[0]


def test_a_compiled_plan_is_sound(plan: Plan) -> None:
    verify(plan)


def test_a_deleted_wait_is_one_race_with_both_accesses_and_what_else_it_protected(
    plan: Plan,
) -> None:
    mutant = without_wait(plan, "d2h_copy.device", "commit.host")
    assert str(only(mutant)) == (
        "SW-RAW-DEVICE-HOST: RAW race on 'out' (2 slots): commit.host of step i may read it "
        "before d2h_copy.device of step i has written it\n"
        "  first    step i: node 'd2h_copy', op 'd2h_copy.device' on copy, writes out, version i "
        "in slot i mod 2\n"
        "  second   step i: node 'commit', op 'commit.host' on driver, reads out, version i "
        "in slot i mod 2\n"
        "  needed   d2h_copy.device(i) before commit.host(i)\n"
        "  present  no ordering between them\n"
        "  repair   let commit.host wait for d2h_copy.device of the same step\n"
        "  also     WAR staging: prepare.device(i) before prepare.host(i+2)\n"
        "  also     WAR sampled: d2h_copy.device(i) before forward.device(i+2)"
    )
    with pytest.raises(UnsoundPlan, match="RAW race on 'out'") as caught:
        verify(mutant)
    assert caught.value.code == "SW-RAW-DEVICE-HOST"


def test_a_loosened_wait_is_a_race_that_tells_what_is_ordered(plan: Plan) -> None:
    waits = tuple(replace(w, distance=1) if w.target == "commit.host" else w for w in plan.waits)
    found = only(replace(plan, waits=waits))
    assert (found.code, found.needed, found.present) == ("SW-RAW-DEVICE-HOST", 0, 1)


def test_a_pinned_buffer_rewritten_while_its_copy_is_in_flight_is_a_war_race(plan: Plan) -> None:
    found = only(replace(plan, slots={**plan.slots, "staging": 1}))
    assert found.code == "SW-WAR-DEVICE-HOST"
    assert found.before is not None
    assert found.after is not None
    assert (found.before.op, found.after.op) == ("prepare.device", "prepare.host")
    assert found.message.startswith(
        "WAR race on 'staging' (1 slot): prepare.host of step i+1 may write it before "
        "prepare.device of step i has read it"
    )


def test_a_wait_enqueued_before_its_record_is_refused(plan: Plan) -> None:
    found = only(exchanged(plan, "driver", "forward.host", "d2h_copy.host"))
    assert found.code == "SW-HOST-ORDER"
    assert "enqueued before the event is recorded, and then does nothing" in found.message


def test_a_stream_that_runs_its_ops_in_another_order_than_they_are_launched_is_refused(
    plan: Plan,
) -> None:
    mutant = exchanged(plan, "compute", "prepare.device", "forward.device")
    assert "SW-LAUNCH" in {violation.code for violation in violations(mutant)}


def test_a_stream_cannot_wait_for_host_work(plan: Plan) -> None:
    wait = Wait("schedule.host", "forward.device", 0)
    found = only(replace(plan, waits=(*plan.waits, wait)))
    assert found.code == "SW-HOST-ORDER"
    assert "Let 'forward.host', which launches 'forward.device', wait for it" in found.message


def two_writers() -> Plan:
    return compile_plan(
        StepGraph.build(
            [
                device_node("first", "a", writes=("state",)),
                device_node("second", "b", writes=("state",)),
            ],
            [],
            ["state"],
            order="keep",
        )
    )


def test_unordered_writes_of_a_state_are_a_waw_race() -> None:
    found = only(without_wait(two_writers(), "first.device", "second.device"))
    assert found.code == "SW-WAW-DEVICE-DEVICE"


def test_a_plan_that_waits_for_itself_is_a_deadlock(plan: Plan) -> None:
    wait = Wait("commit.host", "schedule.host", -1)
    found = only(replace(plan, waits=(*plan.waits, wait)))
    assert found.code == "SW-DEADLOCK"
    assert "the plan waits for itself: " in found.message


def test_a_wait_of_a_step_for_itself_through_two_threads_is_a_deadlock() -> None:
    graph = StepGraph.build(
        [Node("a", (Op(writes=("x",)),)), Node("b", (Op(reads("x")),), actor="helper")],
        [Value("x")],
        order="keep",
    )
    plan = compile_plan(graph)
    mutant = replace(plan, waits=(*plan.waits, Wait("b.host", "a.host", 0)))
    assert only(mutant).code == "SW-DEADLOCK"


@pytest.mark.parametrize(
    ("actors", "message"),
    [
        ({"driver": ()}, "stands 0 times in the programs, not once"),
        ({"copy": (("d2h_copy.device", 0), ("d2h_copy.device", 0))}, "stands 2 times"),
        ({"copy": (("d2h_copy.device", 1),)}, "runs at offset 1, its launch"),
        ({"copy": (), "side": (("d2h_copy.device", 0),)}, "runs on 'side', not on 'copy'"),
        ({"side": (("invented", 0),)}, "which the graph lacks"),
    ],
)
def test_programs_hold_every_op_once_in_its_place(
    plan: Plan, actors: Mapping[str, tuple[tuple[str, int], ...]], message: str
) -> None:
    found = violations(replace(plan, actors={**plan.actors, **actors}))
    assert {violation.code for violation in found} == {"SW-ACTORS"}
    assert message in "\n".join(map(str, found))


def test_a_value_with_slots_needs_a_number_of_them(plan: Plan) -> None:
    assert only(replace(plan, slots={**plan.slots, "staging": None})).code == "SW-SLOTS"
    assert only(replace(plan, slots={**plan.slots, "staging": 0})).code == "SW-SLOTS"


def test_an_unstated_and_a_weakened_requirement_are_one_report_each(plan: Plan) -> None:
    rest = tuple(edge for edge in plan.edges if edge.value != "out")
    found = only(replace(plan, edges=rest))
    assert found.code == "SW-WITNESS"
    assert found.message.startswith("no edge states the requirement RAW out: ")
    assert len(found.also) == 2

    weak = [replace(e, distance=e.distance + 1) if e.value == "out" else e for e in plan.edges]
    assert "weakens the requirement RAW out" in only(replace(plan, edges=tuple(weak))).message


def test_an_unstated_launch_order_is_refused(plan: Plan) -> None:
    found = only(replace(plan, launch_order=()))
    assert found.code == "SW-WITNESS"
    assert found.message.startswith("no edge states the requirement LAUNCH: ")


def broken_witness(plan: Plan, change: Mapping[str, object]) -> Plan:
    """The first edge that is met by a wait, with some fields replaced."""
    edge: Edge = next(edge for edge in plan.edges if edge.by == "wait")
    doctored = replace(edge, **change)  # type: ignore[arg-type]
    return replace(plan, edges=tuple(doctored if e is edge else e for e in plan.edges))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"witness": ()}, "it does not lead from"),
        ({"witness": (("forward.device", 0), ("d2h_copy.device", 1))}, "it is longer (1)"),
        (
            {"witness": (("forward.device", 0), ("schedule.host", 0), ("d2h_copy.device", 0))},
            "the plan has no ordering forward.device(i) before schedule.host(i)",
        ),
        ({"witness": (("forward.device", 0), ("nobody", 0))}, "'nobody' is no op of the graph"),
        ({"from_stream": "copy"}, "it names the actors 'copy' and 'copy'"),
        ({"event": "prepare.device"}, "the event of 'prepare.device', which no op records"),
    ],
)
def test_a_witness_that_is_no_path_is_refused(
    plan: Plan, change: Mapping[str, object], message: str
) -> None:
    found = only(broken_witness(plan, change))
    assert found.code == "SW-WITNESS"
    assert message in found.message


def test_host_work_reaches_a_device_op_only_through_its_launch() -> None:
    plan = compile_plan(
        StepGraph.build(
            [
                Node("fill", (Op(writes=("staging",)),)),
                device_node("copy_in", "compute", reads=reads("staging")),
            ],
            [Value("staging", "pinned", "slots", 2)],
            order="keep",
        )
    )
    edge = next(e for e in plan.edges if (e.hazard, e.value) == ("RAW", "staging"))
    assert [op for op, _ in edge.witness] == ["fill.host", "copy_in.host", "copy_in.device"]
    verify(plan)


def test_a_violation_as_json_has_stable_keys(plan: Plan) -> None:
    found = only(without_wait(plan, "d2h_copy.device", "commit.host")).to_json()
    assert {key: found[key] for key in ("code", "hazard", "value", "before", "after")} == {
        "code": "SW-RAW-DEVICE-HOST",
        "hazard": "RAW",
        "value": "out",
        "before": "d2h_copy.device",
        "after": "commit.host",
    }
