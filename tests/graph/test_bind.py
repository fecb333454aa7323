"""Which optional accesses are bound, and what a body is called with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stepweave.executors import run
from stepweave.graph.bind import Declared
from stepweave.graph.declare import NodeFunction, node, op, step_graph, value
from stepweave.graph.errors import GraphError, StepweaveError
from stepweave.graph.node import Node, Op, Read, State, Value
from stepweave.graph.parameters import (
    Resource,
    Resources,
    buffer,
    given,
    optional,
    optional_state,
    optional_update,
    read,
    settings,
    state,
    update,
    wanted,
)
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.step_graph import StepGraph

FIRST: Value[int] = Value("first")
SECOND: Value[int | None] = Value("second")
THIRD: Value[int | None] = Value("third", place="pinned")
TALLY: State[list[int]] = State("tally", make=list)


def accesses(graph: StepGraph) -> dict[str, tuple[list[str], list[str]]]:
    """What the first op of each node reads and writes."""
    return {
        each.name: (
            [str(read) for read in (*each.device, *each.host)[0].reads],
            list((*each.device, *each.host)[0].writes),
        )
        for each in graph.nodes
    }


def placed(function: NodeFunction[..., Any], **changes: Any) -> Declared:
    """The node with changes to its declaration; `line` is that of the node."""
    line = changes.pop("line", None)
    found = replace(function.declared, **changes)
    return replace(found, template=replace(found.template, line=line))


@node(writes=FIRST)
def begin() -> int:
    return 7


@node(writes=wanted(FIRST))
def offer() -> int:
    return 7


@node(writes=wanted(SECOND, of=FIRST))
def pass_on(first: int | None = optional(FIRST)) -> int | None:
    return None if first is None else first + 1


@node(writes=wanted(THIRD, of=SECOND))
def pass_further(second: int | None = optional(SECOND)) -> int | None:
    return None if second is None else second + 1


@node
def use_third(third: int | None = optional(THIRD)) -> None: ...


# --- values: both ends of a chain


def test_a_chain_of_optional_accesses_is_bound_where_both_its_ends_are_there() -> None:
    found = accesses(step_graph(begin, pass_on, pass_further, use_third))
    assert found == {
        "begin": ([], ["first"]),
        "pass_on": (["first"], ["second"]),
        "pass_further": (["second"], ["third"]),
        "use_third": (["third"], []),
    }


def test_without_its_last_reader_no_node_of_a_chain_has_an_access() -> None:
    found = accesses(step_graph(begin, pass_on, pass_further))
    assert found == {"begin": ([], ["first"]), "pass_on": ([], []), "pass_further": ([], [])}


def test_without_its_first_writer_no_node_of_a_chain_has_an_access() -> None:
    found = accesses(step_graph(pass_on, pass_further, use_third))
    assert found == {"pass_on": ([], []), "pass_further": ([], []), "use_third": ([], [])}


def test_a_wanted_write_is_made_for_an_optional_reader_though_each_is_there_for_the_other() -> None:
    @node(writes=wanted(FIRST))
    def again(before: int | None = optional(FIRST, 1)) -> int:
        return 1 + (before or 0)

    graph = step_graph(again, values=[replace(FIRST, initial=4)])
    assert accesses(graph) == {"again": (["first@-1"], ["first"])}


def test_a_reader_that_must_read_makes_a_wanted_write() -> None:
    @node
    def needs(first: int = read(FIRST)) -> None: ...

    assert accesses(step_graph(offer, needs))["offer"] == ([], ["first"])
    assert accesses(step_graph(offer))["offer"] == ([], [])


def test_a_read_that_serves_two_writes_is_bound_while_one_of_them_is_wanted() -> None:
    """Both writes are made from `first`; only the second of them has a reader."""

    @node(writes=(wanted(SECOND, of=FIRST), wanted(THIRD, of=FIRST)))
    def both(first: int | None = optional(FIRST)) -> tuple[int | None, int | None]:
        return first, first

    found = accesses(step_graph(begin, both, use_third))
    assert found["both"] == (["first"], ["third"])
    assert accesses(step_graph(begin, both))["both"] == ([], [])


def test_what_a_write_is_made_from_may_be_wired_to_another_value() -> None:
    @node
    def use_second(second: int | None = optional(SECOND)) -> None: ...

    rewired = placed(pass_on, wiring={"first": Read("other")})
    graph = step_graph(_writes("other"), rewired, use_second)
    assert accesses(graph)["pass_on"] == (["other"], ["second"])


def test_values_that_come_from_plain_nodes_count_on_both_sides() -> None:
    writer = Node("writer", host=(Op(writes=("first",)),))
    reader = Node("reader", host=(Op(reads=(Read("third"),)),))
    graph = step_graph(writer, pass_on, pass_further, reader, values=[replace(FIRST)])
    assert accesses(graph)["pass_on"] == (["first"], ["second"])
    assert accesses(graph)["pass_further"] == (["second"], ["third"])


def _writes(name: str) -> NodeFunction[..., Any]:
    @node(writes=name, name=f"write_{name}")
    def write() -> int:
        return 1

    return write


# --- states


@node
def look(tally: list[int] | None = optional_state(TALLY)) -> None: ...


@node
def count(tally: list[int] | None = optional_update(TALLY)) -> None: ...


@node
def must_look(tally: list[int] = state(TALLY)) -> None: ...


@node
def must_count(tally: list[int] = update(TALLY)) -> None: ...


@pytest.mark.parametrize(
    ("nodes", "bound"),
    [
        ([look], []),
        ([look, must_look], ["must_look"]),
        ([look, must_count], ["look", "must_count"]),
        ([count], []),
        ([count, must_look], ["count", "must_look"]),
        ([look, count], ["look", "count"]),
        ([look, Node("raw", host=(Op(reads=(Read("tally"),)),))], ["raw"]),
        ([look, Node("raw", host=(Op((Read("tally"),), ("tally",)),))], ["look", "raw"]),
        ([count, Node("raw", host=(Op(reads=(Read("tally"),)),))], ["count", "raw"]),
    ],
)
def test_an_optional_state_is_bound_where_another_node_has_it(
    nodes: list[Any], bound: list[str]
) -> None:
    """`state` needs another that updates; `update` another that looks, at least."""
    graph = step_graph(*nodes, states=[TALLY])
    assert [name for name, (reads, _) in accesses(graph).items() if reads] == bound


@pytest.mark.parametrize("user", [None, "must_look", "must_count", "look"])
def test_optional_updates_of_a_state_are_not_there_for_each_other(user: str | None) -> None:
    """Each keeps up what some node uses, as copies of a drafter's cache do: that must be there."""

    @node
    def recount(tally: list[int] | None = optional_update(TALLY)) -> None: ...

    users: dict[str, Any] = {"must_look": must_look, "must_count": must_count, "look": look}
    found = accesses(step_graph(count, recount, *([users[user]] if user else [])))
    tally = ["tally"] if user else []
    assert found["count"] == found["recount"] == (tally, tally)


def test_optional_updates_of_a_state_are_there_where_one_is_asked_for_by_a_resource() -> None:
    @node
    def keep(tally: list[int] | None = optional_update(TALLY, when=not_exact)) -> None: ...

    found = accesses(step_graph(count, keep, resources=Resources({EXACT: False})))
    assert found["count"] == (["tally"], ["tally"])


EXACT: Resource[bool] = Resource("exact")


def not_exact(exact: bool = given(EXACT)) -> bool:
    return not exact


@pytest.mark.parametrize("exact", [True, False])
def test_an_update_that_a_resource_asks_for_needs_no_other_node(exact: bool) -> None:
    @node
    def keep(tally: list[int] | None = optional_update(TALLY, when=not_exact)) -> None: ...

    found = accesses(step_graph(keep, resources=Resources({EXACT: exact})))
    assert found["keep"] == (([], []) if exact else (["tally"], ["tally"]))


@pytest.mark.parametrize("exact", [True, False])
def test_when_decides_from_resources_whether_a_state_is_asked_for(exact: bool) -> None:
    @node
    def may_look(tally: list[int] | None = optional_state(TALLY, when=not_exact)) -> None: ...

    graph = step_graph(may_look, count, resources=Resources({EXACT: exact}))
    found = {name: reads for name, (reads, _) in accesses(graph).items()}
    both = {"may_look": ["tally"], "count": ["tally"]}
    assert found == ({"may_look": [], "count": []} if exact else both)
    assert list(graph.states) == ([] if exact else ["tally"])


def test_a_when_whose_resource_is_missing_tells_the_line_of_the_node() -> None:
    @node
    def may_look(tally: list[int] | None = optional_state(TALLY, when=not_exact)) -> None: ...

    brought = Resources({Resource[bool]("exakt"): True})
    with pytest.raises(StepweaveError, match=r"no resource 'exact' here \(did you mean") as caught:
        step_graph(placed(may_look, line=12), resources=brought)
    assert caught.value.line == 12


def test_a_when_that_fails_is_told_with_its_node_and_line() -> None:
    def failing() -> bool:
        raise ZeroDivisionError("by nothing")

    @node
    def may_look(tally: list[int] | None = optional_state(TALLY, when=failing)) -> None: ...

    with pytest.raises(GraphError, match=r"'may_look'.*ZeroDivisionError: by nothing") as caught:
        step_graph(placed(may_look, line=12))
    assert caught.value.line == 12


# --- what is left of an op


def test_a_host_op_of_which_nothing_is_wanted_only_launches_and_costs_what_launches_cost() -> None:
    @op(writes=wanted(SECOND, of=FIRST), cost_us=30.0)
    def prepare(first: int | None = optional(FIRST), tally: list[int] = state(TALLY)) -> int:
        return 1

    @node(stream="compute", launch=prepare, writes=THIRD)
    def work() -> int:
        return 3

    idle = step_graph(placed(work, launch_cost_us=2.0), must_count)
    assert idle.nodes[0].host == (Op(cost_us=30.0),)
    assert idle.nodes[0].host[0].run is None
    cheap = replace(prepare, cost_us=None)
    graph = step_graph(placed(work, host=(cheap,), launch_cost_us=2.0), must_count)
    assert graph.nodes[0].host == (Op(cost_us=2.0),)

    @node
    def use_second(second: int | None = optional(SECOND)) -> None: ...

    busy = step_graph(begin, placed(work, launch_cost_us=2.0), use_second, must_count)
    launch = busy.nodes[1].host[0]
    assert launch.reads == (Read("first"), Read("tally"))
    assert launch.writes == ("second",)
    assert launch.run is not None


def test_an_op_that_updates_a_state_is_not_idle_though_nobody_reads_what_it_writes() -> None:
    @node(writes=wanted(FIRST))
    def counting(tally: list[int] = update(TALLY)) -> int:
        tally.append(1)
        return 1

    assert accesses(step_graph(counting)) == {"counting": (["tally"], ["tally"])}


def test_a_body_gets_none_for_what_is_not_bound_and_publishes_what_is() -> None:
    second: Value[list[int] | None, list[int]] = Value("second", allocate=list)
    third: Value[list[int] | None, list[int]] = Value("third", allocate=list)
    seen: list[tuple[Any, ...]] = []

    @node(writes=(wanted(second), wanted(third)))
    def work(
        first: int | None = optional(FIRST, 1),
        tally: list[int] | None = optional_state(TALLY),
        into: list[int] | None = buffer(second),
        beside: list[int] | None = buffer(third),
        factor: int = 10,
    ) -> tuple[list[int] | None, list[int] | None]:
        seen.append((first, tally, into, beside, factor))
        return into, None if beside is None else [*beside, 5]

    @node(writes="out")
    def take(third: list[int] | None = read(third)) -> int:
        return len(third or ())

    report = run(compile_plan(step_graph(work, take)), steps=2, keep=["out"])
    assert seen == [(None, None, None, [], 10)] * 2
    assert report.kept["out"] == [1, 1]


def test_the_options_of_a_node_reach_its_body_and_all_that_is_made_for_it() -> None:
    made: list[tuple[str, str]] = []

    def loaded(chosen: str = settings(str)) -> str:
        made.append(("loaded", chosen))
        return chosen.upper()

    part: Resource[str] = Resource("part", loaded)

    def notes(part: str = given(part)) -> list[str]:
        return [part]

    book: State[list[str]] = State("book", make=notes)

    @node(writes="out")
    def work(
        chosen: str = settings(str), part: str = given(part), book: list[str] = update(book)
    ) -> str:
        return f"{chosen}{part}{book}"

    graph = step_graph(placed(work, settings="a"))
    opened = {name: found.make() for name, found in graph.states.items() if found.make}
    report = run(compile_plan(graph), states=opened, steps=2, keep=["out"])
    assert report.kept["out"] == ["aA['A']"] * 2
    assert made == [("loaded", "a")], "made once, for body and state"


# --- wiring, and what is wrong


def test_reads_are_wired_by_parameter_to_another_value_or_an_earlier_version() -> None:
    @node(writes="out")
    def take(first: int = read(FIRST), before: int = read(FIRST, 1)) -> int:
        return first * 100 + before

    wiring = {"first": Read("other", 2), "before": Read("other")}
    graph = step_graph(
        _counter("other"), placed(take, wiring=wiring), values=[value("other", initial=0)]
    )
    assert accesses(graph)["take"] == (["other@-2", "other"], ["out"])
    assert "first" not in graph.values
    report = run(compile_plan(graph), steps=4, keep=["out"])
    assert report.kept["out"] == [1, 2, 103, 204]


def _counter(name: str) -> NodeFunction[..., Any]:
    @node(writes=name, name=f"count_{name}")
    def counting(before: int = read(name, 1)) -> int:
        return before + 1

    return counting


def test_wiring_names_a_read_of_the_node_or_is_refused_with_the_nearest_and_the_line() -> None:
    wrong = placed(pass_on, wiring={"frist": Read("other")}, line=9)
    with pytest.raises(GraphError, match=r"'pass_on'.*reads no 'frist' \(did you mean 'first'\?\)"):
        step_graph(wrong)
    with pytest.raises(GraphError) as caught:
        step_graph(wrong)
    assert caught.value.line == 9


def test_a_state_is_no_read_that_could_be_wired() -> None:
    with pytest.raises(GraphError, match="reads no 'tally'"):
        step_graph(placed(must_count, wiring={"tally": Read("other")}))


@pytest.mark.parametrize("what", ["value", "state"])
def test_two_objects_of_one_name_are_refused_with_both_nodes_and_the_line(what: str) -> None:
    other: Value[int] = Value("first")

    @node
    def reader(first: int = read(other)) -> None: ...

    same_name: State[list[int]] = State("tally", make=list)

    @node
    def counter(tally: list[int] = update(same_name)) -> None: ...

    pairs: dict[str, tuple[NodeFunction[..., Any], NodeFunction[..., Any]]]
    pairs = {"value": (begin, reader), "state": (must_count, counter)}
    first, second = pairs[what]
    message = f"node '{second.name}'.*declared twice.*here and for node '{first.name}'"
    with pytest.raises(GraphError, match=message) as caught:
        step_graph(first, placed(second, line=5))
    assert caught.value.line == 5


def test_of_a_value_that_a_pipeline_rewires_the_object_does_not_count() -> None:
    """The parameter declares another object of the name, but reads something else here."""
    other: Value[int] = Value("first")

    @node
    def reader(first: int = read(other)) -> None: ...

    graph = step_graph(begin, placed(reader, wiring={"first": Read("first", 0)}))
    assert accesses(graph)["reader"] == (["first"], [])


@pytest.mark.parametrize("part", ["size", "first", "make"])
def test_what_cannot_be_made_is_told_with_the_node_and_its_line(part: str) -> None:
    def failing() -> Any:
        raise OSError("no such file")

    values = {"size": Value("made", size=failing), "first": Value("made", first=failing)}
    made: Value[int] = values.get(part, Value("made"))
    kept: State[int] = State("kept", make=failing)

    @node(writes=made)
    def work(kept: int = update(kept)) -> int:
        return 1

    def build() -> None:
        make = step_graph(placed(work, line=3)).states["kept"].make
        assert make is not None
        make()

    with pytest.raises(GraphError, match=r"'work'.*OSError: no such file") as caught:
        build()
    assert caught.value.line == 3
