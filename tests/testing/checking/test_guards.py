"""An op that touches a host object of a state that it did not declare is told, by whatever way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from stepweave.executors import NodeFailure, run
from stepweave.executors.errors import ContractViolation
from stepweave.graph.errors import GraphError
from stepweave.graph.immutable import immutable
from stepweave.graph.node import Node, Op, OpContext, Read, Run, Value
from stepweave.graph.plan import Plan
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.step_graph import StepGraph
from stepweave.requests.request import Request
from stepweave.requests.table import RequestTable
from stepweave.testing import Strict
from tests.requests.memory_model import limits, request

EXECUTORS = pytest.mark.parametrize("executor", ["serial", "threads"])


@dataclass
class Entry:
    count: int = 0
    names: list[str] = field(default_factory=list)


class Slotted:
    __slots__ = ("of",)

    def __init__(self, of: object) -> None:
        self.of = of

    def total(self) -> object:
        return self.of


class Named(dict[str, Any]):
    """A container with a class of its own."""


class Pair(NamedTuple):
    one: int
    other: int


@dataclass(frozen=True)
class Fixed:
    of: int


class Table:
    """A state: objects in containers, in objects."""

    def __init__(self) -> None:
        self.entries = {"a": Entry(), "b": Entry()}
        self.rest: tuple[Any, ...] = (Slotted([Entry()]), Named(x=1))
        self.tensor = torch.zeros(1)

    def add(self) -> None:
        self.entries["a"].count += 1


def line_of(marker: str) -> int:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    (found,) = [number for number, line in enumerate(lines, 1) if line.endswith(f"# {marker}")]
    return found


def keeping(look: Run, *, declares: str = "", reads: tuple[str, ...] = ("v",)) -> Plan:
    """`keep` changes the state `table` and publishes v; `look` may declare the state."""

    def keep(ctx: OpContext) -> None:
        state = ctx.state("table")
        if isinstance(state, Table):
            state.add()
        ctx.write("v", ctx.step)

    read = tuple(Read(name) for name in (*reads, *(["table"] if declares else [])))
    writes = ("table",) if declares == "write" else ()
    nodes = [
        Node("keep", (Op((Read("table"),), ("v", "table"), run=keep),)),
        Node("look", (Op(read, writes, run=look),), actor="own"),
    ]
    return compile_plan(StepGraph.build(nodes, [Value("v")], ("table",), order="keep"))


def violation(plan: Plan, executor: str = "serial", **states: object) -> ContractViolation:
    with pytest.raises(NodeFailure) as caught:
        run(plan, executor=Strict(executor), steps=3, states=states, watchdog_s=20)
    found = caught.value.__cause__
    assert isinstance(found, ContractViolation)
    return found


GLOBAL = Table()
GLOBAL_LIST: list[int] = []


def by_global(ctx: OpContext) -> None:
    GLOBAL.entries  # noqa: B018  # global


@EXECUTORS
def test_a_read_through_a_closure_a_global_or_an_argument_is_told(executor: str) -> None:
    table = Table()

    def by_closure(ctx: OpContext) -> None:
        assert len(table.entries) == 2  # closure

    def by_argument(given: Table, ctx: OpContext) -> None:
        given.add()  # argument

    for look, state, marker, what in (
        (by_closure, table, "closure", "Table.entries"),
        (by_global, GLOBAL, "global", "Table.entries"),
        (partial(by_argument, table), table, "argument", "Table.add"),
    ):
        found = violation(keeping(look), executor, table=state)
        assert (found.code, found.node, found.op) == ("SW-UNDECLARED-READ", "look", "look.host")
        assert (found.value, found.file, found.source_line) == ("table", __file__, line_of(marker))
        assert f"reads {what} of state 'table', which it does not declare" in str(found)


def inner(table: Table) -> dict[str, tuple[object, Callable[[Any], object], str]]:
    """Objects that the state reaches, what one does with them, and what is said then."""
    slotted, named = table.rest
    assert isinstance(slotted.of, list)
    return {
        "an object in a dict": (table.entries["b"], lambda it: it.count, "Entry.count"),
        "an object in a list in slots": (slotted.of[0], lambda it: it.names, "Entry.names"),
        "an object with slots": (slotted, lambda it: it.total(), "Slotted.total"),
        "an item of a container": (named, lambda it: it["x"], "Named.__getitem__"),
        "a method of a container": (named, lambda it: it.get("x"), "Named.get"),
        "the attributes as a dict": (table, lambda it: vars(it), "Table.__dict__"),
    }


@pytest.mark.parametrize("way", inner(Table()))
def test_so_is_one_of_whatever_the_state_reaches(way: str) -> None:
    table = Table()
    part, use, said = inner(table)[way]

    def look(ctx: OpContext) -> None:
        use(part)

    found = violation(keeping(look), table=table)
    assert (found.code, found.value) == ("SW-UNDECLARED-READ", "table")
    assert f"reads {said} of state 'table'" in str(found)


def test_a_write_and_an_item_that_is_put_in_are_told_as_such() -> None:
    table = Table()
    entry, named = table.entries["a"], table.rest[1]
    assert isinstance(named, Named)

    def assign(ctx: OpContext) -> None:
        entry.count = 5

    def put(ctx: OpContext) -> None:
        named["y"] = 1

    def remove(ctx: OpContext) -> None:
        del entry.count

    for look in (assign, put, remove):
        found = violation(keeping(look), table=table)
        assert (found.code, found.value) == ("SW-UNDECLARED-WRITE", "table")
    assert (entry.count, dict(named)) == (3, {"x": 1}), "it was stopped before it was done"


def test_what_came_into_the_state_in_the_run_is_guarded_and_what_left_it_is_not() -> None:
    table, late = Table(), Entry()

    def look(ctx: OpContext) -> None:
        if ctx.step == 2:
            late.count  # noqa: B018

    def keep(ctx: OpContext) -> None:
        entries = ctx.state("table").entries
        if ctx.step == 1:
            entries["late"] = late
        ctx.write("v", ctx.step)

    def with_keep(plan: Plan, keep: Run) -> Plan:
        nodes = [
            Node("keep", (Op((Read("table"),), ("v", "table"), run=keep),)),
            *plan.graph.nodes[1:],
        ]
        return compile_plan(StepGraph.build(nodes, [Value("v")], ("table",), order="keep"))

    found = violation(with_keep(keeping(look), keep), table=table)
    assert (found.code, found.step) == ("SW-UNDECLARED-READ", 2)

    def give(ctx: OpContext) -> None:
        keep(ctx)
        if ctx.step == 2:
            del ctx.state("table").entries["late"]

    run(with_keep(keeping(look), give), executor=Strict(), steps=3, states={"table": table})


def test_a_swallowed_error_is_told_all_the_same() -> None:
    table = Table()

    def look(ctx: OpContext) -> None:
        with suppress(Exception):
            table.add()

    assert violation(keeping(look), table=table).code == "SW-UNDECLARED-READ"


def by_list(ctx: OpContext) -> None:
    assert len(GLOBAL_LIST) >= 0


def helper() -> int:
    return len(GLOBAL_LIST)


def by_helper(ctx: OpContext) -> None:
    helper()


class Looker:
    def __init__(self, held: list[int]) -> None:
        self.held = held

    def look(self, ctx: OpContext) -> None:
        self.held.append(1)


def ways_to_a_list() -> Iterator[tuple[str, Run]]:
    held = GLOBAL_LIST
    yield "GLOBAL_LIST", by_list
    yield "GLOBAL_LIST", by_helper
    yield "held", lambda ctx: held.append(1)
    yield "self.held", Looker(held).look
    yield "argument 0", partial(lambda given, ctx: given.append(1), held)


@pytest.mark.parametrize(("variable", "look"), list(ways_to_a_list()))
def test_a_container_that_is_a_state_is_found_in_what_the_function_refers_to(
    variable: str, look: Run
) -> None:
    found = violation(keeping(look), table=GLOBAL_LIST)
    assert (found.code, found.node, found.value) == ("SW-UNDECLARED-READ", "look", "table")
    assert f"by its variable {variable!r}, to a list of state 'table'" in str(found)
    assert found.file == __file__
    assert found.source_line is not None


@pytest.mark.parametrize("state", [{"a": [1]}, [1, 2], Slotted([1])], ids=["dict", "list", "slots"])
def test_a_container_of_a_state_that_is_only_read_must_stay_as_it_is(state: Any) -> None:
    def look(ctx: OpContext) -> None:
        held = ctx.state("table")
        held = held["a"] if isinstance(held, dict) else getattr(held, "of", held)
        held.append(9)

    found = violation(keeping(look, declares="read"), table=state)
    assert (found.code, found.value) == ("SW-INPUT-CHANGED", "table")
    assert "changes a list of state 'table' in place, which it declares to read only" in str(found)


def test_an_object_of_a_state_that_is_only_read_must_stay_as_it_is() -> None:
    def look(ctx: OpContext) -> None:
        ctx.state("table").entries["b"].count += 1  # changes

    found = violation(keeping(look, declares="read"), table=Table())
    assert (found.code, found.source_line) == ("SW-INPUT-CHANGED", line_of("changes"))


@EXECUTORS
def test_what_one_state_brings_into_an_object_that_another_shares_is_of_both(executor: str) -> None:
    shared = Slotted([])

    def bring(ctx: OpContext) -> None:
        ctx.state("one").of.of.append(Entry(ctx.step))
        ctx.write("v", ctx.step)

    def use(ctx: OpContext) -> None:
        ctx.read("v")
        assert ctx.state("other").of.of[ctx.step].count == ctx.step

    nodes = [
        Node("bring", (Op((Read("one"),), ("one", "v"), run=bring),)),
        Node("use", (Op((Read("v"), Read("other")), ("other",), run=use),), actor="own"),
    ]
    plan = compile_plan(StepGraph.build(nodes, [Value("v")], ("one", "other"), order="keep"))
    states = {"one": Slotted(shared), "other": Slotted(shared)}
    run(plan, executor=Strict(executor), steps=3, states=states)


def test_what_cannot_change_may_be_in_a_state_and_in_a_value_at_once() -> None:
    table, shared = Table(), (Pair(1, 2), Fixed(3))
    table.rest = (*shared, *table.rest)

    def look(ctx: OpContext) -> None:
        assert (shared[0].one, shared[1].of) == (1, 3)

    run(keeping(look), executor=Strict(), steps=3, states={"table": table})


@EXECUTORS
@pytest.mark.parametrize("declares", ["read", "write"])
def test_who_declares_a_state_may_use_it(declares: str, executor: str) -> None:
    table = Table()

    def look(ctx: OpContext) -> None:
        state = ctx.state("table")
        assert state is table
        assert (type(state).__name__, state.__class__, isinstance(state, Table)) == (
            "Table",
            Table,
            True,
        )
        assert state.entries["b"] == Entry()
        if declares == "write":
            state.entries["c"] = Entry(5)
            del state.entries["c"]
            state.rest[0].of = []

    run(
        keeping(look, declares=declares),
        executor=Strict(executor),
        steps=3,
        states={"table": table},
    )


def test_after_a_run_everything_has_its_own_class_again() -> None:
    table = Table()
    plan = keeping(lambda ctx: None)
    run(plan, executor=Strict(), steps=3, states={"table": table})
    with suppress(NodeFailure):
        run(keeping(lambda ctx: table.add()), executor=Strict(), steps=3, states={"table": table})
    slotted, named = table.rest
    parts = (table, table.entries["a"], table.entries["b"], slotted, named)
    assert [type(part) for part in parts] == [Table, Entry, Entry, Slotted, Named]
    table.add()


def test_an_initial_version_that_can_be_changed_is_refused() -> None:
    nodes = [
        Node("make", (Op((Read("v", 1),), ("v",), run=lambda ctx: ctx.write("v", 1)),)),
    ]
    values = [Value("v", initial=[1])]
    plan = compile_plan(StepGraph.build(nodes, values, order="keep"))
    with pytest.raises(GraphError, match=r"'v'.*v: a list can be changed") as caught:
        run(plan, executor=Strict(), steps=2)
    assert caught.value.code == "SW-MUTABLE-VALUE"


# --- the two holes, where the mutable thing is hidden from the check of the value


@immutable
@dataclass(frozen=True)
class Hidden:
    """A batch that claims to be immutable, and holds the live requests."""

    requests: tuple[Request, ...]


def more_to_come(batch: Hidden) -> int:
    return max(live.upper_bound() for live in batch.requests)  # upper_bound


def so_far(batch: Hidden) -> list[int]:
    return [token for live in batch.requests for token in live.output_ids]  # output_ids


@EXECUTORS
@pytest.mark.parametrize(
    ("look", "marker"), [(more_to_come, "upper_bound"), (so_far, "output_ids")]
)
def test_a_live_request_that_is_read_through_a_value_is_told(
    look: Callable[[Hidden], object], marker: str, executor: str
) -> None:
    table = RequestTable(limits(max_rows=4, token_budget=32))
    table.submit_all([request(uid, prompt=4) for uid in range(4)])

    def schedule(ctx: OpContext) -> None:
        state: RequestTable = ctx.state("requests")
        rows = state.schedule(ctx.step).rows
        ctx.write("batch", Hidden(tuple(state.find(row.request.uid) for row in rows)))

    def commit(ctx: OpContext) -> None:
        for live in ctx.state("requests").requests.values():
            live.output_ids.append(ctx.step)

    def on_its_own(ctx: OpContext) -> None:
        look(ctx.read("batch"))

    own = Read("requests")
    nodes = [
        Node("schedule", (Op((own,), ("requests", "batch"), run=schedule),)),
        Node("look", (Op((Read("batch"),), run=on_its_own),), actor="own"),
        Node("commit", (Op((Read("batch"), own), ("requests",), run=commit),)),
    ]
    plan = compile_plan(StepGraph.build(nodes, [Value("batch")], ("requests",), order="keep"))
    found = violation(plan, executor, requests=table)
    assert (found.code, found.op, found.value) == ("SW-UNDECLARED-READ", "look.host", "requests")
    assert f"reads Request.{marker} of state 'requests'" in str(found)
    assert (found.file, found.source_line) == (__file__, line_of(marker))
