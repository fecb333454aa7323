"""Declarations that make no sense are refused, with a code, a place and the nearest right name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stepweave.graph.errors import GraphError
from stepweave.graph.node import Comm, Node, Op, Read, State, Value
from stepweave.graph.ranks import Ranked, ranked_graph
from stepweave.graph.step_graph import StepGraph
from stepweave.graph.validate import unread_values
from tests.graph.build import R, device, host, op, staged, value

PRODUCER = host("producer", op(writes="x"))


def refused(
    *nodes: Node, values: list[Value] | None = None, states: list[str] | None = None
) -> GraphError:
    with pytest.raises(GraphError) as caught:
        StepGraph.build(nodes, values if values is not None else [value("x")], states or [])
    return caught.value


def test_a_sensible_graph_passes() -> None:
    staged()


def test_an_unknown_name_is_refused_with_the_nearest_known_one_and_the_line() -> None:
    error = refused(
        host("producer", op(writes="tokens")),
        host("consumer", op("tokens_"), line=7),
        values=[value("tokens")],
    )
    assert error.code == "SW-UNKNOWN-NAME"
    assert error.line == 7
    assert "'consumer'" in error.message
    assert "did you mean 'tokens'?" in error.message


def test_an_unknown_write_is_refused() -> None:
    assert refused(PRODUCER, host("b", op(writes="y"))).code == "SW-UNKNOWN-NAME"


def test_a_value_has_one_writer() -> None:
    error = refused(PRODUCER, host("second", op(writes="x")))
    assert error.code == "SW-TWO-WRITERS"
    assert "take one of the two nodes out" in error.message
    assert "'producer.host'" in error.message


def test_a_value_that_is_read_must_be_written() -> None:
    error = refused(host("consumer", op("x")))
    assert error.code == "SW-UNWRITTEN"


def test_an_external_value_may_be_read_but_not_written() -> None:
    external = replace(value("x"), external=True)
    StepGraph.build([host("consumer", op("x"))], [external])
    assert refused(PRODUCER, values=[external]).code == "SW-EXTERNAL"


@pytest.mark.parametrize(
    ("nodes", "values", "states"),
    [
        ([host("a"), host("a")], [], []),
        ([host("a")], [value("x"), value("x")], []),
        ([host("a")], [], ["s", "s"]),
        ([host("a")], [value("x")], ["x"]),
        ([host("a", op("x x", "x"))], [value("x")], []),
        ([host("a", op(writes="s s"))], [], ["s"]),
    ],
)
def test_names_are_declared_once(nodes: list[Node], values: list[Value], states: list[str]) -> None:
    assert refused(*nodes, values=values, states=states).code == "SW-DUPLICATE"


def test_a_value_and_a_state_of_one_name_are_refused_at_the_states_line() -> None:
    with pytest.raises(GraphError, match="both as a value and as a state") as caught:
        StepGraph.build([host("a")], [value("x")], [State("x", line=4)])
    assert caught.value.line == 4


def test_reading_a_value_at_two_carries_is_no_repetition() -> None:
    StepGraph.build([PRODUCER, host("b", op("x x@-1"))], [value("x")])


def test_a_device_op_needs_a_stream() -> None:
    node = Node("a", device=(Op(),))
    assert refused(node).code == "SW-NO-STREAM"


def test_a_stream_needs_a_device_op() -> None:
    assert refused(Node("a", stream="compute")).code == "SW-NO-DEVICE-OP"


def test_a_stream_cannot_have_the_name_of_a_host_thread() -> None:
    error = refused(device("a", op(), op(), stream="driver"))
    assert error.code == "SW-ACTOR"


def test_a_node_needs_a_host_op() -> None:
    assert refused(Node("a", host=())).code == "SW-NO-OPS"
    assert refused(Node("a", host=(), device=(Op(),), stream="s")).code == "SW-NO-OPS"


def test_a_graph_needs_a_node() -> None:
    assert refused(values=[]).code == "SW-EMPTY"


@pytest.mark.parametrize("names", [("one", "one"), ("one", None)])
def test_phases_need_names_of_their_own(names: tuple[str | None, ...]) -> None:
    assert refused(Node("a", tuple(Op(phase=name) for name in names))).code == "SW-PHASE"


def test_a_device_op_cannot_reach_host_memory_and_is_told_of_pinned() -> None:
    error = refused(PRODUCER, device("b", op(), op("x")))
    assert error.code == "SW-PLACE"
    assert "pinned" in error.message


def test_a_host_op_cannot_reach_device_memory() -> None:
    error = refused(
        device("a", op(), op(writes="x")), host("b", op("x")), values=[value("x", "device")]
    )
    assert error.code == "SW-PLACE"


def test_pinned_memory_is_reached_from_both() -> None:
    StepGraph.build([PRODUCER, device("b", op(), op("x"))], [value("x", "pinned")])


def test_a_carry_counts_backwards() -> None:
    reader = host("b", Op(tuple(replace(read, carry=-1) for read in R("x"))))
    error = refused(PRODUCER, reader)
    assert error.code == "SW-CARRY"
    assert "`x@-1`" in error.message


def test_a_state_has_no_versions() -> None:
    assert refused(host("a", op("s@-1", "s")), states=["s"]).code == "SW-CARRY"


@pytest.mark.parametrize(
    "wrong", [replace(value("x", "pinned"), slots=0), replace(value("x"), slots=2)]
)
def test_slots_are_at_least_one_and_not_for_fresh_values(wrong: Value) -> None:
    assert refused(PRODUCER, values=[wrong]).code == "SW-SLOTS"


@pytest.mark.parametrize(("argument", "known"), [("place", "pinned"), ("storage", "fresh")])
def test_a_value_lies_where_there_is_a_place(argument: str, known: str) -> None:
    wrong = replace(value("x", "device"), **{argument: "elsewhere"})  # type: ignore[arg-type]
    error = refused(device("a", op(), op(writes="x")), values=[wrong])
    assert error.code == "SW-ARGUMENT"
    assert f"value 'x': {argument} must be " in error.message
    assert known in error.message


@pytest.mark.parametrize("cost", [-1.0, float("inf"), float("nan")])
def test_a_cost_is_a_time(cost: float) -> None:
    assert refused(host("a", op(cost=cost))).code == "SW-COST"


def test_a_launch_latency_is_a_time() -> None:
    assert refused(device("a", op(), op(), latency=-1.0)).code == "SW-COST"


def test_values_that_nobody_reads_are_listed_and_not_refused() -> None:
    assert unread_values(StepGraph.build([PRODUCER], [value("x")])) == ("x",)


def test_ops_of_two_nodes_that_come_to_one_name_are_refused() -> None:
    phases = (op(writes="x", phase="host"), op(phase="rest"))
    error = refused(Node("a", host=phases), host("a.host", op(), line=9))
    assert (error.code, error.line) == ("SW-DUPLICATE", 9)
    assert "its op 'a.host.host' has the name of an op of node 'a'" in error.message


@pytest.mark.parametrize("name", ["a#0", "x#1"])
def test_names_that_firings_have_are_refused_where_nodes_have_rates(name: str) -> None:
    rated = replace(PRODUCER, rate=2)
    if name.startswith("a"):
        error = refused(replace(rated, name="a"), host(name, op("x"), line=4))
    else:
        error = refused(rated, values=[value("x"), replace(value(name), external=True, line=4)])
        state = refused(rated, states=[name])
        assert state.code == "SW-DUPLICATE"
    assert (error.code, error.line) == ("SW-DUPLICATE", 4)
    assert f"{name!r} is what firing" in error.message


def _any(**given: Any) -> Node:
    """A node as a caller without a type checker may write it."""
    return Node("a", **given)


def _op(**given: Any) -> Op:
    return Op(**given)


@pytest.mark.parametrize(
    ("node", "code", "said"),
    [
        (_any(host=Op()), "SW-ARGUMENT", "host must be a tuple of ops"),
        (_any(host=(_op(reads=("x",)),)), "SW-ARGUMENT", "must be a Read, as in Read"),
        (_any(host=(_op(reads="x"),)), "SW-ARGUMENT", "reads must be a tuple of reads"),
        (_any(host=(_op(writes="xy"),)), "SW-ARGUMENT", "writes must be a list of names"),
        (_any(host=(Op(),), launch_latency_us="x"), "SW-COST", "must be a"),
        (_any(host=(Op(),), launch_latency_us=float("nan")), "SW-COST", "must be a"),
    ],
)
def test_what_is_no_op_or_access_is_refused_where_it_is(node: Node, code: str, said: str) -> None:
    error = refused(node)
    assert error.code == code
    assert error.message.startswith("node 'a': ")
    assert said in error.message


def _value(**given: Any) -> Value:
    return Value("x", **given)


def _state(**given: Any) -> State:
    return State("s", **given)


NAMED: Any = Node(None, (Op(),))  # type: ignore[arg-type]
ANY: Any = "ab"


@pytest.mark.parametrize(
    ("node", "said"),
    [
        (_any(host=(_op(classes={"s": "x"}),)), "node 'a': classes must be pairs of a state"),
        (_any(host=(_op(classes=("s", "x")),)), "node 'a': classes must be pairs of a state"),
        (_any(host=(_op(run=3),)), "node 'a': run must be a function, not 3"),
        (_any(host=(_op(agrees="no"),)), "node 'a': agrees must be true or false"),
        (_any(host=(_op(reads=(Read(3),)),)), "node 'a': the name of a read must be"),  # type: ignore[arg-type]
        (_any(actor=None), "node 'a': actor must be a name"),
        (_any(stream=3), "node 'a': stream must be a name"),
        (_any(comm="all"), "node 'a': comm must be a Comm"),
        (NAMED, "each of nodes: name must be a name, not None"),
        (ANY, "StepGraph.build: each of nodes must be a Node, not 'ab'"),
        (_value(nbytes="8"), "value 'x': nbytes must be a whole number"),
        (_value(nbytes=-1), "value 'x': nbytes must be a whole number"),
        (_value(external="yes"), "value 'x': external must be true or false"),
        (_value(allocate=8), "value 'x': allocate must be a function, not 8"),
        (_state(make=dict()), "state 's': make must be a function, not a dict"),
        (_state(keys=("a",)), "state 's': keys must be the name of a pool"),
        (_state(leases=(("a", "b"),)), "state 's': each of leases must be triples"),
        (3, "StepGraph.build: each of states must be a name or a State, not 3"),
    ],
)
def test_what_is_declared_is_what_it_stands_for(node: Any, said: str) -> None:
    nodes, values, states = [PRODUCER], [value("x")], [node]
    if node is ANY or isinstance(node, Node):
        nodes, states = [node], []
    elif isinstance(node, Value):
        values, states = [node], []
    with pytest.raises(GraphError) as caught:
        StepGraph.build(nodes, values, states)
    assert caught.value.code == "SW-ARGUMENT"
    assert said in caught.value.message


@pytest.mark.parametrize("option", [{"order": "serial"}, {"launches": "one"}])
def test_options_of_a_graph_are_those_that_there_are(option: dict[str, str]) -> None:
    with pytest.raises(GraphError, match=r"must be '(keep|apart)' or"):
        StepGraph.build([PRODUCER], [value("x")], **option)  # type: ignore[arg-type]


def test_an_op_uses_a_keyed_state_for_one_class() -> None:
    both = Op(writes=("cache",), classes=(("cache", "x"), ("cache", "y")))
    with pytest.raises(
        GraphError, match="the class 'x' for 'cache', and the class 'y' too"
    ) as caught:
        StepGraph.build([host("swap", both)], [], [State("cache", keys="pool")])
    assert caught.value.code == "SW-CLASS"


@pytest.mark.parametrize("what", ["value", "state"])
def test_across_ranks_is_one_of_two_words(what: str) -> None:
    wrong: Any = "Own"
    values = [Value("x", across=wrong if what == "value" else None)]
    states = [State("s", across=wrong if what == "state" else None)]
    with pytest.raises(GraphError, match=f"{what} '.': across must be same or own") as caught:
        StepGraph.build([PRODUCER], values, states)
    assert caught.value.code == "SW-ARGUMENT"


def test_each_meeting_of_a_rank_has_a_name_of_its_own() -> None:
    comm = Comm("meet", "collective", (0, 1), "world")
    nodes = [Ranked(Node(name, (Op(),)), comm=comm) for name in ("first", "then")]
    with pytest.raises(
        GraphError, match="it calls 'meet', as 'first@0' of its rank does"
    ) as caught:
        ranked_graph(nodes, [], ranks=2)
    assert caught.value.code == "SW-DUPLICATE"


def test_a_number_after_a_hash_is_a_firings_where_nodes_have_rates() -> None:
    nodes = [Node("page#3", (Op(),), rate=2)]
    with pytest.raises(GraphError, match="'page#3' has a number after '#'"):
        StepGraph.build(nodes, [])
    assert StepGraph.build([Node("page#3", (Op(),))], []).nodes
