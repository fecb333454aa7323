"""Captured segments, on tapes: what a CUDA graph knows and does not know, without CUDA."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from stepweave.backends.streams import CannotCapture
from stepweave.executors import captured_segment, run
from stepweave.executors.capture import Captures
from stepweave.executors.counts import Counts
from stepweave.graph.node import Node, Op, OpContext, Read, Run, Value
from stepweave.graph.plan import Plan
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.step_graph import StepGraph
from stepweave.testing.devices.emulated_graph import EmulatedGraph
from stepweave.testing.devices.recorded_calls import RecordedCalls

STEPS = 12


@dataclass(frozen=True)
class Staged:
    """A pinned buffer, and a number that the host knows."""

    numbers: Tensor
    factor: int


def add(ctx: OpContext) -> None:
    staged: Staged = ctx.read("staging")
    total: Tensor = ctx.read("total")
    memory: Tensor = ctx.state("memory")
    memory.add_(staged.numbers.sum())
    ctx.write("sum", staged.numbers.clone() * staged.factor + total)


def carry(ctx: OpContext) -> None:
    ctx.write("total", ctx.read("sum") + ctx.state("memory"))


def pipeline(
    *,
    add: Run = add,
    carry: Run = carry,
    factor: Callable[[int], int] = lambda step: 2,
    storage: str = "slots",
    slots: int | None = None,
    beside: Node | None = None,
    behind: int = 1,
) -> Plan:
    """stage (host) → add → carry (device), the total being carried; copied back and kept.

    `beside`: a node that has nothing to do with them. `behind`: by how many steps a step is settled
    after the next has begun.
    """

    def stage(ctx: OpContext) -> None:
        held = ctx.buffer("staging")
        numbers: Tensor = held.numbers
        numbers.copy_(torch.arange(3) + ctx.step)
        ctx.write("staging", Staged(numbers, factor(ctx.step)))

    def copy(ctx: OpContext) -> None:
        out: Tensor = ctx.buffer("out")
        ctx.write("out", out.copy_(ctx.read("total")))

    nodes = [
        Node(
            "add",
            (Op(writes=("staging",), run=stage),),
            (Op((Read("staging"), Read("total", 1), Read("memory")), ("sum", "memory"), run=add),),
            stream="compute",
        ),
        Node(
            "carry",
            (Op(),),
            (Op((Read("sum"), Read("memory")), ("total",), run=carry),),
            stream="compute",
        ),
        Node("copy", (Op(),), (Op((Read("total"),), ("out",), run=copy),), stream="compute"),
        Node("settle", (Op((Read("out"),)),), offset=behind),
        *([] if beside is None else [beside]),
    ]
    values = [
        Value(
            "staging", "pinned", "slots", allocate=lambda: Staged(torch.zeros(3), 0), slots=slots
        ),
        Value("sum", "device", storage),  # type: ignore[arg-type]
        Value("total", "device", "slots", initial=torch.zeros(3)),
        Value("out", "pinned", "slots", allocate=lambda: torch.zeros(3)),
    ]
    return compile_plan(StepGraph.build(nodes, values, ["memory"], order="keep"))


def outs(plan: Plan, executor: object = "serial", *, memory: Tensor | None = None) -> list[object]:
    states = {"memory": torch.zeros(()) if memory is None else memory}
    kept = run(plan, executor=executor, steps=STEPS, states=states, keep=["out"]).kept["out"]  # type: ignore[arg-type]
    return [out.tolist() for out in kept]


def settled(device: RecordedCalls) -> set[str]:
    """The values that lie in static slots."""
    assert device.captures is not None
    names: list[Any] = [name for name, _, _ in device.captures.where._slots]
    return {value for _, value in names}


def counts(device: RecordedCalls) -> Counts:
    assert device.captures is not None
    [counts] = device.captures.counts.values()
    return counts


def test_only_what_is_read_outside_a_segment_is_copied_to_its_slot() -> None:
    """`sum` is read by `carry` alone, in the same graph; whoever keeps it reads it outside."""
    plan, device = pipeline(slots=2), RecordedCalls(graphs=True)
    assert outs(plan, device) == outs(plan)
    assert settled(device) == {"total"}
    last, wanted = (
        run(plan, executor=each, steps=STEPS, states={"memory": torch.zeros(())}, keep=["sum"])
        for each in (device, "serial")
    )
    assert torch.equal(last.kept["sum"][-1], wanted.kept["sum"][-1])
    assert settled(device) == {"total", "sum"}
    assert counts(device).replayed > STEPS


def test_replayed_steps_compute_what_the_serial_program_computes() -> None:
    plan = pipeline(slots=2)
    device = RecordedCalls(graphs=True)
    expected = outs(plan)
    assert outs(plan, device) == expected
    first = counts(device)
    assert first.captured == 2, "one for each slot of the pinned buffer"
    assert first.replayed == STEPS - sum(first.eager.values()) - 2 >= 4
    memory = torch.zeros(())
    again = RecordedCalls(graphs=True)
    assert outs(plan, again, memory=memory) == expected
    memory.zero_()
    assert outs(plan, again, memory=memory) == expected
    assert counts(again).captured == 2, "captures, and the buffers they know, live on"
    assert counts(again).replayed == 2 * STEPS - sum(counts(again).eager.values()) - 2


def test_a_replay_runs_no_python() -> None:
    ran: list[int] = []

    def noted(ctx: OpContext) -> None:
        ran.append(1)
        add(ctx)

    device = RecordedCalls(graphs=True)
    plan = pipeline(add=noted)
    assert outs(plan, device) == outs(pipeline())
    assert len(ran) == counts(device).captured + sum(counts(device).eager.values()) < STEPS


def test_a_number_that_the_host_changes_is_never_replayed_with_an_old_one() -> None:
    for factor in (lambda step: step, lambda step: 2 + (step % 5 == 4), lambda step: step // 8):
        plan = pipeline(factor=factor)
        device = RecordedCalls(graphs=True)
        assert outs(plan, device) == outs(plan)
    assert counts(device).replayed > 0
    device = RecordedCalls(graphs=True)
    outs(pipeline(factor=lambda step: step), device)
    assert counts(device).replayed == counts(device).captured == 0


def test_other_states_are_not_those_that_were_captured() -> None:
    plan = pipeline()
    device = RecordedCalls(graphs=True)
    expected = outs(plan)
    for _ in range(3):
        assert outs(plan, device) == expected, "each run has a memory of its own"
    assert counts(device).captured == 3 * counts(device).captured // 3 > 2


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (lambda ctx: carry(ctx) if ctx.step + 1 else None, "'carry.device' uses the number of"),
        (
            lambda ctx: carry(ctx) if ctx.read("sum").sum().item() else None,
            "Tensor.item gives",
        ),
        (lambda ctx: ctx.stop() if ctx.read("sum").shape[0] == 0 else carry(ctx), ""),
    ],
)
def test_what_cannot_be_captured_runs_as_usual_and_is_said_aloud(wrong: Run, reason: str) -> None:
    plan = pipeline(carry=wrong)
    device = RecordedCalls(graphs=True)
    assert outs(plan, device) == outs(pipeline()), "nothing is done twice, nothing is left out"
    assert device.captures is not None
    if reason:
        assert counts(device).replayed == 0
        [note] = device.captures.notes()
        assert "add → carry → copy" in note
        assert reason in note
    else:
        assert counts(device).replayed > 0


def test_a_segment_with_a_fresh_value_is_never_captured() -> None:
    device = RecordedCalls(graphs=True)
    plan = pipeline(storage="fresh")
    assert outs(plan, device) == outs(plan)
    assert counts(device).eager == {"sum is fresh in each step": STEPS}


def test_there_is_a_limit_to_captures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captured_segment, "LIMIT", 1)
    device = RecordedCalls(graphs=True)
    plan = pipeline(slots=2)
    assert outs(plan, device) == outs(plan)
    assert counts(device).captured == 1
    assert any("captured already" in reason for reason in counts(device).eager)


def test_an_error_of_a_body_is_an_error_whether_it_is_captured_or_not() -> None:
    def fail(ctx: OpContext) -> None:
        total = ctx.read("sum")
        if float(total.clone().untyped_storage()[0]) == -1:
            raise AssertionError
        raise ValueError("boom")

    from stepweave.executors import NodeFailure

    with pytest.raises(NodeFailure, match="ValueError: boom"):
        outs(pipeline(carry=fail), RecordedCalls(graphs=True))


def test_a_graph_without_a_gpu_does_the_same_operations_on_the_same_memory() -> None:
    a, b, c = torch.arange(4.0), torch.zeros(4), torch.zeros(6)
    graph = EmulatedGraph()
    with graph.capture():
        view = a[1:3]
        b[1:3] += view * 2
        inner = torch.cat([view, b])
        c.copy_(inner)
    assert b.tolist() == [0, 2, 4, 0], "the work of the capture is done"
    a.fill_(1)
    graph.replay()
    assert b.tolist() == [0, 4, 6, 0]
    assert c.tolist() == [1, 1, 0, 4, 6, 0], "results lie where the first ones lay"
    assert inner.isnan().all(), "in memory that other graphs work in too"


def test_a_tape_refuses_what_the_host_would_wait_for() -> None:
    for ask in (lambda x: x.sum().item(), lambda x: x.nonzero(), lambda x: x[x > 1]):
        with pytest.raises(CannotCapture), EmulatedGraph().capture():
            ask(torch.arange(3))  # type: ignore[no-untyped-call]


def test_captures_belong_to_one_plan() -> None:
    device = RecordedCalls(graphs=True)
    outs(pipeline(), device)
    before = device.captures
    outs(pipeline(), device)
    assert isinstance(before, Captures)
    assert device.captures is not before


def test_a_step_that_writes_nothing_leaves_nothing_of_an_earlier_one() -> None:
    """An optional value: in every third step there is none, captured or not."""
    seen: list[object] = []

    def maybe(ctx: OpContext) -> None:
        staged: Staged = ctx.read("staging")
        if staged.factor:
            ctx.write("extra", staged.numbers.clone())

    def stage(ctx: OpContext) -> None:
        held: Staged = ctx.buffer("staging")
        held.numbers.fill_(ctx.step)
        ctx.write("staging", Staged(held.numbers, ctx.step % 3))

    def copy(ctx: OpContext) -> None:
        extra = ctx.read("extra")
        if extra is not None:
            ctx.write("out", ctx.buffer("out").copy_(extra))

    def settle(ctx: OpContext) -> None:
        out = ctx.read("out")
        seen.append(None if out is None else out.tolist())

    nodes = [
        Node(
            "maybe",
            (Op(writes=("staging",), run=stage),),
            (Op((Read("staging"),), ("extra",), run=maybe),),
            stream="compute",
        ),
        Node("copy", (Op(),), (Op((Read("extra"),), ("out",), run=copy),), stream="copy"),
        Node("settle", (Op((Read("out"),), run=settle),), offset=1),
    ]
    values = [
        Value("staging", "pinned", "slots", allocate=lambda: Staged(torch.zeros(3), 0)),
        Value("extra", "device", "slots"),
        Value("out", "pinned", "slots", allocate=lambda: torch.zeros(3)),
    ]
    plan = compile_plan(StepGraph.build(nodes, values, order="keep"))
    device = RecordedCalls(graphs=True)
    run(plan, executor=device, steps=24)
    assert seen == [[step] * 3 if step % 3 else None for step in range(24)]
    assert device.captures is not None
    assert all(each.replayed > 0 for each in device.captures.counts.values())


def test_a_graph_fills_the_slot_of_its_step_and_no_other() -> None:
    """All that the body sees is one state; what differs from step to step is where it writes."""

    def count_up(ctx: OpContext) -> None:
        memory: Tensor = ctx.state("memory")
        ctx.write("total", memory.add_(1).clone())

    def copy(ctx: OpContext) -> None:
        ctx.write("out", ctx.buffer("out").copy_(ctx.read("total@-1")))

    nodes = [
        Node(
            "count",
            (Op(),),
            (Op((Read("memory"),), ("memory", "total"), run=count_up),),
            stream="compute",
        ),
        Node("copy", (Op(),), (Op((Read("total", 1),), ("out",), run=copy),), stream="copy"),
        Node("settle", (Op((Read("out"),)),), offset=1),
    ]
    values = [
        Value("total", "device", "slots", initial=torch.zeros(())),
        Value("out", "pinned", "slots", allocate=lambda: torch.zeros(())),
    ]
    plan = compile_plan(StepGraph.build(nodes, values, ["memory"], order="keep"))
    assert (plan.slots["total"] or 0) >= 2
    device = RecordedCalls(graphs=True)
    assert outs(plan, device) == list(range(STEPS))
    assert device.captures is not None
    counted, _ = device.captures.counts.values()
    assert counted.captured == plan.slots["total"]
    assert counted.replayed > 0
