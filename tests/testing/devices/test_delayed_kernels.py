"""The device whose work is late, and what it shows: lifetimes, and versions that are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache, partial
from random import Random

import pytest
import torch
from torch import Tensor

from stepweave.executors import hold, run
from stepweave.executors.hold import Holds
from stepweave.executors.run import Executor
from stepweave.graph.errors import StepweaveError
from stepweave.graph.node import Node, Op, OpContext, Place, Read, Value
from stepweave.graph.plan import Plan
from stepweave.graph.planner.bounds import BOUND
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.step_graph import StepGraph, Vertex
from stepweave.testing.devices.delayed_kernels import Allocator, DelayedKernelDevice, DelayedKernels
from stepweave.testing.devices.virtual_streams import Deferred
from stepweave.testing.engines import TinyConfig
from stepweave.testing.graphs import random_step_graph
from tests.device.pipelines import DRAFTERS, requests, served, tiny_on
from tests.executors.tensors import LONG, told

CPU = torch.device("cpu")

# --- the device itself ---


def late_plan(body: Callable[[OpContext], None], value: Value) -> Plan:
    """A device op `make` that writes `v`, and a host op after it."""
    nodes = [
        Node("make", (Op(),), (Op((), ("v",), run=body),), stream="compute"),
        Node("look", (Op((Read("v"),)),)),
    ]
    return compile_plan(StepGraph.build(nodes, [value], order="keep"))


def test_what_is_computed_late_is_what_is_computed_at_once() -> None:
    def sums(x: Tensor) -> list[Tensor]:
        order = x.sum(0).argsort(descending=True)
        picked = x[:, order].clone()
        picked[:, 1:3] = torch.where(x[:, :2] > 4, -1.0, picked[:, 1:3])
        values, places = picked.topk(2, dim=1)
        empty = x.new_zeros(0, 3)
        return [picked, values, places, torch.cat([picked, x]).float() @ x.t()[:, :2], empty]

    x = torch.arange(12.0).view(3, 4)
    for seed in range(20):
        found: list[Tensor] = []

        def body(ctx: OpContext, found: list[Tensor] = found) -> None:
            found += sums(x)

        run(late_plan(body, Value("v", "pinned")), executor=DelayedKernels(seed), steps=1)
        for mine, its in zip(found, sums(x), strict=True):
            assert torch.equal(mine, its)
            assert (mine.stride(), mine.dtype) == (its.stride(), its.dtype)


def test_a_body_returns_before_its_work_is_done_and_a_question_waits_for_it() -> None:
    early: list[list[float]] = []
    asked: list[float] = []
    for seed in range(30):
        target = torch.zeros(2)

        def body(ctx: OpContext, target: Tensor = target) -> None:
            target.add_(1)
            early.append(target.tolist())  # no operation: what is there now
            asked.append(target.sum().item())

        run(late_plan(body, Value("v", "pinned")), executor=DelayedKernels(seed), steps=1)
        assert target.tolist() == [1, 1]
    assert [0, 0] in early
    assert asked == [2] * 30


def test_freed_memory_is_handed_out_at_once_to_the_stream_that_had_it() -> None:
    allocator, like = Allocator(), torch.empty(40, device="meta")

    def place(pool: str) -> int:
        return allocator.tensor(like, pool).data_ptr()  # and it is freed again

    first = place("a")
    assert place("a") == first
    assert place("b") != first
    held = allocator.tensor(like, "a")
    assert held.data_ptr() == first
    view = held[3:].view(-1)
    del held
    assert place("a") != first, "a view keeps it"
    del view
    assert place("a") == first


def test_a_kernel_knows_memory_by_address_and_does_not_keep_it() -> None:
    """So whoever frees a tensor too early has its memory overwritten by the next."""
    device = DelayedKernelDevice(Random(0))
    stream = device.open(["a"], frozenset())["a"]
    seen = torch.zeros(LONG)
    made: list[Tensor] = []

    def body(_: int) -> None:
        made.append(torch.full((LONG,), 1.0))
        seen.copy_(made[0])

    stream.run(body, 0, "a")
    device.close(None)
    assert seen.tolist() == [1] * LONG
    there = made.pop().data_ptr()
    assert device.allocator.tensor(torch.empty(LONG, device="meta"), "a").data_ptr() == there


def test_the_host_copies_its_own_memory_at_once_also_in_a_body() -> None:
    copies: list[float] = []  # what the host copied

    def body(ctx: OpContext) -> None:
        buffer: Tensor = ctx.buffer("v")
        buffer.copy_(torch.ones(1))
        copies.append(buffer.clone().tolist()[0])
        ctx.write("v", buffer)

    value = Value("v", "pinned", "slots", allocate=lambda: torch.zeros(1))
    for seed in range(30):
        run(late_plan(body, value), executor=DelayedKernels(seed), steps=1)
    assert 0 in copies, "the stream had not come by"


def test_what_is_uploaded_is_what_the_host_memory_holds_when_the_stream_comes_by() -> None:
    seen: list[float] = []

    def body(ctx: OpContext) -> None:
        buffer: Tensor = ctx.buffer("v")
        arrived = buffer.to(CPU, copy=True)
        buffer.fill_(1)  # by the host, which should have waited
        ctx.write("w", arrived)
        ctx.write("v", buffer)

    nodes = [Node("make", (Op(),), (Op((), ("v", "w"), run=body),), stream="compute")]
    values = [Value("v", "pinned", "slots", allocate=lambda: torch.zeros(1)), Value("w", "device")]
    plan = compile_plan(StepGraph.build(nodes, values, order="keep"))
    for seed in range(30):
        seen += [
            each.tolist()[0]
            for each in run(plan, executor=DelayedKernels(seed), steps=1, keep=["w"]).kept["w"]
        ]
    assert set(seen) == {0, 1}


# --- random graphs, and how long data live ---


SENSITIVE = (65, 138, 70, 9)  # random graphs in which early freeing shows soon


@cache
def random_plan(seed: int) -> Plan | None:
    """None for a graph without device ops, or without a plan."""
    graph = random_step_graph(seed)
    if not any(vertex.side == "device" for vertex in graph.vertices.values()):
        return None
    try:
        return compile_plan(graph)
    except StepweaveError:
        return None


def wrong(seeds: Iterable[int], chances: int = 3) -> Iterator[str]:
    """The runs that give other data than the serial program."""
    for seed in seeds:
        plan = random_plan(seed)
        if plan is None:
            continue
        expected = told(plan, "serial")
        for chance in range(chances):
            late = DelayedKernels(chance)
            if told(plan, late, partial(late.device.pinned, LONG)) != expected:
                yield f"graph {seed}, chance {chance}"


def test_late_work_in_memory_that_is_used_again_gives_the_serial_data() -> None:
    two_threads_launch = 298  # one of them several ops, which nothing may come between
    assert list(wrong([*SENSITIVE, two_threads_launch, *range(12)], chances=2)) == []


@pytest.mark.nightly
def test_late_work_gives_the_serial_data_on_many_graphs() -> None:
    assert list(wrong(range(400))) == []


@pytest.mark.parametrize("held", [("reads",), ("writes",), ()], ids=str)
def test_data_that_are_held_too_little_are_overwritten(
    held: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a device op reads must be held, and what it writes: each on its own is not enough."""
    keep = Holds.keep

    def kept(self: Holds, vertex: Vertex) -> Callable[[int], None]:
        op = vertex.op
        reads = op.reads if "reads" in held else ()
        writes = op.writes if "writes" in held else ()
        return keep(self, replace(vertex, op=replace(op, reads=reads, writes=writes)))

    monkeypatch.setattr(Holds, "keep", kept)
    assert any(wrong(SENSITIVE, chances=6))


def test_data_that_are_let_go_a_step_too_early_are_overwritten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    points = hold.release_points

    def early(plan: Plan) -> dict[str, tuple[str, int] | None]:
        found = points(plan)
        return {op: None if at is None else (at[0], at[1] - 1) for op, at in found.items()}

    monkeypatch.setattr(hold, "release_points", early)
    assert any(wrong(SENSITIVE, chances=6))


def test_data_that_only_a_bound_lets_go_are_held_so_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    points = hold.release_points

    def early(plan: Plan) -> dict[str, tuple[str, int] | None]:
        found = points(plan)
        return {
            op: (at[0], 0) if at is not None and at[1] > BOUND // 2 else at
            for op, at in found.items()
        }

    monkeypatch.setattr(hold, "release_points", early)
    assert any(wrong(SENSITIVE, chances=6))


# --- versions that the run hands out ---


def counting(place: Place, slots: int) -> Plan:
    """A device op fills the slots' buffers with the number of the step, a host op reads them."""

    def count(ctx: OpContext) -> None:
        buffer: Tensor = ctx.buffer("v")
        buffer.copy_(torch.full((LONG,), ctx.step))
        ctx.write("v", buffer if ctx.step % 4 != 2 else None)

    def look(ctx: OpContext) -> None:
        ctx.write("seen", ctx.step)

    value = Value("v", place, "slots", slots, allocate=lambda: torch.full((LONG,), -1))
    reads = () if place == "device" else (Read("v"),)
    nodes = [
        Node("count", (Op(),), (Op((), ("v",), run=count),), stream="compute"),
        Node("look", (Op(reads, ("seen",), run=look),), offset=min(1, slots - 1)),
    ]
    return compile_plan(StepGraph.build(nodes, [value, Value("seen")], order="keep"))


@pytest.mark.parametrize("slots", [1, 2, 3])
@pytest.mark.parametrize("place", ["pinned", "device"])
def test_a_kept_version_is_copied_when_it_is_complete(place: Place, slots: int) -> None:
    """Not at the launch, when the buffer holds an older one, and not after it is filled again."""
    plan = counting(place, slots)
    expected = [None if step % 4 == 2 else [step] * LONG for step in range(9)]
    executors: list[Executor | str] = ["serial", "threads"]
    executors += [*map(DelayedKernels, range(10)), *map(Deferred, range(10))]
    for executor in executors:
        kept = run(plan, executor=executor, steps=9, keep=["v"]).kept["v"]
        assert [None if each is None else each.tolist() for each in kept] == expected, executor


# --- the shipped pipelines ---


def tokens_on_delayed_kernels(config: TinyConfig, most: int | None, seeds: Iterable[int]) -> None:
    expected = served(
        tiny_on(CPU, replace(config, depth=1), "serial"), requests(config.structured)[:most]
    )
    for seed in seeds:
        engine = tiny_on(CPU, config, DelayedKernels(seed))
        assert served(engine, requests(config.structured)[:most]) == expected, f"seed {seed}"


def test_a_pipeline_on_delayed_kernels_gives_the_serial_tokens() -> None:
    tokens_on_delayed_kernels(replace(DRAFTERS["eagle3"], structured=True), 3, [1])


@pytest.mark.nightly
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("structured", [False, True])
def test_every_drafter_on_delayed_kernels_gives_the_serial_tokens(
    drafter: str, structured: bool
) -> None:
    for depth in (2, 3):
        config = replace(DRAFTERS[drafter], structured=structured, depth=depth)
        tokens_on_delayed_kernels(config, None, range(3))
