"""What correctness needs, from the accesses: hazards and their distances."""

from __future__ import annotations

from stepweave.graph.planner.events import listing_programs, with_streams
from stepweave.graph.planner.requirements import Gate, Requirement, gate, launch_order, requirements
from stepweave.graph.step_graph import StepGraph
from tests.graph.build import device, host, op, staged, value


def lines(needed: list[Requirement]) -> list[str]:
    return [f"{r} {r.source} → {r.target} {r.distance:+d}" for r in needed]


def test_a_value_brings_raw_at_the_carry_war_at_slots_minus_carry_and_waw_at_slots() -> None:
    graph = StepGraph.build(
        [host("w", op(writes="x")), host("r", op("x x@-2"))], [value("x", "pinned")]
    )
    assert lines(requirements(graph, {"x": 3})) == [
        "RAW x w.host → r.host +0",
        "RAW x w.host → r.host +2",
        "WAR x r.host → w.host +3",
        "WAR x r.host → w.host +1",
        "WAW x w.host → w.host +3",
    ]


def test_a_fresh_value_brings_raw_only() -> None:
    graph = StepGraph.build([host("w", op(writes="x")), host("r", op("x"))], [value("x")])
    assert lines(requirements(graph, {"x": None})) == ["RAW x w.host → r.host +0"]


def test_state_accesses_follow_the_listing_within_a_step_and_wrap_into_the_next() -> None:
    graph = StepGraph.build([host("a", op("s", "s")), host("b", op("s"))], [], ["s"])
    assert lines(requirements(graph, {})) == [
        "WAR s a.host → a.host +1",
        "RAW s a.host → a.host +1",
        "WAW s a.host → a.host +1",
        "RAW s a.host → b.host +0",
        "WAR s b.host → a.host +1",
    ]


def test_offsets_shift_the_reference_order_of_states() -> None:
    graph = StepGraph.build(
        [host("a", op(writes="s")), host("b", op(writes="s"), offset=1)], [], ["s"]
    )
    across = [r for r in requirements(graph, {}) if r.source != r.target]
    assert lines(across) == ["WAW s a.host → b.host -1", "WAW s b.host → a.host +2"]


def test_two_readers_of_a_state_need_no_order() -> None:
    graph = StepGraph.build([host("a", op("s")), host("b", op("s"))], [], ["s"])
    assert requirements(graph, {}) == []


def test_a_host_op_that_a_device_op_must_follow_is_met_at_the_launch() -> None:
    graph = staged(2)
    needed = Requirement("schedule.host", "forward.device", 0, "RAW")
    assert gate(graph, needed) == Gate("schedule.host", "forward.host", 0)


def test_a_launch_is_before_its_own_device_op_in_the_same_step_but_not_before_an_earlier_one() -> (
    None
):
    graph = staged(2)
    same = gate(graph, Requirement("prepare.host", "prepare.device", 0, "RAW"))
    earlier = gate(graph, Requirement("prepare.host", "prepare.device", -1, "WAR"))
    assert same == Gate("prepare.host", "prepare.host", 1)  # as true as each op after itself
    assert earlier == Gate("prepare.host", "prepare.host", 0)  # never


def test_an_order_of_two_device_ops_is_one_of_their_launches_too() -> None:
    graph = staged(2)
    actors = with_streams(graph, listing_programs(graph))
    needed = [
        Requirement("prepare.device", "forward.device", 0, "RAW", "inputs"),
        Requirement("prepare.device", "forward.device", 2, "WAR", "other"),
        Requirement("prepare.device", "prepare.host", 2, "WAR", "staging"),
    ]
    assert lines(launch_order(graph, actors, needed)) == ["LAUNCH prepare.host → forward.host +0"]


def test_phases_of_one_launch_need_no_launch_order() -> None:
    graph = StepGraph.build(
        [device("a", op(), op(writes="x", phase="p"), op("x", phase="q"))], [value("x", "device")]
    )
    actors = with_streams(graph, listing_programs(graph))
    assert (
        lines(launch_order(graph, actors, requirements(graph, {"x": 1})))
        == [
            # RAW at 0 is the order of the phases; WAR and WAW at 1 hold for any launch
        ]
    )


def test_a_stream_that_two_threads_launch_on_orders_their_launches() -> None:
    graph = StepGraph.build([device("a", op(), op()), device("b", op(), op(), actor="helper")], [])
    actors = with_streams(graph, listing_programs(graph))
    assert lines(launch_order(graph, actors, [])) == [
        "LAUNCH a.host → b.host +0",
        "LAUNCH b.host → a.host +1",
    ]
