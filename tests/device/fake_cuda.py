"""`torch.cuda` without a GPU: streams and events that write down what is asked of them, and where.

It keeps CUDA's rules for threads: each has a current device, at first device 0, and on each device
a current stream. What a stream is asked is noted as `recorded_calls.Call`, so that the calls of the
executor for GPUs can be compared with those of the recorded device; and in `where` the current
device of every thread that touched a stream, an event or the module.

Its graphs are tapes. A stream that is capturing answers no questions, what is recorded in a capture
cannot be read, and a capture that fails leaves its pool with the allocator until that is told. A
graph knows the memory that products of its stream work in, which anybody may have freed.
"""

from __future__ import annotations

import gc
import operator
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch

from stepweave.testing.devices.emulated_graph import EmulatedGraph
from stepweave.testing.devices.recorded_calls import Call


class _Here(threading.local):
    device = 0
    work: str | None = None  # what the thread is inside of, by its range for profilers

    def __init__(self) -> None:
        self.streams: dict[int, FakeStream] = {}


@dataclass(eq=False)
class Workspace:
    """What cuBLAS works in: of a graph's pool, or of memory that is given back once it is free."""

    pool: object
    freed: bool = False


@dataclass
class FakeCuda:
    """One process's CUDA with two GPUs. `names`: what the streams are called in the calls."""

    calls: list[Call] = field(default_factory=list)
    where: list[tuple[str, int]] = field(default_factory=list)  # (what, current device then)
    streams: list[FakeStream] = field(default_factory=list)
    began_after: list[tuple[FakeStream, FakeStream]] = field(default_factory=list)
    synchronized: list[int] = field(default_factory=list)
    here: _Here = field(default_factory=_Here)
    graphs: list[weakref.ref[FakeGraph]] = field(default_factory=list)
    begun: list[object] = field(default_factory=list)  # pools in which some capture has begun
    pools: list[object] = field(default_factory=list)  # handles, in the order of making
    allocating: list[object] = field(default_factory=list)  # pools of captures that go on
    released: list[object] = field(default_factory=list)

    def touched(self, what: str) -> None:
        self.where.append((what, self.here.device))

    def note(self, kind: Any, stream: FakeStream | None, work: str | None, of: FakeStream) -> None:
        host = threading.current_thread().name.removeprefix("stepweave-")
        self.touched(f"{kind} {work}")
        self.calls.append(Call(host, kind, None if stream is None else stream.name, work, of.name))

    @contextmanager
    def device(self, gpu: torch.device | int) -> Iterator[None]:
        index = gpu if isinstance(gpu, int) else gpu.index
        before = self.here.device
        self.here.device = before if index is None or index < 0 else index
        try:
            yield
        finally:
            self.here.device = before

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        """Makes its device current as well, as torch does."""
        index = stream.device.index
        with self.device(index):
            before = self.current_stream()
            self.here.streams[index] = stream
            stream.multiply()  # whatever comes may do so
            try:
                yield
            finally:
                self.here.streams[index] = before
                for tape in stream.replayed:  # other graphs may come next
                    tape.spoil()
                stream.replayed.clear()

    def current_stream(self, gpu: torch.device | None = None) -> FakeStream:
        index = self.here.device if gpu is None or gpu.index is None else gpu.index
        if index not in self.here.streams:
            self.here.streams[index] = FakeStream(self, torch.device("cuda", index), 0)
        return self.here.streams[index]

    def range_push(self, name: str) -> None:
        stream = self.current_stream()
        stream.last = name
        self.note("run", stream, name, stream)

    def clear_workspaces(self) -> None:
        for stream in self.streams:
            if stream.workspace is not None:
                stream.workspace.freed = True
            stream.workspace = None

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """While it stands for `torch.cuda`."""

        def made(device: torch.device | None = None, priority: int = 0) -> FakeStream:
            index = self.here.device if device is None or device.index is None else device.index
            self.touched("new stream")
            self.streams.append(FakeStream(self, torch.device("cuda", index), priority))
            return self.streams[-1]

        def event(blocking: bool = False, enable_timing: bool = False) -> FakeEvent:
            assert blocking or enable_timing, "a host that spins takes the GIL from others"
            return FakeEvent(self)

        def graph() -> FakeGraph:
            made = FakeGraph(self)
            self.graphs.append(weakref.ref(made))
            return made

        def handle() -> object:
            self.pools.append((0, len(self.pools) + 1))
            return self.pools[-1]

        def end_allocate(device: int, pool: object) -> None:
            if pool not in self.allocating:
                raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
            self.allocating.remove(pool)

        allocator: Any = {
            "_cuda_clearCublasWorkspaces": self.clear_workspaces,
            "_cuda_endAllocateToPool": end_allocate,
            "_cuda_releasePool": lambda device, pool: self.released.append(pool),
        }
        stands: Any = {
            "CUDAGraph": graph,
            "graph_pool_handle": handle,
            "is_available": lambda: True,
            "device_count": lambda: 2,
            "current_device": lambda: self.here.device,
            "device": self.device,
            "stream": self.stream,
            "current_stream": self.current_stream,
            "Stream": made,
            "Event": event,
            "synchronize": lambda gpu: self.synchronized.append(gpu.index),
        }
        with (
            patch.multiple(torch.cuda, **stands),
            patch.multiple(torch._C, create=True, **allocator),
            patch.multiple(torch.cuda.nvtx, range_push=self.range_push, range_pop=lambda: None),
        ):
            yield


@dataclass(eq=False)
class FakeStream:
    cuda: FakeCuda
    device: torch.device
    priority: int
    name: str = ""
    last: str | None = None
    capturing: FakeGraph | None = None
    replayed: list[EmulatedGraph] = field(default_factory=list)
    workspace: Workspace | None = None

    def multiply(self) -> Workspace:
        """A product, which works in what the stream has, or takes it where it allocates now."""
        if self.workspace is None:
            pool = None if self.capturing is None else self.capturing.pool
            self.workspace = Workspace(pool)
        return self.workspace

    @property
    def device_index(self) -> int:
        return int(self.device.index)

    def require_no_capture(self) -> None:
        if self.capturing is not None:
            self.capturing.valid = False
            raise RuntimeError("operation not permitted when stream is capturing")

    def wait_event(self, event: FakeEvent) -> None:
        self.require_no_capture()
        assert event.of is not None, "an event must be recorded before anybody waits for it"
        self.cuda.note("wait", self, event.work, event.of)

    def wait_stream(self, other: FakeStream) -> None:
        self.require_no_capture()
        self.cuda.touched("wait_stream")
        self.cuda.began_after.append((self, other))

    def query(self) -> bool:
        self.require_no_capture()
        self.cuda.touched("query")
        return True


@dataclass(eq=False)
class FakeEvent:
    """Recorded once; what it then stands for never changes."""

    cuda: FakeCuda
    work: str | None = None
    of: FakeStream | None = None
    captured: bool = False

    def record(self, stream: FakeStream) -> None:
        assert self.of is None, "recorded once"
        self.work, self.of = stream.last, stream
        self.captured = stream.capturing is not None
        self.cuda.note("record", stream, stream.last, stream)

    def synchronize(self) -> None:
        assert self.of is not None, "an event must be recorded before anybody waits for it"
        self.require_not_captured()
        self.cuda.note("synchronize", None, self.work, self.of)

    def query(self) -> bool:
        self.require_not_captured()
        return True

    def elapsed_time(self, later: FakeEvent) -> float:
        self.require_not_captured()
        later.require_not_captured()
        return 0.0

    def require_not_captured(self) -> None:
        if self.captured:
            raise RuntimeError("operation not permitted on an event last recorded in a capture")


class FakeGraph:
    """A tape, begun and ended as torch does it."""

    def __init__(self, cuda: FakeCuda) -> None:
        self.valid = True
        self._cuda, self._tape, self._within = cuda, EmulatedGraph(), ExitStack()
        self.pool: object = None
        self._workspace: Workspace | None = None
        self._stream: FakeStream | None = None
        self._thread = 0

    def capture_begin(self, pool: object, capture_error_mode: str) -> None:
        stream = self._cuda.current_stream()
        assert stream in self._cuda.streams, "no capture on a default stream"
        assert capture_error_mode == "thread_local", "other threads go on using the device"
        assert not gc.isenabled(), "what the collector frees ends the capture"
        alive = [each for each in map(operator.call, self._cuda.graphs) if each is not None]
        if pool in self._cuda.begun and not any(each.pool is pool for each in alive):
            raise RuntimeError("use_count > 0 INTERNAL ASSERT FAILED")  # its last graph has gone
        self._cuda.begun.append(pool)
        if pool in self._cuda.allocating:
            raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
        self._cuda.allocating.append(pool)
        stream.require_no_capture()
        stream.capturing, self._stream, self.pool = self, stream, pool
        self._thread = threading.get_ident()
        self._within.enter_context(self._tape.capture())

    def capture_end(self) -> None:
        """A body that raised has asked for what cannot be captured: the capture is invalid."""
        invalid = sys.exc_info()[1] is not None or not self.valid
        assert self._thread == threading.get_ident(), "the thread that began it ends it"
        assert self._stream is not None, "capture_end() called before capture_begin()"
        if self._cuda.current_stream() is not self._stream:
            raise RuntimeError("Capture must end on the same stream it began on.")
        self._workspace = self._stream.multiply()
        self._stream.capturing = None
        with suppress(_NothingIsDone), self._within:
            raise _NothingIsDone  # which a tape takes back
        if invalid:
            raise RuntimeError("operation failed due to a previous error during capture")
        self._cuda.allocating.remove(self.pool)
        assert self._tape.calls, "The CUDA Graph is empty."

    def replay(self) -> None:
        assert self._stream is not None, "what was captured is replayed"
        assert self._cuda.current_stream() is self._stream, "in the order of its stream"
        self._stream.require_no_capture()
        assert self._workspace is not None, "what was captured is replayed"
        if self._workspace.freed and self._workspace.pool is not self.pool:
            raise RuntimeError("an illegal memory access was encountered")
        self._tape.again()
        self._stream.replayed.append(self._tape)


class _NothingIsDone(Exception):
    """In a capture on a GPU."""
