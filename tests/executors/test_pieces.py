"""Ops in pieces, on tapes with CUDA's rules and as recordings of a CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from stepweave.backends import cuda_streams
from stepweave.executors import pieces as of_ops
from stepweave.executors import run, threads
from stepweave.executors.counts import Counts
from stepweave.executors.on_streams import OnStreams
from stepweave.executors.pieces import OpPieces
from stepweave.executors.terms import Terms
from stepweave.executors.threads import OnThreads
from stepweave.graph.node import Node, Op, OpContext, Read, Value
from stepweave.graph.pieces import Between
from stepweave.graph.plan import Plan
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.step_graph import StepGraph
from stepweave.testing.devices.recorded_calls import RecordedCalls
from tests.device.fake_cuda import FakeCuda

STEPS = 24
LARGEST = 32
WIDTH = 3


@dataclass
class Text:
    """What a step computes on: of other length each time, and never to be seen again."""

    numbers: Tensor  # [n, WIDTH]
    ends: tuple[int, ...]  # where its rows end
    one_off: bool = True


@dataclass
class Work:
    """A model in small: products of every line, and sums of rows between them."""

    weights: Tensor = field(default_factory=lambda: torch.eye(WIDTH) * 2)
    ran: list[int] = field(default_factory=list)  # lines of each call of the work itself
    summed: list[tuple[int, ...]] = field(default_factory=list)
    asks: bool = False
    no_room_at: int | None = None  # of its calls, the one that finds no memory

    def __call__(self, tensors: Sequence[Tensor], between: Between) -> tuple[Tensor, Tensor]:
        [x] = tensors
        self.ran.append(len(x))
        if len(self.ran) == self.no_room_at:
            raise torch.OutOfMemoryError("CUDA out of memory")
        for _ in range(2):
            x = x @ self.weights + 1
            out = torch.zeros_like(x)
            between(self.sums, out, x)
            x = x + out
        if self.asks and x.sum().item() > 0:
            x = x * 1
        return x, x.sum(dim=1)

    def sums(self, text: Text, out: Tensor, x: Tensor) -> None:
        """Each line of a row gets the sum of the row, which is not for a graph: it asks."""
        self.summed.append(text.ends)
        begin = 0
        for end in text.ends:
            out[begin:end] = float(x[begin:end].sum())
            begin = end


def pipeline(work: Work, lengths: Callable[[int], int] | None = None) -> Plan:
    """stage (host) → think (device) → copy, which are kept."""

    def length(step: int) -> int:
        return Random(step).randrange(2, LARGEST + 9)

    def stage(ctx: OpContext) -> None:
        count = (lengths or length)(ctx.step)
        numbers = torch.arange(count * WIDTH).view(count, WIDTH).remainder(7).float() + ctx.step
        ctx.write("text", Text(numbers, (1, count // 2 + 1, count)[count < 3 :]))

    def think(ctx: OpContext) -> None:
        text: Text = ctx.read("text")
        x = text.numbers
        size = None if ctx.pieces is None else ctx.pieces.size(len(x))
        found = None
        if ctx.pieces is not None and size is not None:
            found = ctx.pieces.run("think", [(x, size)], text, work)
        if found is None:
            found = work([x], lambda call, *touched: call(text, *touched))
        ctx.write("thought", tuple(each[: len(x)].clone() for each in found))

    def copy(ctx: OpContext) -> None:
        ctx.write("out", [each.tolist() for each in ctx.read("thought")])

    nodes = [
        Node(
            "think",
            (Op(writes=("text",), run=stage),),
            (Op((Read("text"),), ("thought",), run=think),),
            stream="compute",
        ),
        Node("copy", (Op(),), (Op((Read("thought"),), ("out",), run=copy),), stream="compute"),
        Node("settle", (Op((Read("out"),)),), offset=1),
    ]
    values = [
        Value("text", "pinned", "slots"),
        Value("thought", "device", "slots"),
        Value("out", "pinned", "slots"),
    ]
    return compile_plan(StepGraph.build(nodes, values, order="keep"))


def outs(plan: Plan, executor: object = "serial", steps: int = STEPS) -> list[Any]:
    return list(run(plan, executor=executor, steps=steps, keep=["out"]).kept["out"])  # type: ignore[arg-type]


def think(executor: RecordedCalls | OnThreads | OnStreams) -> Counts:
    assert executor.captures is not None
    return executor.captures.pieces["think.device"]


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    monkeypatch.setattr(cuda_streams, "_FAILED", [])
    monkeypatch.setattr(threads, "USUAL", 1)
    standing = FakeCuda()
    with standing.in_place():
        yield standing


@pytest.mark.parametrize("on", [RecordedCalls, OnThreads, OnStreams])
def test_steps_of_any_length_give_what_the_serial_program_gives(
    cuda: FakeCuda, on: Callable[..., Any]
) -> None:
    """Tapes, recordings of a CPU, and what CUDA is asked for."""
    executor = on("cuda:1", graphs=True) if on is OnStreams else on()
    executor.pieces, executor.graphs = LARGEST, True
    work = Work()
    expected = outs(pipeline(Work()))
    assert outs(pipeline(work), executor) == expected
    found = think(executor)
    assert found.replayed > 0
    assert found.captured > 1
    # Its Python runs twice for a recording, and in steps of which there is none.
    assert len(work.ran) == STEPS - found.replayed + found.captured
    assert len(work.summed) == 2 * (STEPS + found.captured), "the calls between are made each time"
    if on is OnStreams:
        assert len(cuda.graphs) == 3 * found.captured, "one before, between and behind two calls"
        assert len(cuda.pools) == 1
        assert cuda.allocating == []


def test_what_calls_between_are_told_is_that_of_their_step() -> None:
    work, device = Work(), RecordedCalls(graphs=True, pieces=LARGEST)
    plan = pipeline(work, lambda step: 2 + step % 15)
    assert outs(plan, device) == outs(pipeline(Work(), lambda step: 2 + step % 15))
    assert think(device).captured == 1
    assert think(device).replayed == STEPS - 2
    assert len(set(work.summed)) == 15


@pytest.mark.parametrize("where", ["within", "at its begin", "at its end"])
def test_a_failed_recording_costs_no_step(where: Any) -> None:
    """The step's work was done once as usual before; later sizes are recorded in another pool."""
    work, device = Work(asks=where == "within"), RecordedCalls(graphs=True, pieces=LARGEST)

    def length(step: int) -> int:
        if step > 5:
            work.asks = False
        return 9 if step <= 5 else 20

    if where != "within":
        device.failing = {"compute": where}
    assert outs(pipeline(work, length), device) == outs(pipeline(Work(), length))
    found = think(device)
    [(reason, _)] = [each for each in found.eager.items() if "seldom" not in each[0]]
    wanted = "gives the numbers of a tensor" if where == "within" else "error during capture"
    assert wanted in reason
    assert found.captured == 1, "of the size that came later"
    assert found.replayed > 0
    assert device.capturing == {}


def test_a_size_that_had_no_memory_is_recorded_another_time() -> None:
    # The second step is the first to be recorded, after it was done as usual.
    work, device = Work(no_room_at=3), RecordedCalls(graphs=True, pieces=LARGEST)
    assert outs(pipeline(work, lambda step: 9), device) == outs(pipeline(Work(), lambda step: 9))
    found = think(device)
    assert found.captured == 1
    assert [reason for reason in found.eager if "seldom" not in reason] == [
        "cannot be captured: OutOfMemoryError: CUDA out of memory"
    ]
    assert found.replayed == STEPS - found.captured - sum(found.eager.values()) > 10
    assert device.capturing == {}


def test_there_is_a_limit_to_recordings_and_to_their_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(of_ops, "LIMIT", 2)
    device = RecordedCalls(graphs=True, pieces=LARGEST)

    def length(step: int) -> int:
        return (30, 16, 28, 24, 20)[step % 5]

    assert outs(pipeline(Work(), length), device) == outs(pipeline(Work(), length))
    found = think(device)
    assert found.captured == 2
    assert found.eager["2 sizes are recorded already"] == STEPS - 5 - found.captured - (
        found.replayed
    )
    assert device.captures is not None
    slots = device.captures.where
    assert slots.nbytes == LARGEST * (WIDTH + 1) * 4, "what all come to lies in one place"
    [note] = [each for each in device.captures.notes() if "in pieces" in each]
    assert note.startswith(f"think: {found.replayed} of {STEPS} passes beside ")


def test_a_recording_that_was_long_not_used_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_ops, "LIMIT", 2)
    monkeypatch.setattr(of_ops, "LEFT", 6)
    device = RecordedCalls(graphs=True, pieces=LARGEST)

    def length(step: int) -> int:
        """Two sizes, then the first of them and another."""
        return (30, 16)[step % 2] if step < 8 else (30, 24)[step % 2]

    assert outs(pipeline(Work(), length), device) == outs(pipeline(Work(), length))
    found = think(device)
    assert found.captured == 3
    waited = found.eager.pop("2 sizes are recorded already")
    assert 0 < waited < (STEPS - 8) // 2, "for a while only"
    assert sum(found.eager.values()) == 3, "each of three when it first came up"
    assert found.replayed == STEPS - 3 - 3 - waited


def test_sizes_are_few_and_waste_little() -> None:
    pieces = OpPieces("think", "compute", Terms(largest=512))
    sizes = [pieces.size(count) for count in range(1, 513)]
    assert len(set(sizes)) == 21
    for count, size in enumerate(sizes, start=1):
        assert size is not None
        assert count <= size <= max(16, count * 5 / 4)
    assert pieces.size(513) is None


def test_a_step_that_is_captured_as_a_whole_is_not_recorded_in_pieces() -> None:
    """No capture may begin within another."""
    seen: list[bool] = []

    def body(ctx: OpContext) -> None:
        seen.append(ctx.pieces is None)
        ctx.write("total", ctx.read("total@-1") + 1)

    nodes = [
        Node(
            "add",
            (Op(),),
            (Op((Read("total", 1),), ("total",), run=body),),
            stream="compute",
        ),
        Node("copy", (Op(),), (Op((Read("total"),), ("out",), run=_copied),), stream="compute"),
        Node("settle", (Op((Read("out"),)),), offset=1),
    ]
    values = [
        Value("total", "device", "slots", initial=torch.zeros(3)),
        Value("out", "pinned", "slots", allocate=lambda: torch.zeros(3)),
    ]
    plan = compile_plan(StepGraph.build(nodes, values, order="keep"))
    device = RecordedCalls(graphs=True, pieces=LARGEST)
    run(plan, executor=device, steps=STEPS)
    assert device.captures is not None
    [counts] = device.captures.counts.values()
    assert counts.captured > 0
    assert seen.count(True) == counts.captured
    assert seen.count(False) == sum(counts.eager.values())
    run(plan, executor="serial", steps=2)
    assert seen[-2:] == [True, True], "nothing records there"


def _copied(ctx: OpContext) -> None:
    ctx.write("out", ctx.buffer("out").copy_(ctx.read("total")))
