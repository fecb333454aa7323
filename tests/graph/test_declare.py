"""Graphs from plain functions: what is inferred, what runs, what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy
import pytest

from stepweave.executors import run
from stepweave.graph.declare import ValueHint, node, op, step_graph, value
from stepweave.graph.errors import GraphError
from stepweave.graph.node import Node, Op, OpContext, Read, Value
from stepweave.graph.parameters import buffer, context, optional, read, update
from stepweave.graph.plan import Plan
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.step_graph import StepGraph
from stepweave.views.lanes import lanes


@node(writes="count")
def produce(previous: int = read("count", 1)) -> int:
    return previous + 1


@node(stream="compute", writes="scaled")
def scale(count: int, factor: int = 10) -> int:
    return count * factor


@node(writes=("out", "parity"))
def consume(scaled: int) -> tuple[int, bool]:
    return scaled + 1, scaled % 2 == 0


def small() -> StepGraph:
    return step_graph(produce, scale, consume, values=[value("count", initial=0)])


@pytest.mark.parametrize("executor", ["serial", "threads"])
def test_a_graph_is_built_checked_drawn_and_run_in_ten_lines(executor: str) -> None:
    graph = step_graph(produce, scale, consume, values=[value("count", initial=0)])
    plan = compile_plan(graph)
    assert "scale.device" in lanes(plan)
    report = run(plan, executor=executor, steps=5, keep=["out"])
    assert report.kept["out"] == [11, 21, 31, 41, 51]


def test_parameters_are_reads_results_are_writes() -> None:
    first, second, third = small().nodes
    assert first.host[0].reads == (Read("count", 1),)
    assert first.host[0].writes == ("count",)
    assert second.host == (Op(),)
    assert second.device[0].reads == (Read("count"),), "a parameter with a default is no read"
    assert third.host[0].writes == ("out", "parity")


def test_a_value_lives_where_all_who_touch_it_can_reach_it() -> None:
    @node(stream="compute", writes="hidden")
    def embed(scaled: int) -> int:
        return scaled

    @node(stream="compute", writes="logits")
    def head(hidden: int) -> int:
        return hidden

    graph = step_graph(produce, scale, embed, head, consume)
    places = {name: (v.place, v.storage) for name, v in graph.values.items()}
    assert places == {
        "count": ("pinned", "slots"),
        "scaled": ("pinned", "slots"),
        "hidden": ("device", "slots"),
        "logits": ("device", "slots"),
        "out": ("host", "fresh"),
        "parity": ("host", "fresh"),
    }


def test_what_the_author_says_of_a_value_stands() -> None:
    said: list[Value | ValueHint] = [
        value("scaled", slots=3, nbytes=8),
        Value("out", "pinned", "slots", 2),
        value("unread", external=True, initial=5),
    ]
    graph = step_graph(produce, scale, consume, values=said, states=["table"], name="mine")
    assert graph.values["scaled"] == Value("scaled", "pinned", "slots", 3, nbytes=8)
    assert graph.values["out"].place == "pinned"
    assert graph.values["unread"].external
    assert graph.name == "mine"


def test_a_carry_may_stand_in_the_annotation() -> None:
    @node(writes="total")
    def add(count: int, before: int = read("total", 1)) -> int:
        return count + before

    graph = step_graph(produce, add, values=[value("count", initial=0), value("total", initial=0)])
    assert graph.nodes[1].host[0].reads == (Read("count"), Read("total", 1))
    report = run(compile_plan(graph), steps=4, keep=["total"])
    assert report.kept["total"] == [1, 3, 6, 10]


def test_states_are_handed_over_as_objects_and_updates_are_writes() -> None:
    @node
    def note(count: int, log: list[int] = update("log")) -> None:
        log.append(count)

    @node(writes="length")
    def look(log: list[int]) -> int:
        return len(log)

    graph = step_graph(produce, note, look, values=[value("count", initial=0)], states=["log"])
    assert graph.nodes[1].host[0].reads == (Read("count"), Read("log"))
    assert graph.nodes[1].host[0].writes == ("log",)
    log: list[int] = []
    report = run(compile_plan(graph), steps=3, states={"log": log}, keep=["length"])
    assert log == [1, 2, 3]
    assert report.kept["length"] == [1, 2, 3]


def test_the_host_side_of_a_device_node_may_do_more_than_launch() -> None:
    @op(writes="staging")
    def fill(count: int) -> int:
        return count + 100

    @node(stream="compute", launch=fill, writes="scaled")
    def upload(staging: int) -> int:
        return staging

    graph = step_graph(produce, upload, consume, values=[value("count", initial=0)])
    assert graph.nodes[1].host[0].writes == ("staging",)
    assert run(compile_plan(graph), steps=2, keep=["out"]).kept["out"] == [102, 103]


def test_a_node_may_ask_for_the_context_and_stop_the_run() -> None:
    @node
    def stop_at_three(count: int, ctx: OpContext = context()) -> None:
        if count == 3:
            ctx.stop()

    graph = step_graph(produce, stop_at_three, values=[value("count", initial=0)])
    assert run(compile_plan(graph), keep=["count"]).kept["count"] == [1, 2, 3]


def test_plain_nodes_and_functions_mix() -> None:
    sink = Node("sink", (Op(reads=(Read("out"),)),))
    assert len(step_graph(produce, scale, consume, sink).nodes) == 4


def test_a_node_is_still_its_function() -> None:
    assert scale(3) == 30
    assert consume(scaled=4) == (5, True)


def test_nothing_to_do_is_none_of_each() -> None:
    @node(writes=("a", "b"))
    def idle() -> None:
        return None

    report = run(compile_plan(step_graph(idle)), steps=1, keep=["a", "b"])
    assert report.kept == {"a": [None], "b": [None]}


def test_the_wrong_number_of_results_is_an_error_that_names_the_node() -> None:
    @node(writes=("a", "b"))
    def three() -> Any:
        return 1, 2, 3

    with pytest.raises(Exception, match="'three' returned 3 data but writes 2: a, b") as caught:
        run(compile_plan(step_graph(three)), steps=1)
    assert "three" in str(caught.value)


def _misspelt_read() -> object:
    @node
    def use(cuont: int) -> None: ...

    return step_graph(produce, use)


def _bad_carry() -> object:
    @node
    def use(previous: int = read("count", -1)) -> None: ...

    return step_graph(produce, use)


def _a_read_of_nothing() -> object:
    @node
    def use(previous: int = read(7)) -> None: ...  # type: ignore[arg-type]

    return use


def _update_of_a_value() -> object:
    @node
    def use(count: int = update("count")) -> None: ...

    return step_graph(produce, use, states=["counts"])


def _two_values_of_a_name() -> object:
    first: Value[int] = Value("twice")
    second: Value[int] = Value("twice")

    @node(writes=first)
    def write() -> int:
        return 1

    @node
    def use(twice: int = read(second)) -> None: ...

    return step_graph(write, use)


def _star_arguments() -> object:
    @node
    def use(*values: int) -> None: ...

    return use


def _positional_only() -> object:
    @node
    def use(count: int, /) -> None: ...

    return use


def _launch_without_stream() -> object:
    @op
    def nothing() -> None: ...

    @node(launch=nothing)
    def use(count: int) -> None: ...

    return use


def _two_writers() -> object:
    @node(writes="count")
    def again() -> int:
        return 1

    return step_graph(produce, again)


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (_misspelt_read, r"did you mean 'count'\?"),
        (_bad_carry, "reads 'count' 1 steps ahead"),
        (_a_read_of_nothing, "must be a Value, or the name of one, not 7"),
        (_two_values_of_a_name, "'twice' is declared twice, by two different objects"),
        (_update_of_a_value, r"no state of the graph .*did you mean 'counts'\?"),
        (_star_arguments, r"the parameter \*values hides what it reads"),
        (_positional_only, "'count' is positional only"),
        (_launch_without_stream, "has a launch but no stream"),
        (_two_writers, "which 'produce.host' writes already"),
    ],
)
def test_a_wrong_declaration_is_refused_with_the_nearest_right_name(
    declare: Any, message: str
) -> None:
    with pytest.raises(GraphError, match=message):
        declare()


def test_a_state_has_no_older_version_to_read() -> None:
    @node
    def count(counts: list[int] = update("counts")) -> None:
        counts.append(1)

    every: list[Any] = [read("counts", 1), optional("counts", 1)]
    for older in every:

        @node
        def look(counts: list[int] = older) -> None: ...

        with pytest.raises(GraphError, match=r"'counts' at a carry of 1\. A state is changed"):
            step_graph(count, look, states=["counts"])


def test_a_state_is_not_returned_and_not_given_as_a_value() -> None:
    @node
    def count(counts: list[int] = update("counts")) -> None: ...

    @node(writes="counts")
    def make() -> list[int]:
        return []

    with pytest.raises(GraphError, match="returns 'counts', which is a state"):
        step_graph(count, make, states=["counts"])

    @node(writes="number")
    def number() -> int:
        return 1

    @node
    def use(given: int = read("number")) -> None: ...

    wired = replace(use.declared, wiring={"given": Read("counts")})
    with pytest.raises(GraphError, match="reads the state 'counts' as the value of 'given'"):
        step_graph(count, number, wired, states=["counts"])


def test_a_hint_for_a_value_that_is_misspelt_is_refused() -> None:
    with pytest.raises(GraphError, match=r"no node reads or writes it \(did you mean 'scaled'"):
        step_graph(produce, scale, consume, values=[value("count", initial=0), value("scalde")])


def test_a_function_writes_each_value_once_and_fills_buffers_of_what_it_writes() -> None:
    with pytest.raises(GraphError, match="it writes 'a' twice") as caught:
        node(writes=("a", "a"))(lambda: (1, 2))
    assert caught.value.code == "SW-DUPLICATE"

    def fill(out: Any = buffer("uot")) -> Any:
        return out

    with pytest.raises(GraphError, match=r"'out' is the buffer of 'uot', .*did you mean 'out'"):
        node(writes="out")(fill)


def test_whole_numbers_of_numpy_are_numbers() -> None:
    def plan(whole: Any) -> Plan:
        nodes = [
            Node("add", (Op((Read("total", whole(1)),), ("total",)),), offset=whole(1)),
            Node("tell", (Op((Read("total"),)),), offset=whole(2)),
        ]
        values = [Value("total", storage="slots", slots=whole(3))]
        return compile_plan(StepGraph.build(nodes, values), slots={"total": whole(3)})

    assert plan(numpy.int64).digest == plan(int).digest
