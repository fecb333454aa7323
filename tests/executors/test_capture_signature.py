"""What a captured graph is kept under: nothing that a body can see may differ in a replay."""

from __future__ import annotations

import functools
import math
import struct
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from stepweave.executors import captured_segment, run
from stepweave.executors.contents import Unstable, mapped, signature, tensors
from stepweave.executors.counts import REASONS, Counts
from stepweave.graph.node import Node, Op, OpContext, Read, Value
from stepweave.graph.plan import Plan
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.step_graph import StepGraph
from stepweave.testing.devices.recorded_calls import RecordedCalls

STEPS = 14


class Box:
    """A plain object: a tensor, and a number that belongs to it."""

    def __init__(self, factor: Any = 1) -> None:
        self.numbers = torch.zeros(3)
        self.factor = factor


class Slotted:
    __slots__ = ("__hidden", "shown")

    def __init__(self, hidden: object, shown: object = 0) -> None:
        self.__hidden, self.shown = hidden, shown


class Pair(NamedTuple):
    one: object
    two: object


@dataclass(frozen=True)
class Frozen:
    one: object


class Level(IntEnum):
    LOW = 1


def pipeline(
    *,
    make: Callable[[], Any],
    fill: Callable[[OpContext, Any], Any],
    use: Callable[[OpContext, Any], Any],
    result: Callable[[Any], Tensor] = lambda result: result,
) -> Plan:
    """stage (host) fills the buffer `held` and publishes what `fill` returns → use (device), which
    sees it and the state `equipment` → copy (device) → kept."""

    def stage(ctx: OpContext) -> None:
        ctx.write("held", fill(ctx, ctx.buffer("held")))

    def work(ctx: OpContext) -> None:
        ctx.write("result", use(ctx, ctx.read("held")))

    def copy(ctx: OpContext) -> None:
        out: Tensor = ctx.buffer("out")
        ctx.write("out", out.copy_(result(ctx.read("result"))))

    nodes = [
        Node(
            "use",
            (Op((Read("equipment"),), ("held", "equipment"), run=stage),),
            (Op((Read("held"), Read("equipment")), ("result",), run=work),),
            stream="compute",
        ),
        Node("copy", (Op(),), (Op((Read("result"),), ("out",), run=copy),), stream="compute"),
        Node("settle", (Op((Read("out"),)),)),
    ]
    values = [
        Value("held", "pinned", "slots", allocate=make, slots=1),
        Value("result", "device", "slots", slots=1),
        Value("out", "pinned", "slots", allocate=lambda: torch.zeros(3), slots=1),
    ]
    return compile_plan(StepGraph.build(nodes, values, ["equipment"], order="keep"))


def both(
    plan: Plan, equipment: Callable[[], object] = Box, keep: Sequence[str] = ("out",)
) -> Counts:
    """Run it with captured graphs and without: the same numbers, to the bit and to the type."""
    device = RecordedCalls(graphs=True)
    found, wanted = (
        run(plan, executor=each, steps=STEPS, states={"equipment": equipment()}, keep=keep)
        for each in (device, "serial")
    )
    for one, other in zip(found.kept["out"], wanted.kept["out"], strict=True):
        assert torch.equal(one.view(torch.int32), other.view(torch.int32))
    assert device.captures is not None
    [counts] = device.captures.counts.values()
    return counts


def filled(box: Any, step: int) -> Any:
    box.numbers.fill_(step)
    return box


# --- each in the form in which it was replayed wrongly


def test_a_number_in_a_declared_state_is_part_of_the_signature() -> None:
    def fill(ctx: OpContext, held: Box) -> Any:
        ctx.state("equipment").factor = 2 if ctx.step < 5 else 7
        return filled(held, ctx.step)

    def use(ctx: OpContext, held: Box) -> Any:
        return held.numbers * ctx.state("equipment").factor

    counts = both(pipeline(make=Box, fill=fill, use=use), Box)
    assert counts.captured == 2
    assert counts.replayed == STEPS - 4


def test_a_tensor_that_a_state_replaces_is_not_the_one_that_was_captured() -> None:
    def fill(ctx: OpContext, held: Box) -> Any:
        if ctx.step == 6:
            ctx.state("equipment").numbers = torch.full((3,), 50.0)
        return filled(held, ctx.step)

    def use(ctx: OpContext, held: Box) -> Any:
        return held.numbers + ctx.state("equipment").numbers

    assert both(pipeline(make=Box, fill=fill, use=use), Box).captured == 2


@pytest.mark.parametrize("make", [Box, lambda: {"numbers": torch.zeros(3), "factor": 1}])
def test_a_plain_object_or_dict_as_a_buffer_is_known_by_its_contents(
    make: Callable[[], Any],
) -> None:
    def fill(ctx: OpContext, held: Any) -> Any:
        parts = held if isinstance(held, dict) else vars(held)
        parts["numbers"].fill_(ctx.step)
        parts["factor"] = 3 if ctx.step % 4 else 5
        return held

    def use(ctx: OpContext, held: Any) -> Any:
        parts = held if isinstance(held, dict) else vars(held)
        return parts["numbers"] * parts["factor"]

    counts = both(pipeline(make=make, fill=fill, use=use))
    assert (counts.captured, counts.replayed) == (2, STEPS - 4)


@pytest.mark.parametrize(
    ("first", "then"),
    [(0.0, -0.0), (2, 2.0), (1, True), (1, Level.LOW), (math.nan, -math.nan), ([1], (1,))],
)
def test_equal_numbers_of_other_bits_or_types_are_other_numbers(
    first: object, then: object
) -> None:
    def fill(ctx: OpContext, held: Box) -> Any:
        held.factor = first if ctx.step < 7 else then
        return filled(held, ctx.step)

    def use(ctx: OpContext, held: Box) -> Any:
        kinds = (int, float, bool, Level, list, tuple)
        sign = math.copysign(1, held.factor) if isinstance(held.factor, float) else 1
        return held.numbers + 10 * sign * kinds.index(type(held.factor))

    assert both(pipeline(make=Box, fill=fill, use=use)).captured == 2


@pytest.mark.parametrize(
    ("read", "name"),
    [
        (lambda numbers: numbers.numpy()[0], "numpy"),
        (lambda numbers: np.asarray(numbers)[0], "__array__"),
        (lambda numbers: numbers[0].item(), "item"),
        (lambda numbers: numbers.tolist()[0], "tolist"),
        (lambda numbers: 5 if numbers[0] > 3 else 0, "__bool__"),
        (lambda numbers: float(numbers[0]), "__float__"),
        (lambda numbers: int(numbers[0]), "__int__"),
        (lambda numbers: np.from_dlpack(numbers)[0], "__dlpack__"),
    ],
)
def test_pinned_contents_that_a_body_reads_on_the_host_are_never_captured(
    read: Callable[[Tensor], float], name: str
) -> None:
    plan = pipeline(
        make=Box,
        fill=lambda ctx, held: filled(held, ctx.step),
        use=lambda ctx, held: held.numbers * float(read(held.numbers)),
    )
    counts = both(plan)
    assert counts.replayed == counts.captured == 0
    assert any(f"Tensor.{name} gives the numbers" in why for why in counts.eager), counts.eager
    assert "numpy" not in vars(Tensor), "the wrappers are gone"


def test_an_array_that_views_pinned_memory_is_never_captured() -> None:
    class Viewed(Box):
        def __init__(self) -> None:
            super().__init__()
            self.array = self.numbers.numpy()

    plan = pipeline(
        make=Viewed,
        fill=lambda ctx, held: filled(held, ctx.step),
        use=lambda ctx, held: held.numbers * float(held.array[0]),
    )
    counts = both(plan)
    assert counts.eager == {
        "what it reads holds a ndarray, whose contents cannot be compared": STEPS
    }


def test_a_body_that_changes_a_number_is_never_replayed() -> None:
    """In steps 0, 1, 4, 5, … the flag is down, and the body raises it; the next one sees it up."""

    def fill(ctx: OpContext, held: Box) -> Any:
        if ctx.step % 4 < 2:
            ctx.state("equipment").factor = 0
        return filled(held, ctx.step)

    def use(ctx: OpContext, held: Box) -> Any:
        state = ctx.state("equipment")
        before, state.factor = state.factor, 1
        return held.numbers + 10 * before

    counts = both(pipeline(make=Box, fill=fill, use=use), Box)
    assert any("changes a datum that is not a tensor" in why for why in counts.eager)


@pytest.mark.parametrize("kind", ["dict", "object", "named tuple", "hidden"])
def test_what_a_graph_publishes_lies_in_its_slot_whatever_holds_it(kind: str) -> None:
    """Memory of a graph is overwritten by the next; only what lies in slots can be read later."""

    def use(ctx: OpContext, held: Box) -> Any:
        made = held.numbers * 2
        if kind == "object":
            box = Box()
            box.numbers = made
            return box
        made_of = {"dict": {"numbers": made}, "named tuple": Pair(made, 1)}
        return made_of.get(kind, functools.partial(made.clone))

    reached: dict[str, Callable[[Any], Tensor]] = {
        "dict": lambda held: held["numbers"],
        "object": lambda held: held.numbers,
        "named tuple": lambda held: held.one,
        "hidden": lambda held: held(),
    }
    counts = both(
        pipeline(
            make=Box,
            fill=lambda ctx, held: filled(held, ctx.step),
            use=use,
            result=reached[kind],
        ),
        keep=("out", "result"),  # so that it is read outside its segment
    )
    assert (counts.replayed > 0) == (kind != "hidden")


# --- and it is bounded


def test_what_is_remembered_of_signatures_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key per step: what has not come up for longest is forgotten first."""
    monkeypatch.setattr(captured_segment, "REMEMBERED", 3)
    device = RecordedCalls(graphs=True)
    numbers = iter([*range(100, 106), 104, 103, 100, 100])

    def fill(ctx: OpContext, held: Box) -> Any:
        held.factor = next(numbers)
        return filled(held, ctx.step)

    plan = pipeline(make=Box, fill=fill, use=lambda ctx, held: held.numbers * held.factor)
    run(plan, executor=device, steps=10, states={"equipment": 0})
    assert device.captures is not None
    [counts] = device.captures.counts.values()
    [segment] = device.captures.of(plan).runs.values()
    assert len(segment._seen) == 3
    assert counts.eager == {"first of its shape": 7}
    assert counts.captured == 3, "104 and 103 were still known, and 100 when it came up again"


def test_reasons_are_bounded_too() -> None:
    counts = Counts()
    for number in range(1000):
        counts.because(f"{number} shapes")
    assert len(counts.eager) == REASONS + 1
    assert sum(counts.eager.values()) == 1000


# --- signatures by themselves


def signed(datum: object) -> object:
    return signature(datum, lambda tensor: ("tensor", tensor.data_ptr()))


TENSOR = torch.arange(3)
DIFFERENT = [
    0, 1, False, True, 0.0, -0.0, 1.0, 2, 2.0, 1j, -1j, complex(0.0, -0.0), 0j, math.nan,
    struct.unpack("<d", struct.pack("<Q", 0x7FF8000000000001))[0], "1", "", b"", None, Level.LOW,
    (), [], {}, (1,), [1], (1.0,), (True,), ((1,),), (None,), {1: 2}, {1: 2.0}, {2: 1}, {"1": 2},
    {1: 2, 3: 4}, {3: 4, 1: 2}, Pair(1, 2), Pair(2, 1), (1, 2), Frozen(1), Frozen(1.0), Frozen(-1),
    Slotted(1), Slotted(2), Slotted(1, 2), TENSOR, TENSOR[1:], torch.float32, torch.int32, int,
    torch.device("cpu"), torch.device("meta"), torch.Size([1, 2]),
]  # fmt: skip


def test_data_that_differ_have_different_signatures_and_equal_ones_the_same() -> None:
    signatures = [signed(datum) for datum in DIFFERENT]
    assert len(set(signatures)) == len(DIFFERENT)
    assert signatures == [signed(datum) for datum in DIFFERENT]
    assert signed(Slotted(1, (2.0,))) == signed(Slotted(1, (2.0,)))
    assert signed(Box.__new__(Box)) == signed(Box.__new__(Box))


@pytest.mark.parametrize(
    "hidden",
    [
        np.zeros(1), np.float64(1), {1}, frozenset({1}), deque([1]), OrderedDict({1: 2}), len,
        lambda: 1, functools.partial(int, 1), SimpleNamespace(a=1), threading.Lock(), iter([1]),
        bytearray(1), ValueError(1), slice(1), range(1), torch.Generator(), signed.__get__(1), math,
    ],
    ids=lambda datum: type(datum).__name__,
)  # fmt: skip
def test_what_can_change_unseen_has_no_signature(hidden: object) -> None:
    for datum in (hidden, (hidden,), {"a": [hidden]}, Frozen(hidden), Slotted(hidden)):
        with pytest.raises(Unstable, match=type(hidden).__name__):
            signed(datum)


def test_what_refers_to_itself_has_no_signature() -> None:
    box = Box()
    box.factor = [box]
    with pytest.raises(Unstable, match="levels deep"):
        signed(box)


def test_a_promise_to_stay_the_same_is_kept_under_the_identity() -> None:
    class Cache(Box):
        fixed = True

    cache, other = Cache(), Cache()
    before = signed(cache)
    cache.factor = object()
    assert signed(cache) == before != signed(other)
    assert len(list(tensors(cache))) == 1


def test_the_same_with_other_tensors() -> None:
    box = Box(factor=(Pair(torch.ones(1), "x"), {"a": [torch.ones(2)]}, Frozen(torch.ones(3))))
    places = [len(tensor) for tensor in tensors(box)]
    counted = iter(range(9))
    changed = mapped(box, lambda tensor: torch.full_like(tensor, next(counted)))
    assert [float(tensor[0]) for tensor in tensors(changed)] == [0, 1, 2, 3]
    assert [len(tensor) for tensor in tensors(changed)] == places == [3, 1, 2, 3]
    assert type(changed) is Box
    assert isinstance(changed.factor[0], Pair)
    assert float(box.numbers[0]) == 0
    assert changed.factor[0].two == "x"
