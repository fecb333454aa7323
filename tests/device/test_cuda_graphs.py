"""Captures as they are asked of torch, on a `torch.cuda` whose graphs are tapes."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest
import torch

from stepweave.backends import cuda_streams
from stepweave.executors import NodeFailure, run
from stepweave.executors.counts import Counts
from stepweave.executors.on_streams import OnStreams
from stepweave.graph.node import Node, Op, OpContext
from stepweave.graph.plan import Plan
from tests.device.fake_cuda import FakeCuda, FakeEvent, FakeStream
from tests.executors.test_capture import STEPS, add, carry, outs, pipeline


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    monkeypatch.setattr(cuda_streams, "_FAILED", [])
    standing = FakeCuda()
    with standing.in_place():
        yield standing
    assert gc.isenabled()
    assert not any(stream.capturing for stream in standing.streams)


def counts(executor: OnStreams) -> Counts:
    assert executor.captures is not None
    [found] = executor.captures.counts.values()
    return found


def test_graphs_of_one_stream_work_in_one_pool_and_give_what_the_serial_program_gives(
    cuda: FakeCuda,
) -> None:
    executor, plan = OnStreams("cuda:1", graphs=True), pipeline(slots=2)
    assert outs(plan, executor) == outs(plan)
    assert counts(executor).replayed > 0
    assert len(cuda.graphs) == counts(executor).captured == 2
    assert len(cuda.pools) == 1
    assert cuda.allocating == cuda.released == []


def test_graphs_work_in_memory_that_nobody_else_frees(cuda: FakeCuda) -> None:
    """`torch.compile` has the workspaces of all streams freed around captures of its own."""

    def factor(step: int) -> int:
        if step == STEPS - 3:
            captured.append(len(cuda.graphs))
            torch._C._cuda_clearCublasWorkspaces()
        return 2

    captured: list[int] = []
    executor, plan = OnStreams("cuda:1", graphs=True), pipeline(slots=2, factor=factor)
    assert outs(plan, executor) == outs(pipeline())
    assert captured[0] == len(cuda.graphs) == 2, "the last steps are replayed"
    assert {stream.multiply().pool for stream in cuda.streams} == {None}


def test_a_pool_whose_graphs_have_gone_is_not_used_again(cuda: FakeCuda) -> None:
    """Each run of this plan has states of its own, and gives up what was captured on others."""
    executor, plan = OnStreams("cuda:1", graphs=True), pipeline(slots=2)
    first = outs(plan, executor)
    before = counts(executor).captured
    assert outs(plan, executor) == first
    assert counts(executor).captured == 2 * before
    assert len(cuda.pools) == 2


def test_a_traced_run_that_captures_has_its_report(cuda: FakeCuda) -> None:
    executor, states = OnStreams("cuda:1", graphs=True), {"memory": torch.zeros(())}
    events = run(pipeline(), executor=executor, steps=STEPS, states=states, trace=True).events
    assert counts(executor).captured > 0
    assert sum(event.op == "carry.device" for event in events) == STEPS


def test_the_pool_of_a_failed_capture_is_given_back_and_its_graph_is_kept(cuda: FakeCuda) -> None:
    """Else the allocator would take the capture for one that goes on, and ask a graph that went."""
    asks = [True]

    def asks_at_first(ctx: OpContext) -> None:
        if asks:
            ctx.read("sum").sum().item()
        carry(ctx)

    def factor(step: int) -> int:
        if step == 7:
            asks.clear()
        return 2 if step < 7 else 3

    executor, plan = OnStreams("cuda:1", graphs=True), pipeline(carry=asks_at_first, factor=factor)
    assert outs(plan, executor) == outs(pipeline(factor=factor))
    assert counts(executor).captured > 0
    assert counts(executor).replayed > 0
    assert cuda.allocating == []
    failed = len(cuda.graphs) - counts(executor).captured
    assert len(cuda.released) == len(cuda_streams._FAILED) == failed > 0
    assert len(set(cuda.released)) == failed, "none is used again"


def test_a_shape_that_had_no_memory_to_be_captured_is_tried_again(cuda: FakeCuda) -> None:
    short: list[bool] = []

    def short_at_first(ctx: OpContext) -> None:
        if not short and any(stream.capturing for stream in cuda.streams):
            short.append(True)
            raise torch.OutOfMemoryError("CUDA out of memory")
        carry(ctx)

    executor, plan = OnStreams("cuda:1", graphs=True), pipeline(carry=short_at_first)
    assert outs(plan, executor) == outs(pipeline())
    assert short
    assert counts(executor).replayed > 0


def test_a_device_that_fails_is_named_with_its_op_when_streams_answer_no_more(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> bool:
        raise RuntimeError("device-side assert triggered")

    def add_and_break(ctx: OpContext) -> None:
        monkeypatch.setattr(FakeStream, "query", fail)
        monkeypatch.setattr(FakeEvent, "synchronize", fail)
        add(ctx)

    with pytest.raises(NodeFailure, match=r"failed in step -?\d+: DeviceFailure"):
        outs(pipeline(add=add_and_break), OnStreams("cuda:1"))


def interrupted(cuda: FakeCuda) -> Plan:
    """The worker fails when a capture is under way, and the run ends before that is complete."""
    fails = threading.Event()

    def add_and_wait(ctx: OpContext) -> None:
        add(ctx)
        if not fails.is_set() and any(stream.capturing for stream in cuda.streams):
            fails.set()
            for thread in threading.enumerate():
                if thread.name == "stepweave-worker":
                    thread.join(60)

    def fail(ctx: OpContext) -> None:
        if not failed:
            failed.append(fails.wait(60))
            raise ValueError("boom")

    failed: list[bool] = []
    return pipeline(add=add_and_wait, beside=Node("worker", (Op(run=fail),), actor="worker"))


def test_a_capture_that_a_run_leaves_open_is_ended_by_its_thread(cuda: FakeCuda) -> None:
    executor, plan = OnStreams("cuda:1", graphs=True), interrupted(cuda)
    with pytest.raises(NodeFailure, match="ValueError: boom"):
        outs(plan, executor)
    assert outs(plan, executor) == outs(pipeline())
    assert counts(executor).replayed > 0
    assert cuda.allocating == []
