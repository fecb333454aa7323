"""The order on the driver: least period, least latency, fewest waits, nearest to the listing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepweave.graph.errors import DeadlockError
from stepweave.graph.plan import Plan
from stepweave.graph.planner import compile as compiler
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.step_graph import StepGraph
from stepweave.graph.verifier.verify import verify
from stepweave.testing import decode_step
from stepweave.testing.graphs import random_step_graph
from stepweave.testing.large_graphs import chain, woven
from tests.graph.build import device, host, op, value


def program(plan: Plan, actor: str = "driver") -> list[str]:
    return [f"{name}{-offset:+d}" if offset else name for name, offset in plan.actors[actor]]


def relisted(plan: Plan) -> StepGraph:
    """The graph of `plan`, its nodes listed in the order in which its driver runs them."""
    nodes = {node.name: node for node in plan.graph.nodes}
    driver = {plan.graph.vertices[op].node.name: offset for op, offset in plan.actors["driver"]}
    listing = [replace(nodes[name], offset=offset) for name, offset in driver.items()]
    return StepGraph.build(listing, plan.graph.values.values(), plan.graph.states.values())


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_listing_that_is_the_best_already_is_kept(depth: int) -> None:
    searched = compile_plan(decode_step(depth))
    graph = relisted(searched)
    kept, again = compile_plan(graph, order="keep"), compile_plan(graph, order="search")
    assert again.actors == kept.actors == searched.actors
    assert again.digest == kept.digest


def test_the_listing_of_a_serial_program_is_searched_for_a_better_order() -> None:
    assert compile_plan(decode_step(2, order="keep")).period_us == 6050.0
    assert compile_plan(decode_step(2, order="search")).period_us == 4790.0  # the device's work


def test_a_host_op_moves_behind_the_launches_that_need_not_wait_for_it() -> None:
    graph = StepGraph.build(
        [
            device("work", op(cost=10), op("x@-1", "x y", cost=100)),
            host("see", op("y", cost=20)),  # as listed, the next launch waits for it
            device("more", op(cost=10), op("x", cost=50)),
        ],
        [value("x", "device"), value("y", "pinned")],
    )
    assert compile_plan(graph, order="keep").period_us == 180.0
    plan = compile_plan(graph)
    assert plan.period_us == 150.0
    assert program(plan) == ["work.host", "more.host", "see.host"] or "see.host-1" in program(plan)


def test_the_serial_listing_of_the_synchronous_loop_cannot_be_pipelined_by_any_order() -> None:
    assert compile_plan(decode_step(1), order="search").period_us == 6050.0


def test_an_order_is_found_where_the_listing_has_none() -> None:
    graph = StepGraph.build([host("a", op("x")), host("b", op(writes="x"))], [value("x")])
    plan = compile_plan(graph)
    assert program(plan) == ["a.host", "b.host+1"] or program(plan) == ["a.host-1", "b.host"]
    assert plan.waits == ()


def test_phases_of_a_node_stay_together() -> None:
    graph = StepGraph.build(
        [
            host("split", op(writes="x", phase="p"), op("y", phase="q")),
            host("between", op("x", "y")),
        ],
        [value("x"), value("y")],
    )
    with pytest.raises(DeadlockError, match="keeps each node's phases together"):
        compile_plan(graph)


def test_the_order_of_state_accesses_is_that_of_the_listing() -> None:
    graph = StepGraph.build([host("first", op("s", "s")), host("second", op("s", "s"))], [], ["s"])
    assert program(compile_plan(graph)) == ["first.host", "second.host"]


def test_a_writer_listed_behind_its_reader_is_told_to_be_listed_before_it() -> None:
    late = [host("reader", op("x s", "s")), host("writer", op("s", "x s"))]
    graph = StepGraph.build(late, [value("x")], ["s"])
    with pytest.raises(DeadlockError) as caught:
        compile_plan(graph)
    advice = "'reader' reads 'x', which 'writer' writes, listed after it: list 'writer' before"
    assert advice in caught.value.message
    assert "carry" not in caught.value.message, "a version of the step before is another meaning"
    compile_plan(StepGraph.build([late[1], late[0]], [value("x")], ["s"]))


def test_a_value_that_is_made_of_itself_is_told_to_be_read_of_the_step_before() -> None:
    """No listing helps: what each reads is written from what it writes."""
    nodes = [
        host("first", op("y s", "x s")),
        host("second", op("x s", "z s")),
        host("third", op("z s", "y s")),
    ]
    for listed in (nodes, [nodes[2], nodes[0], nodes[1]]):
        names = [value("x"), value("y"), value("z")]
        with pytest.raises(DeadlockError) as caught:
            compile_plan(StepGraph.build(listed, names, ["s"]))
        said = caught.value.message
        assert "in the same step from what" in said
        assert "before" not in said.split("reads")[0]
        assert "list '" not in said, "the listing is not what is wrong"
    once = [host("first", op("y@-1 s", "x s")), *nodes[1:]]
    compile_plan(
        StepGraph.build(once, [value("x"), replace(value("y"), initial=0), value("z")], ["s"])
    )


def test_streams_follow_the_launches() -> None:
    plan = compile_plan(decode_step(2), order="search", costs={"forward.device": 80.0})
    launches = [f"{name.removesuffix('.host')}.device" for name, _ in plan.actors["driver"]]
    compute = [name for name, _ in plan.actors["compute"]]
    assert compute == [name for name in launches if name in compute]


def test_a_stream_that_two_threads_share_keeps_the_listing() -> None:
    graph = StepGraph.build(
        [
            device("a", op(), op(writes="x")),
            device("b", op(), op("x"), actor="helper"),
            device("c", op(), op("x")),
        ],
        [value("x", "device")],
    )
    assert [name for name, _ in compile_plan(graph).actors["compute"]] == [
        "a.device",
        "b.device",
        "c.device",
    ]


def test_no_kept_order_beats_the_search() -> None:
    for seed in range(30):
        graph = random_step_graph(seed, most_nodes=4, order="search")
        try:
            searched = compile_plan(graph)
        except DeadlockError:
            with pytest.raises(DeadlockError):
                compile_plan(graph, order="keep")
            continue
        try:
            kept = compile_plan(graph, order="keep")
        except DeadlockError:
            continue
        assert searched.period_us <= kept.period_us, f"seed {seed}"


@pytest.mark.parametrize("nodes", [25, 26, 60, pytest.param(150, marks=pytest.mark.nightly)])
def test_a_chain_is_pipelined_whatever_its_length(nodes: int) -> None:
    plan = compile_plan(chain(nodes))
    assert plan.period_us == 1000.0  # of each stream; as listed, a step takes all of them
    assert compile_plan(chain(nodes), order="keep").period_us > 900 * nodes
    verify(plan)


def test_a_listing_that_nothing_can_beat_is_kept_at_any_size() -> None:
    graph = StepGraph.build([host(f"n{k}", op(cost=1)) for k in range(200)], [])
    plan = compile_plan(graph)
    assert program(plan) == [f"n{k}.host" for k in range(200)]
    assert [note for note in plan.notes if note.startswith("order")] == [
        "order: too many nodes to search; no order has a shorter period, but some may have a "
        "shorter output latency or fewer waits"
    ]


def test_a_period_that_is_the_least_is_not_called_unproved() -> None:
    plan = compile_plan(woven(24))
    busiest = max(sum(plan.costs[op] for op, _ in program) for program in plan.actors.values())
    assert plan.period_us == busiest
    assert not any("its period is" in note for note in plan.notes)


def test_a_longer_period_than_the_bound_is_said_with_the_period_of_the_plan() -> None:
    plan = compile_plan(woven(100))
    said = [note for note in plan.notes if "its period is" in note]
    assert len(said) == 1
    assert f"its period is {plan.period_us:.6g} µs" in said[0]


def test_an_order_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = decode_step(3, order="search")
    costs = {"forward.device": 1234.5}
    first = compile_plan(graph, costs=costs)
    monkeypatch.delattr(compiler, "choose_order")
    again = compile_plan(graph, costs=costs)
    assert again.digest == first.digest
