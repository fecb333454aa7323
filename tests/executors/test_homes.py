"""Memory that is written again is nobody else's: slots that would alias are made right or refused.

Each case is a pipeline with one reader that looks at `v` while the writer goes on. In a hundred
schedules, and in every executor, it gets what the serial program gives it, or the same refusal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from stepweave.executors import NodeFailure, run
from stepweave.executors.errors import ContractViolation
from stepweave.executors.homes import Home, Homes, fits
from stepweave.executors.parts import PATIENCE
from stepweave.executors.run import Executor
from stepweave.graph.errors import StepweaveError
from stepweave.graph.node import Node, Op, OpContext, Read, Run, Value
from stepweave.graph.plan import Plan
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.step_graph import StepGraph
from stepweave.testing.checking.mode import Strict
from stepweave.testing.devices.virtual_streams import Deferred
from stepweave.testing.exploring.nodes import Interleaved

STEPS = 8
SEEDS = range(100)
EVERYWHERE: list[Executor | str] = [
    "serial",
    "threads",
    *map(Interleaved, SEEDS),
    *map(Deferred, range(10)),
]


def slots(make: Callable[[], Any] | None, count: int = 3, **more: Any) -> Value:
    return Value("v", storage="slots", slots=count, allocate=make, **more)


def plan_of(make: Run, value: Value, *more: Value, reads: tuple[Read, ...] = ()) -> Plan:
    """`make` writes `v` (and what else there is); another thread looks at `v`, a step later."""

    def look(ctx: OpContext) -> None:
        datum = ctx.read("v")
        ctx.write("seen", (None if datum is None else tuple(map(float, datum)),))

    names = ("v", *(each.name for each in more))
    nodes = [
        Node("make", (Op(reads, names, run=make),)),
        Node("look", (Op((Read("v"),), ("seen",), run=look),), actor="other"),
    ]
    states = tuple(r.name for r in reads if r.name not in names)
    return compile_plan(StepGraph.build(nodes, [value, *more, Value("seen")], states, order="keep"))


def everywhere(plan: Plan, expected: list[float], state: Callable[[], Any] | None = None) -> None:
    for executor in EVERYWHERE:
        for checked in (False, True):
            if checked and getattr(executor, "seed", 0) % 10:
                continue  # slow
            states = {name: state() for name in plan.graph.states} if state else {}
            report = run(
                plan,
                executor=Strict(executor) if checked else executor,
                steps=STEPS,
                keep=["seen"],
                states=states,
            )
            assert [each[0][0] for each in report.kept["seen"]] == expected, (executor, checked)


def refused(plan: Plan, *words: str, state: Callable[[], Any] | None = None) -> None:
    """By every executor, in checking mode or not, in the same words."""
    said = set()
    for executor in ("serial", "threads", Interleaved(1), Deferred(1)):
        for checked in (False, True):
            states = {name: state() for name in plan.graph.states} if state else {}
            with pytest.raises(StepweaveError) as caught:
                run(
                    plan,
                    executor=Strict(executor) if checked else executor,
                    steps=STEPS,
                    states=states,
                )
            error = caught.value
            if isinstance(error, NodeFailure):
                cause = error.__cause__
                assert isinstance(cause, ContractViolation)
                assert (cause.node, cause.value) == ("make", "v")
                assert cause.file == __file__
                error = cause
            assert error.code == "SW-SHARED-MEMORY"
            said.add(error.message)
    (message,) = said
    for word in words:
        assert word in message


# --- what was adopted once ---


def filled(ctx: OpContext, number: float) -> Any:
    buffer = ctx.buffer("v")
    buffer[:] = [number] if isinstance(buffer, list) else number
    return buffer


BUFFERS: dict[str, Callable[[], Any]] = {
    "tensor": lambda: torch.zeros(1),
    "inference tensor": lambda: torch.inference_mode()(torch.zeros)(1),
    "array": lambda: np.zeros(1),
    "list": lambda: [0.0],
}


@pytest.mark.parametrize("kind", BUFFERS)
def test_a_version_published_again_is_copied_to_the_slot_of_the_new_one(kind: str) -> None:
    """ "Nothing has changed": the slot of the older version is filled two steps later."""

    def make(ctx: OpContext) -> None:
        if ctx.step % 3 == 1:
            ctx.write("v", ctx.read("v@-1"))
        else:
            with torch.inference_mode():
                ctx.write("v", filled(ctx, ctx.step))

    value = slots(BUFFERS[kind], initial=BUFFERS[kind]())
    everywhere(plan_of(make, value, reads=(Read("v", 1),)), [0, 0, 2, 3, 3, 5, 6, 6])


@pytest.mark.parametrize("kind", BUFFERS)
def test_a_constant_is_copied_and_never_filled(kind: str) -> None:
    constant = BUFFERS[kind]()

    def make(ctx: OpContext) -> None:
        with torch.inference_mode():
            ctx.write("v", constant if ctx.step < 2 else filled(ctx, ctx.step))

    everywhere(plan_of(make, slots(BUFFERS[kind], 2)), [0, 0, 2, 3, 4, 5, 6, 7])
    assert constant[0] == 0


def views() -> dict[str, Callable[[], Any]]:
    tensor, array, listed = torch.zeros(8), np.zeros(8), [0.0]
    numbers = iter(range(1 << 20))
    return {
        "one tensor": lambda: tensor,
        "views of one tensor": lambda: tensor[next(numbers) % 8 :][:1],
        "one array": lambda: array,
        "views of one array": lambda: array[next(numbers) % 8 :][:1],
        "a tensor and an array": lambda: torch.from_numpy(array) if next(numbers) % 2 else array,
        "arrays of one tensor": lambda: tensor[next(numbers) % 8 :][:1].numpy(),
        "one list": lambda: listed,
        "a list in lists": lambda: [listed],
        "a part of objects": lambda: Staged(torch.zeros(1), {"shared": tensor}),
        "one bytearray": lambda: SHARED_BYTES,
        "arrays of one bytearray": lambda: np.frombuffer(SHARED_BYTES, dtype=np.uint8),
    }


SHARED_BYTES = bytearray(8)


@dataclass
class Staged:
    """A buffer of several parts, as nodes have them."""

    numbers: Tensor
    parts: dict[str, Tensor] = field(default_factory=dict)


@pytest.mark.parametrize("kind", views())
def test_slots_that_get_the_same_memory_are_refused(kind: str) -> None:
    value = slots(views()[kind])
    refused(
        plan_of(lambda ctx: ctx.write("v", filled(ctx, ctx.step)), value),
        "`allocate` gave slot 1 of value 'v' the memory of slot 0 of value 'v'",
        "Make a new buffer in each call",
    )


def test_distinct_rows_of_their_own_are_no_shared_memory() -> None:
    everywhere(
        plan_of(
            lambda ctx: ctx.write("v", filled(ctx, ctx.step)), slots(lambda: torch.zeros(4)[1:2])
        ),
        [0, 1, 2, 3, 4, 5, 6, 7],
    )


def test_a_fresh_value_gets_new_memory_in_each_step_or_is_refused() -> None:
    shared = torch.zeros(1)
    value = Value("v", allocate=lambda: shared)
    nodes = [
        Node("make", (Op((), ("v",), run=lambda ctx: ctx.write("v", filled(ctx, ctx.step))),)),
        Node("look", (Op((Read("v", 1),)),)),
    ]
    plan = compile_plan(StepGraph.build(nodes, [value], order="keep"))
    with pytest.raises(NodeFailure, match="memory of a version that is still read"):
        run(plan, steps=3)


# --- siblings ---


def test_an_initial_version_in_a_slot_is_refused() -> None:
    shared = torch.zeros(1)
    refused(
        plan_of(
            lambda ctx: ctx.write("v", filled(ctx, ctx.step)),
            slots(lambda: shared, 1, initial=shared[:]),
        ),
        "value 'v': its `initial` is in the memory of slot 0 of value 'v'",
    )


def other(make: Callable[[], Any]) -> Value:
    return Value("w", storage="slots", slots=3, allocate=make)


def test_two_values_that_get_one_memory_are_refused() -> None:
    base = torch.zeros(16)
    numbers = iter(range(1 << 20))
    refused(
        plan_of(
            lambda ctx: None,
            slots(lambda: torch.zeros(1)),
            Value("w", storage="slots", slots=1, allocate=lambda: base),
            Value("x", storage="slots", slots=1, allocate=lambda: base[next(numbers) % 8 :]),
        ),
        "`allocate` gave slot 0 of value 'x' the memory of slot 0 of value 'w'",
    )


@pytest.mark.parametrize("place", ["whole", "view", "array", "nested"])
def test_the_buffer_of_another_value_is_no_value_of_its_own(place: str) -> None:
    """`v` has no buffers: its reader would look at what `w` is being filled with."""
    shapes: dict[str, Callable[[Tensor], Any]] = {
        "whole": lambda t: t,
        "view": lambda t: t[:1],
        "array": lambda t: t.numpy(),
        "nested": lambda t: Staged(torch.zeros(1), {"more": t}),
    }

    def make(ctx: OpContext) -> None:
        buffer = ctx.buffer("w").fill_(ctx.step)
        ctx.write("w", buffer)
        ctx.write("v", shapes[place](buffer))

    plan = plan_of(make, Value("v"), other(lambda: torch.zeros(2)))
    refused(plan, "publishes memory of slot 0 of value 'w'", "as 'v': publish a copy")


def test_the_buffer_of_another_value_is_copied_where_it_fits() -> None:
    def make(ctx: OpContext) -> None:
        buffer = ctx.buffer("w").fill_(ctx.step)
        ctx.write("w", buffer)
        ctx.write("v", buffer.numpy() if ctx.step == 20 else buffer)

    plan = plan_of(make, slots(lambda: torch.zeros(1)), other(lambda: torch.zeros(1)))
    everywhere(plan, [0, 1, 2, 3, 4, 5, 6, 7])


def test_a_view_of_another_slot_that_does_not_fit_is_refused() -> None:
    def make(ctx: OpContext) -> None:
        if ctx.step == 3:
            ctx.write("v", ctx.read("v@-1")[:1])
        else:
            ctx.write("v", ctx.buffer("v").fill_(ctx.step))

    refused(
        plan_of(make, slots(lambda: torch.zeros(2), initial=0), reads=(Read("v", 1),)),
        "publishes memory of slot 2 of value 'v'",
        "fill `ctx.buffer('v')` and publish that; this does not fit into it",
    )


def test_a_view_of_the_slots_own_buffer_is_published_as_it_is() -> None:
    def make(ctx: OpContext) -> None:
        buffer = ctx.buffer("v").fill_(ctx.step)
        ctx.write("v", (buffer[2:], buffer.numpy()[1:], Staged(buffer[:1]))[ctx.step % 2])

    everywhere(plan_of(make, slots(lambda: torch.zeros(4))), [0, 1, 2, 3, 4, 5, 6, 7])


def test_the_memory_of_a_state_is_no_value() -> None:
    def make(ctx: OpContext) -> None:
        ctx.write("v", ctx.state("kv")["layer"][:1])

    refused(
        plan_of(make, Value("v"), reads=(Read("kv"),)),
        "publishes memory of the state 'kv', which will be written again, as 'v'",
        state=lambda: {"layer": torch.zeros(2)},
    )


def test_the_memory_of_a_state_is_copied_where_there_is_a_slot_for_it() -> None:
    def make(ctx: OpContext) -> None:
        with torch.inference_mode():
            ctx.write("v", ctx.state("kv")["layer"].add_(1)[:1])

    def look(ctx: OpContext) -> None:
        ctx.write("seen", ((float(ctx.read("v")[0]),),))

    nodes = [
        Node("make", (Op((Read("kv"),), ("v", "kv"), run=make),)),
        Node("look", (Op((Read("v"),), ("seen",), run=look),), actor="other"),
    ]
    values = [slots(lambda: torch.zeros(1)), Value("seen")]
    plan = compile_plan(StepGraph.build(nodes, values, ("kv",), order="keep"))
    everywhere(plan, [1, 2, 3, 4, 5, 6, 7, 8], state=lambda: {"layer": torch.zeros(2)})


def test_a_state_may_let_go_of_memory_that_a_value_then_gets() -> None:
    """What a state held when the run began is known by more than its address."""
    memory, homes = np.zeros(4), Homes()
    kv = [torch.from_numpy(memory)]
    homes.add_state("kv", kv)
    assert homes.of(kv[0][1:]) == {Home("kv")}
    kv.clear()
    assert homes.of(torch.from_numpy(memory)) == {None}


def test_a_device_op_does_not_copy_host_memory_beside_the_stream() -> None:
    """On a GPU such a copy is made when the op is launched, whatever its stream has still to do."""

    def make(ctx: OpContext) -> None:
        ctx.write("v", torch.zeros(1))

    nodes = [Node("make", (Op(),), (Op((), ("v",), run=make),), stream="compute")]
    value = Value("v", "pinned", "slots", 2, allocate=lambda: torch.zeros(1))
    plan = compile_plan(StepGraph.build(nodes, [value], order="keep"))
    refused(plan, "fill `ctx.buffer('v')` on the stream and publish that")


def test_numbers_and_texts_need_no_buffer() -> None:
    plan = plan_of(lambda ctx: ctx.write("v", (float(ctx.step),)), slots(lambda: torch.zeros(1), 2))
    everywhere(plan, [0, 1, 2, 3, 4, 5, 6, 7])


def test_what_fits_is_what_can_be_copied() -> None:
    one, two = Staged(torch.zeros(1)), Staged(torch.zeros(2))
    assert fits(one, Staged(torch.ones(1)))
    assert not fits(one, two)
    assert not fits(torch.zeros(1), torch.zeros(1, dtype=torch.int64))
    assert not fits(torch.zeros(1), np.zeros(1))
    assert not fits([0], [[1]])
    assert fits(bytearray(2), bytearray(b"ab"))
    assert not fits(bytearray(2), bytearray(b"abc"))
    assert not fits(object(), object())


def test_a_plan_without_buffers_and_states_watches_nothing() -> None:
    assert Homes().of([torch.zeros(1), {"a": np.zeros(1)}]) == {None}
    assert Homes().of((1, "a", frozenset([2]))) == set()


def test_an_array_that_nobody_can_write_is_shared_freely() -> None:
    constant = np.arange(3.0)
    constant.flags.writeable = False
    homes = Homes()
    homes.add_state("table", {"mask": constant})
    assert homes.of(constant) == homes.of(constant[1:]) == {None}
    seen = np.arange(3.0)
    view = seen[:]
    view.flags.writeable = False
    homes.add_state("table", {"mask": view})
    assert None not in homes.of(seen), "its base can still be written"


@pytest.mark.parametrize("fixed", [False, True])
def test_a_buffer_that_promises_that_its_memory_stays_is_known_without_a_look_inside(
    fixed: bool,
) -> None:
    buffer, homes = SimpleNamespace(numbers=torch.zeros(2), fixed=fixed), Homes()
    homes.add_slot("x", 1, buffer)
    buffer.made_later = torch.zeros(2)  # nobody's: only who looks inside finds it
    published = SimpleNamespace(buffer=buffer, size=2)
    for _ in range(3 * PATIENCE):
        assert homes.of(published) == ({Home("x", 1)} if fixed else {Home("x", 1), None})
