"""Graphs of several ranks: who is where, what is refused, and that one rank is as before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from stepweave.graph.errors import GraphError
from stepweave.graph.node import Comm, Node, Op, State, Value
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.ranks import DEVICE_STATE, Ranked, declared_name, ranked_graph
from stepweave.graph.step_graph import StepGraph
from stepweave.graph.verifier.verify import verify
from tests.graph.build import device, host, op, value
from tests.graph.ranked import collective, message


def refused(*nodes: Ranked, ranks: int = 2, values: Sequence[Value] = (), **more: object) -> str:
    with pytest.raises(GraphError) as error:
        compile_plan(ranked_graph(nodes, values, ranks=ranks, **more))  # type: ignore[arg-type]
    return f"{error.value.code}: {error.value}"


def test_each_rank_has_its_own_nodes_data_threads_and_streams() -> None:
    forward = Ranked(device("forward", op("batch"), op("kv", "logits kv")))
    schedule = Ranked(host("schedule", op(writes="batch")), ranks=(1,))
    states = ["kv"]
    with pytest.raises(GraphError, match="no node writes"):
        ranked_graph(
            [schedule, forward], [value("batch"), value("logits", "device")], states, ranks=2
        )
    graph = ranked_graph(
        [Ranked(schedule.node), forward],
        [value("batch"), value("logits", "device")],
        states,
        ranks=2,
    )
    assert graph.ranks == (0, 1)
    assert [node.name for node in graph.nodes] == [
        "schedule@0",
        "schedule@1",
        "forward@0",
        "forward@1",
    ]
    assert set(graph.values) == {"batch@0", "batch@1", "logits@0", "logits@1"}
    assert set(graph.states) == {"kv@0", "kv@1"}
    assert {v.actor for v in graph.vertices.values()} == {
        "driver@0", "driver@1", "compute@0", "compute@1"
    }  # fmt: skip
    assert declared_name(graph, "forward@1.device") == "forward.device"
    assert declared_name(StepGraph((), {}, {}), "forward@1.device") == "forward@1.device"


def test_a_comm_node_is_there_once_on_each_member_with_its_phases_and_states() -> None:
    graph = ranked_graph(
        [
            message("send", (0, 1), stream="compute", part=op("x", "y")),
            Ranked(host("make", op(writes="x")), (0,)),
        ],
        [value("x", "pinned"), value("y", "device")],
        ranks=3,
    )
    sender, receiver = (node for node in graph.nodes if node.comm)
    assert [each.rank for each in (sender, receiver)] == [0, 1]
    assert [each.phase for each in sender.device] == ["enter", "leave"]
    assert [read.name for read in sender.device[1].reads] == ["x@0"]
    assert sender.device[1].writes == (f"{DEVICE_STATE}@0",)
    assert receiver.device[1].writes == ("y@1", f"{DEVICE_STATE}@1")
    assert receiver.device[1].reads == ()
    assert receiver.host[0].writes == ("from_0_to_1@1",)
    assert "x@1" not in graph.values


def test_a_rank_has_its_own_listing_and_offsets() -> None:
    nodes = [Ranked(host("a"), offsets={1: 2}), Ranked(host("b"))]
    graph = ranked_graph(nodes, [], ranks=2, listing={1: ["b", "a"]})
    assert [node.name for node in graph.nodes if node.rank == 1] == ["b@1", "a@1"]
    assert [node.name for node in graph.nodes if node.rank == 0] == ["a@0", "b@0"]
    assert {node.name: node.offset for node in graph.nodes} == {
        "a@0": 0,
        "a@1": 2,
        "b@0": 0,
        "b@1": 0,
    }


def test_a_rank_that_there_is_not_is_refused() -> None:
    assert refused(message("send", (0, 2))).startswith("SW-RANK: node 'send': there is no rank 2")
    assert refused(Ranked(host("a"), ranks=(3,))).startswith("SW-RANK")
    assert refused(Ranked(host("a"), offsets={3: 1})).startswith("SW-RANK")
    assert "a listing names rank 5" in refused(Ranked(host("a")), listing={5: ["a"]})
    assert "names 'c', which is not" in refused(Ranked(host("a")), listing={0: ["c"]})
    assert "each of its nodes once" in refused(Ranked(host("a")), listing={0: []})
    assert "ranks must be a whole number" in refused(Ranked(host("a")), ranks=0)


def test_what_ranks_share_must_be_sent() -> None:
    graph = ranked_graph([Ranked(host("a", op(writes="x")))], [value("x")], ranks=2)
    mixed = tuple(
        replace(node, host=(op("x@0"),)) if node.rank == 1 else node for node in graph.nodes
    )
    with pytest.raises(GraphError, match="uses 'x@0' on rank 1, and 'a@0' on rank 0") as error:
        compile_plan(replace(graph, nodes=mixed))
    assert error.value.code == "SW-RANK"


def test_an_end_that_is_lost_or_says_something_else_is_refused() -> None:
    graph = ranked_graph([collective("sum", (0, 1)), Ranked(host("a"))], [], ranks=2)
    lost = tuple(node for node in graph.nodes if node.name != "sum@1")
    with pytest.raises(GraphError, match="rank 1 is a member of 'sum' and never calls it") as error:
        compile_plan(replace(graph, nodes=lost))
    assert error.value.code == "SW-MATCH"
    for change in (
        {"nbytes": 8},
        {"communicator": "other"},
        {"members": (1,)},
        {"concurrent": True},
    ):
        changed = tuple(
            replace(node, comm=replace(node.comm, **change)) if node.name == "sum@1" else node  # type: ignore[type-var]
            for node in graph.nodes
        )
        with pytest.raises(GraphError, match="sum") as error:
            compile_plan(replace(graph, nodes=changed))
        assert error.value.code == "SW-MATCH"


def test_members_and_phases_of_a_comm_node_must_make_sense() -> None:
    part = host("a", Op(phase="one"), Op(phase="two"))
    comm = Comm("a", "collective", (0, 1), "world")
    assert "enter and leave" in refused(Ranked(part, comm=comm))
    assert "Name a sender and a receiver" in refused(message("a", (1, 1)))
    assert "Name each member once" in refused(collective("a", (0, 0)))
    assert "capacity must be" in refused(message("a", (0, 1), capacity=-1))
    plain = Node("a@0", rank=0, comm=comm)
    with pytest.raises(GraphError, match="its phases are"):
        StepGraph.build([plain], [], ranks=(0,))


@pytest.mark.parametrize("concurrent", [False, True])
def test_calls_on_one_communicator_in_two_orders_are_refused(concurrent: bool) -> None:
    x = collective("x", (0, 1), stream="one", concurrent=concurrent)
    y = collective("y", (0, 1), stream="two", concurrent=concurrent)
    said = refused(x, y, listing={1: ["y", "x"]}, order="keep")
    assert said.startswith(
        "SW-MATCH: communicator 'world': 'x' is called before 'y' of the same step on rank 0"
    )
    shifted = replace(x, offsets={1: 1})
    assert "'y' is called before 'x' of the same step on rank 1" in refused(
        shifted, y, order="keep"
    )
    compile_plan(ranked_graph([replace(x, offsets={0: 1, 1: 1}), y], [], ranks=2, order="keep"))


def test_on_communicators_of_their_own_the_device_decides_whether_two_orders_are_a_deadlock() -> (
    None
):
    def nodes(second: str, concurrent: bool) -> list[Ranked]:
        return [
            collective("x", (0, 1), stream="one", on="a", concurrent=concurrent),
            collective("y", (0, 1), stream=second, on="b", concurrent=concurrent),
        ]

    turned = {1: ["y", "x"]}
    assert refused(*nodes("one", True), listing=turned, order="keep").startswith("SW-DEADLOCK")
    assert "WAW nccl@0" in refused(*nodes("two", False), listing=turned, order="keep")
    plan = compile_plan(ranked_graph(nodes("two", True), [], ranks=2, listing=turned, order="keep"))
    verify(plan)


def test_nobody_waits_within_a_meeting() -> None:
    """What the end of a comm node must follow is waited for before it begins: it is one call."""
    graph = ranked_graph(
        [
            Ranked(device("make", op(), op("", "x"), stream="other"), (0,)),
            message("send", (0, 1), stream="compute", part=op("x", "y")),
        ],
        [value("x", "device"), value("y", "device")],
        ranks=2,
    )
    plan = compile_plan(graph)
    verify(plan)
    targets = {wait.target for wait in plan.waits}
    assert "send@0.device.enter" in targets
    assert not any(target.endswith("leave") for target in targets)
    late = tuple(
        replace(wait, target="send@0.device.leave")
        if wait.target == "send@0.device.enter"
        else wait
        for wait in plan.waits
    )
    with pytest.raises(Exception, match="RAW race on 'x@0'"):
        verify(replace(plan, waits=late))


def test_states_and_values_keep_what_they_say_about_ranks() -> None:
    inbox = State("inbox", across="own")
    graph = ranked_graph(
        [Ranked(host("a", op("inbox", "rows inbox")))],
        [Value("rows", across="same")],
        [inbox],
        ranks=2,
    )
    assert graph.states["inbox@1"].across == "own"
    assert graph.values["rows@0"].across == "same"
