"""Captures by CUDA's rules, on tapes: one that fails, or is left open, costs a graph only."""

from __future__ import annotations

import gc
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import pytest
import torch
from torch import Tensor

from stepweave.executors import NodeFailure, run
from stepweave.executors.capture import Captures
from stepweave.executors.captured_segment import IDLE
from stepweave.executors.threads import OnThreads
from stepweave.graph.node import Node, Op, OpContext, Read, Value
from stepweave.graph.plan import Plan
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.step_graph import StepGraph
from stepweave.testing.devices.recorded_calls import Place, RecordedCalls
from tests.executors.test_capture import STEPS, add, carry, counts, outs, pipeline
from tests.memory import settle


def captures(device: RecordedCalls) -> Captures:
    assert device.captures is not None
    return device.captures


# --- a capture that fails


@pytest.mark.parametrize("where", ["within", "at its end", "at its begin"])
def test_after_a_failed_capture_later_steps_are_captured(where: Place | Literal["within"]) -> None:
    """CUDA takes no capture in the pool of one that failed."""
    asks = [where == "within"]

    def fails_at_first(ctx: OpContext) -> None:
        if asks[0]:
            ctx.read("sum").sum().item()  # no graph can hold this question
        carry(ctx)

    def factor(step: int) -> int:
        asks[0] = asks[0] and step < 7
        return 2 if step < 7 else 3

    device, plan = RecordedCalls(graphs=True), pipeline(carry=fails_at_first, factor=factor)
    if where != "within":
        device.failing = {"compute": where}
    assert outs(plan, device) == outs(plan)
    found = counts(device)
    assert sum(n for reason, n in found.eager.items() if "cannot be captured" in reason) > 0
    assert found.captured > 0
    assert found.replayed > 0
    assert "compute" in device.pools_in_capture, "it is left as it was"


# --- a capture that nobody ends


def interrupted(fails: threading.Event, device: RecordedCalls) -> Plan:
    """add → carry, captured as one; the worker fails when the capture of `add` is under way."""

    def add_and_wait(ctx: OpContext) -> None:
        add(ctx)
        if device.capturing and not fails.is_set():
            fails.set()
            for thread in threading.enumerate():
                if thread.name == "stepweave-worker":
                    thread.join(60)  # its failure has ended the run by then

    def fail(ctx: OpContext) -> None:
        if not once:
            once.append(fails.wait(60))
            raise ValueError("boom")

    once: list[bool] = []
    return pipeline(add=add_and_wait, beside=Node("worker", (Op(run=fail),), actor="worker"))


def test_a_capture_is_ended_where_the_run_ends_between_two_ops_of_it() -> None:
    device = RecordedCalls(graphs=True)
    plan = interrupted(threading.Event(), device)
    with pytest.raises(NodeFailure, match=r"'worker'.*ValueError: boom"):
        outs(plan, device)
    assert device.capturing == {}
    assert gc.isenabled()
    assert outs(plan, device) == outs(pipeline())
    assert counts(device).replayed > 0


# --- what is stamped


def test_a_traced_run_has_all_its_times_though_it_captures() -> None:
    device, plan = RecordedCalls(graphs=True), pipeline()
    states = {"memory": torch.zeros(())}
    events = run(plan, executor=device, steps=STEPS, states=states, trace=True).events
    assert counts(device).captured > 0
    by_op = {op: [e for e in events if e.op == op] for op in ("add.device", "carry.device")}
    assert {op: len(found) for op, found in by_op.items()} == {op: STEPS for op in by_op}
    for first, second in zip(*by_op.values(), strict=True):
        assert first.start_s <= first.end_s <= second.start_s <= second.end_s


def test_a_step_whose_capture_fails_has_its_times_too() -> None:
    def asks(ctx: OpContext) -> None:
        ctx.read("sum").sum().item()
        carry(ctx)

    device, states = RecordedCalls(graphs=True), {"memory": torch.zeros(())}
    plan = pipeline(carry=asks)
    events = run(plan, executor=device, steps=STEPS, states=states, trace=True).events
    assert counts(device).captured == 0
    assert sum(event.op == "carry.device" for event in events) == STEPS


# --- memory


@dataclass(frozen=True)
class Sized:
    numbers: int
    one_off: bool


def with_a_larger_datum_in_each_run(numbers: int) -> Plan:
    """In the first step of a run, which is never captured; all others are of one size."""
    runs = [0]

    def stage(ctx: OpContext) -> None:
        runs[0] += ctx.step == 0
        ctx.write("size", Sized(numbers * runs[0], True) if ctx.step == 0 else Sized(3, False))

    def make(ctx: OpContext) -> None:
        made = torch.full((ctx.read("size").numbers,), 1.0)
        ctx.state("memory").add_(made.sum())
        ctx.write("made", made)

    def use(ctx: OpContext) -> None:
        ctx.write("out", ctx.buffer("out").copy_(ctx.read("made").sum()))

    nodes = [
        Node(
            "make",
            (Op(writes=("size",), run=stage),),
            (Op((Read("size"), Read("memory")), ("made", "memory"), run=make),),
            stream="compute",
        ),
        Node("use", (Op(),), (Op((Read("made"),), ("out",), run=use),), stream="copy"),
        Node("settle", (Op((Read("out"),)),), offset=1),
    ]
    values = [
        Value("size", "pinned", "slots"),
        Value("made", "device", "slots"),
        Value("out", "pinned", "slots", allocate=lambda: torch.zeros(1000)),
    ]
    return compile_plan(StepGraph.build(nodes, values, ["memory"], order="keep"))


def held() -> int:
    """Bytes of all tensors that there are, garbage that nobody has collected included."""
    tensors = [each for each in gc.get_objects() if issubclass(type(each), Tensor)]
    sizes: dict[int, int] = {}
    for tensor in tensors:
        with suppress(RuntimeError):  # a wrapper of another test has no memory of its own
            storage = tensor.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
    return sum(sizes.values())


@pytest.mark.parametrize("graphs", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_memory_does_not_grow_from_run_to_run(graphs: bool) -> None:
    """The collector does not know of a device's memory: what is left to it may as well be lost."""
    plan, memory = with_a_larger_datum_in_each_run(100_000), torch.zeros(())
    device = RecordedCalls(graphs=graphs)
    settle()
    gc.disable()
    try:
        found = []
        for turn in range(8):
            run(plan, executor=device, steps=STEPS, states={"memory": memory})
            if turn in (0, 7):  # looking at all objects of the process takes long
                found.append(held())
    finally:
        gc.enable()
    assert max(found) - found[0] < 1000, [n - found[0] for n in found]
    if graphs:
        assert captures(device).where.nbytes < 1000
        assert all(each.replayed > STEPS for each in captures(device).counts.values())


# --- steps with nothing to do


def test_idle_steps_are_not_captured_as_empty_graphs() -> None:
    def stage(ctx: OpContext) -> None:
        ctx.write("size", Sized(3, False) if ctx.step % 3 else None)

    def make(ctx: OpContext) -> None:
        size = ctx.read("size")
        ctx.write("made", None if size is None else torch.full((size.numbers,), 1.0))

    nodes = [
        Node(
            "make",
            (Op(writes=("size",), run=stage),),
            (Op((Read("size"),), ("made",), run=make),),
            stream="compute",
        ),
    ]
    values = [Value("size", "pinned", "slots", slots=1), Value("made", "device", "slots", slots=1)]
    device = RecordedCalls(graphs=True)
    run(compile_plan(StepGraph.build(nodes, values, order="keep")), executor=device, steps=24)
    assert counts(device).captured == 1
    assert counts(device).eager == {"first of its shape": 2, IDLE: 7}
    assert device.empty_captures == 0


def only_changing(memory: Tensor) -> tuple[Plan, dict[str, object]]:
    """An op whose result is the next version of a state; in every third step it has none."""

    def stage(ctx: OpContext) -> None:
        ctx.write("size", Sized(3, False) if ctx.step % 3 else None)

    def change(ctx: OpContext) -> None:
        size, held = ctx.read("size"), ctx.state("memory")
        if size is not None:
            held.mul_(2).add_(size.numbers)

    nodes = [
        Node(
            "change",
            (Op(writes=("size",), run=stage),),
            (Op((Read("size"), Read("memory")), ("memory",), run=change),),
            stream="compute",
        ),
    ]
    plan = StepGraph.build(nodes, [Value("size", "pinned", "slots", slots=1)], ["memory"])
    return compile_plan(plan), {"memory": memory}


@pytest.mark.parametrize("device", [RecordedCalls(graphs=True), OnThreads()], ids=["tape", "cpu"])
def test_an_op_that_only_changes_a_state_is_replayed(
    device: RecordedCalls | OnThreads,
) -> None:
    expected, memory = torch.zeros(2), torch.zeros(2)
    plan, states = only_changing(expected)
    run(plan, executor="serial", steps=24, states=states)
    plan, states = only_changing(memory)
    run(plan, executor=device, steps=24, states=states)
    assert memory.equal(expected)
    assert device.captures is not None
    [found] = device.captures.counts.values()
    assert (found.captured, found.replayed) == (1, 14), "of 16 steps with something to do"
    assert found.eager == {"first of its shape": 2, IDLE: 7}
    if isinstance(device, RecordedCalls):
        assert device.empty_captures == 0


# --- versions that a run returns


@pytest.mark.parametrize("storage", ["slots", "fresh"])
@pytest.mark.parametrize("name", ["sum", "total", "out"])
def test_versions_that_are_kept_are_those_of_their_steps(name: str, storage: str) -> None:
    """A graph brings every version of a value to the same places."""
    plan = pipeline(storage=storage)

    def kept(executor: object) -> list[object]:
        states = {"memory": torch.zeros(())}
        report = run(plan, executor=executor, steps=STEPS, states=states, keep=[name])  # type: ignore[arg-type]
        return [version.tolist() for version in report.kept[name]]

    device = RecordedCalls(graphs=True)
    assert kept(device) == kept("serial")
    assert (counts(device).replayed > 0) == (storage == "slots")


def passed_on(storage: str, carried: bool) -> Plan:
    """`make` → `again`, which publishes the very tensor that it reads → `use`, an iteration later.

    So `use` reads it when `make` has already filled the one slot of `made` again.
    """

    def stage(ctx: OpContext) -> None:
        ctx.write("number", ctx.buffer("number").fill_(ctx.step))

    def make(ctx: OpContext) -> None:
        ctx.write("made", ctx.read("number") * 2)

    def again(ctx: OpContext) -> None:
        ctx.write("passed", ctx.read("made"))

    def use(ctx: OpContext) -> None:
        ctx.write("out", ctx.buffer("out").copy_(ctx.read("passed")))

    nodes = [
        Node(
            "make",
            (Op(writes=("number",), run=stage),),
            (Op((Read("number"),), ("made",), run=make),),
            stream="compute",
        ),
        Node("again", (Op(),), (Op((Read("made"),), ("passed",), run=again),), stream="beside"),
        Node("use", (Op(),), (Op((Read("passed"),), ("out",), run=use),), stream="copy", offset=1),
        Node("settle", (Op((Read("out"),)),), offset=2),
    ]
    initial = torch.zeros(3) if carried else None
    values = [
        Value("number", "pinned", "slots", allocate=lambda: torch.zeros(3), slots=2),
        Value("made", "device", "slots", slots=1),
        Value("passed", "device", storage, initial=initial),  # type: ignore[arg-type]
        Value("out", "pinned", "slots", allocate=lambda: torch.zeros(3)),
    ]
    return compile_plan(StepGraph.build(nodes, values, order="keep"))


@pytest.mark.parametrize("carried", [False, True])
@pytest.mark.parametrize("storage", ["slots", "fresh"])
def test_what_an_op_passes_on_is_not_written_over_under_its_new_name(
    storage: str, carried: bool
) -> None:
    """A tensor that nobody writes again may be shared; one in a static slot is written again."""
    plan, device = passed_on(storage, carried), RecordedCalls(graphs=True)
    report = run(plan, executor=device, steps=STEPS, keep=["passed", "out"])
    for kept in report.kept.values():
        assert [version.tolist() for version in kept] == [[2 * n] * 3 for n in range(STEPS)]
    assert any(each.replayed > 4 for each in captures(device).counts.values())
