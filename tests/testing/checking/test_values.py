"""Values are immutable all the way down: what is not is refused where it is published."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from stepweave.executors import NodeFailure, run
from stepweave.executors.errors import ContractViolation
from stepweave.graph.immutable import immutable, mutable_part
from stepweave.graph.node import Node, Op, OpContext, Read, Value
from stepweave.graph.plan import Plan
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.step_graph import StepGraph
from stepweave.requests.request import Request
from stepweave.requests.table import RequestTable
from stepweave.testing import Strict
from tests.requests.memory_model import limits, request


@dataclass(frozen=True)
class OldRow:
    """A row as it was once: with the live request."""

    request: Request
    row: int


@dataclass(frozen=True)
class OldBatch:
    step: int
    rows: tuple[OldRow, ...]


def tokens_to_come(batch: OldBatch) -> int:
    """What `prepare_inputs` read of the requests, while `commit` may change it."""
    return max(row.request.upper_bound() for row in batch.rows)


def tokens_so_far(batch: OldBatch) -> list[int]:
    """What `bitmask` read of them, to advance a new matcher."""
    return [token for row in batch.rows for token in row.request.output_ids]


def with_live_requests(look: Callable[[OldBatch], object]) -> Plan:
    """`schedule` and `commit` declare the requests, `look` on its own thread does not."""

    def schedule(ctx: OpContext) -> None:
        table: RequestTable = ctx.state("requests")
        rows = table.schedule(ctx.step).rows
        live = tuple(OldRow(table.find(row.request.uid), row.request_slot) for row in rows)
        ctx.write("batch", OldBatch(ctx.step, live))

    def commit(ctx: OpContext) -> None:
        for live in ctx.state("requests").requests.values():
            live.output_ids.append(ctx.step)

    def on_its_own(ctx: OpContext) -> None:
        look(ctx.read("batch"))

    requests = Read("requests")
    nodes = [
        Node("schedule", (Op((requests,), ("requests", "batch"), run=schedule),)),
        Node("look", (Op((Read("batch"),), run=on_its_own),), actor="own"),
        Node("commit", (Op((Read("batch"), requests), ("requests",), run=commit),)),
    ]
    return compile_plan(StepGraph.build(nodes, [Value("batch")], ("requests",), order="keep"))


@pytest.mark.parametrize("executor", ["serial", "threads"])
@pytest.mark.parametrize("look", [tokens_to_come, tokens_so_far])
def test_a_batch_of_live_requests_is_refused(
    look: Callable[[OldBatch], object], executor: str
) -> None:
    table = RequestTable(limits(max_rows=4, token_budget=32))
    table.submit_all([request(uid, prompt=4) for uid in range(4)])
    plan = with_live_requests(look)
    with pytest.raises(NodeFailure) as caught:
        run(plan, executor=Strict(executor), steps=3, states={"requests": table})
    found = caught.value.__cause__
    assert isinstance(found, ContractViolation)
    assert (found.code, found.op, found.value) == ("SW-MUTABLE-VALUE", "schedule.host", "batch")
    assert "batch.rows[0].request: Request is not frozen" in str(found)
    assert found.file == __file__


class Colour(Enum):
    RED = 1


class Pair(NamedTuple):
    one: Any
    other: Any


@dataclass(frozen=True)
class Record:
    of: Any


@dataclass(frozen=True, slots=True)
class Slotted:
    of: Any


@dataclass
class Open:
    of: int = 0


@immutable
class Handle:
    """Of a library: it holds what it likes."""

    def __init__(self) -> None:
        self.inside = [1]


@dataclass(frozen=True)
class Lazy:
    held: list[int] = field(default_factory=list)


@pytest.mark.parametrize(
    "datum",
    [
        None,
        ("a", b"b", 1.5, True, 2 + 1j, range(3), Colour.RED, frozenset({1, (2, 3)})),
        Pair(1, Record(Slotted(torch.zeros(2)))),
        Record(np.zeros(2)),
        (torch.float32, torch.device("cpu"), np.int64(3), torch.zeros(2).shape),
        Handle(),
        abs,
        Record,
        lambda: 3,
    ],
    ids=lambda datum: type(datum).__name__,
)
def test_what_cannot_change_is_a_value(datum: object) -> None:
    assert mutable_part(datum, "v") is None


def closing_over(held: object) -> Callable[[], object]:
    return lambda: held


@pytest.mark.parametrize(
    ("datum", "said"),
    [
        ([1], "v: a list can be changed"),
        ({}, "v: a dict can be changed"),
        (bytearray(1), "v: a bytearray can be changed"),
        ((1, 2, {3}), "v[2]: a set can be changed"),
        (Pair(1, [2]), "v.other: a list can be changed"),
        (Record(Slotted(Open())), "v.of.of: Open is not frozen"),
        (Lazy(), "v.held: a list can be changed"),
        (frozenset({Record(object)}) | {Slotted(Handle)}, None),
        (frozenset({Pair(1, Open)}), None),
        (closing_over([1]), "v (a variable of this function): a list can be changed"),
        (torch.nn.Linear(1, 1), "v: Linear is not frozen"),
        (torch.Generator(), "v: Generator is not frozen"),
    ],
    ids=lambda given: given if isinstance(given, str) else type(given).__name__,
)
def test_what_can_change_is_none_and_the_path_to_it_is_told(datum: object, said: str) -> None:
    assert mutable_part(datum, "v") == said


def test_the_buffer_of_its_slot_may_be_in_a_value() -> None:
    """It is refilled only when all readers of this version are done."""

    class Buffer:
        def __init__(self) -> None:
            self.data = torch.zeros(2)

    def fill(ctx: OpContext) -> None:
        buffer = ctx.buffer("v")
        buffer.data.fill_(ctx.step)
        ctx.write("v", Record(buffer))

    def other(ctx: OpContext) -> None:
        ctx.write("v", Record(Buffer()))

    for body, refused in ((fill, False), (other, True)):
        nodes = [
            Node("make", (Op((), ("v",), run=body),)),
            Node("look", (Op((Read("v"),), run=lambda ctx: ctx.read("v")),)),
        ]
        values = [Value("v", storage="slots", slots=2, allocate=Buffer)]
        plan = compile_plan(StepGraph.build(nodes, values, order="keep"))
        if not refused:
            run(plan, executor=Strict(), steps=5)
        else:
            with pytest.raises(NodeFailure, match=r"SW-(MUTABLE-VALUE|SHARED-MEMORY)"):
                run(plan, executor=Strict(), steps=5)
