"""The executor for GPUs on a `torch.cuda` that only writes down: which calls, and on which GPU."""

from __future__ import annotations

import threading
from unittest.mock import patch

import pytest
import torch

from stepweave.backends import cuda_streams
from stepweave.backends.cuda_streams import CudaStreams
from stepweave.cli.planned import planned
from stepweave.executors.blocking import Blocking
from stepweave.executors.on_streams import OnStreams
from stepweave.executors.run import EXECUTORS, run
from stepweave.graph.node import Node, Op, OpContext, Read, Value
from stepweave.graph.plan import Plan
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.step_graph import StepGraph
from stepweave.testing.devices.recorded_calls import Call, RecordedCalls
from stepweave.testing.histories import recorded_states, recording, with_graph
from tests.device.fake_cuda import FakeCuda, FakeEvent, FakeStream

GPU = torch.device("cuda", 1)
NAMES = ("async_eagle3_grammar", "drafter_stream", "grammar_worker")


@pytest.fixture
def cuda() -> FakeCuda:
    return FakeCuda()


def recorded(plan: Plan) -> tuple[Plan, dict[str, object]]:
    """The plan with bodies that only read and write, and states for them."""
    graph = recording(plan.graph)
    return with_graph(plan, graph), dict(recorded_states(graph))


def on_gpu(
    cuda: FakeCuda, executor: OnStreams, plan: Plan, states: dict[str, object] | None = None
) -> None:
    """Run the plan there; streams are called as the plan calls them."""
    opened = CudaStreams.open

    def named(device: CudaStreams, *args: object) -> object:
        streams = opened(device, *args)  # type: ignore[arg-type]
        for name, stream in streams.items():
            stream.stream.name = name  # type: ignore[attr-defined]
        return streams

    with cuda.in_place(), patch.object(CudaStreams, "open", named):
        run(plan, executor=executor, steps=3, states=states or {})


def by_host(calls: list[Call]) -> dict[str, list[str]]:
    """The calls of each host thread, in its order."""
    hosts = dict.fromkeys(sorted(call.host for call in calls))
    return {host: [str(call) for call in calls if call.host == host] for host in hosts}


@pytest.mark.parametrize("name", NAMES)
def test_torch_is_asked_exactly_what_the_recorded_device_writes_down(
    name: str, cuda: FakeCuda
) -> None:
    plan, states = recorded(planned(name))
    on_gpu(cuda, OnStreams(GPU, ranges=True), plan, states)
    device = RecordedCalls()
    run(plan, executor=device, steps=3, states=states)
    assert by_host(cuda.calls) == by_host(device.calls)
    assert {call.kind for call in cuda.calls} == {"run", "record", "wait", "synchronize"}


def test_streams_that_a_host_waits_for_go_first_and_all_begin_after_the_callers_work(
    cuda: FakeCuda,
) -> None:
    executor, (plan, states) = OnStreams(GPU), recorded(planned("drafter_stream"))
    on_gpu(cuda, executor, plan, states)
    assert {stream.name: stream.priority for stream in cuda.streams} == {
        "compute": 0,
        "draft": 0,
        "copy": -1,
    }
    before = cuda.current_stream(GPU)
    assert cuda.began_after == [(stream, before) for stream in cuda.streams]
    on_gpu(cuda, executor, plan, states)
    assert len(cuda.streams) == 3, "those of earlier runs: their memory belongs to them"
    assert cuda.began_after[3:] == [(stream, before) for stream in cuda.streams]


def touching(seen: list[tuple[str, str, int]], cuda: FakeCuda) -> Plan:
    """Ops on two host threads and a stream that note thread and current device."""

    def note(name: str) -> Op:
        def body(ctx: OpContext) -> None:
            seen.append((name, threading.current_thread().name, cuda.here.device))

        return Op(run=body)

    nodes = [
        Node("main", (note("main.host"),), (note("main.device"),), stream="compute"),
        Node("worker", (note("worker.host"),), actor="worker"),
        Node("back", (Op((Read("done"),)),)),
        Node("copy", (Op(),), (Op(writes=("done",)),), stream="copy"),
    ]
    return compile_plan(StepGraph.build(nodes, [Value("done", "pinned")]))


@pytest.mark.parametrize("named", [True, False])
def test_every_thread_of_a_run_is_on_its_gpu(cuda: FakeCuda, named: bool) -> None:
    """A new thread begins on GPU 0: pinned memory and events would be made for that one."""
    seen: list[tuple[str, str, int]] = []
    with cuda.device(1) if not named else cuda.device(0):
        on_gpu(cuda, OnStreams("cuda:1" if named else "cuda"), touching(seen, cuda))
    assert {(name, at) for name, _, at in seen} == {
        ("main.host", 1),
        ("main.device", 1),
        ("worker.host", 1),
    }
    assert len({thread for _, thread, _ in seen}) == 2
    assert {at for _, at in cuda.where} == {1}, cuda.where
    assert {stream.device for stream in cuda.streams} == {GPU}
    assert cuda.here.device == 0, "the caller's is as it was"


@pytest.mark.parametrize("below", ["serial", "threads"])
def test_host_executors_are_on_their_gpu_too(cuda: FakeCuda, below: str) -> None:
    seen: list[tuple[str, str, int]] = []
    with cuda.in_place():
        run(touching(seen, cuda), executor=Blocking(EXECUTORS[below], GPU), steps=2)
    assert len(seen) == 6
    assert {at for _, _, at in seen} == {1}
    assert cuda.synchronized == [1] * 2, "behind each device op that does something"


def test_times_of_a_long_run_are_as_fine_as_those_of_a_short_one(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Times between two events are in single precision: 31 µs steps are lost after an hour."""
    now, at = 1000.0, dict[FakeEvent, float]()
    record = FakeEvent.record

    def recorded_now(event: FakeEvent, stream: FakeStream) -> None:
        record(event, stream)
        at[event] = now

    def elapsed(event: FakeEvent, later: FakeEvent) -> float:
        return float(torch.tensor((at[later] - at[event]) * 1e3, dtype=torch.float32))

    monkeypatch.setattr(FakeEvent, "record", recorded_now)
    monkeypatch.setattr(FakeEvent, "elapsed_time", elapsed)
    monkeypatch.setattr(cuda_streams, "perf_counter", lambda: now)
    with cuda.in_place():
        stream = CudaStreams(GPU, False).open(["compute"], frozenset())["compute"]
        for _ in range(6 * 60):
            now += 61.0
            stream.stamp()
        first, began = stream.stamp(), now
        now += 31e-6
        then, begun = stream.stamp()(), first()
    assert begun is not None
    assert then is not None
    assert then - begun == pytest.approx(31e-6, abs=1e-7)
    assert begun == pytest.approx(began, abs=1e-3)
