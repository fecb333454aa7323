"""`torch.cuda` without a GPU: streams and events that write down what is asked of them, and where.

It keeps CUDA's rules for threads: each has a current device, at first device 0, and on each device
a current stream. What a stream is asked is noted as `recorded_calls.Call`, so that the calls of the
executor for GPUs can be compared with those of the recorded device; and in `where` the current
device of every thread that touched a stream, an event or the module.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch

from stepweave.testing.devices.recorded_calls import Call


class _Here(threading.local):
    device = 0
    work: str | None = None  # what the thread is inside of, by its range for profilers

    def __init__(self) -> None:
        self.streams: dict[int, FakeStream] = {}


@dataclass
class FakeCuda:
    """One process's CUDA with two GPUs. `names`: what the streams are called in the calls."""

    calls: list[Call] = field(default_factory=list)
    where: list[tuple[str, int]] = field(default_factory=list)  # (what, current device then)
    streams: list[FakeStream] = field(default_factory=list)
    began_after: list[tuple[FakeStream, FakeStream]] = field(default_factory=list)
    synchronized: list[int] = field(default_factory=list)
    here: _Here = field(default_factory=_Here)

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
            try:
                yield
            finally:
                self.here.streams[index] = before

    def current_stream(self, gpu: torch.device | None = None) -> FakeStream:
        index = self.here.device if gpu is None or gpu.index is None else gpu.index
        if index not in self.here.streams:
            self.here.streams[index] = FakeStream(self, torch.device("cuda", index), 0)
        return self.here.streams[index]

    def range_push(self, name: str) -> None:
        stream = self.current_stream()
        stream.last = name
        self.note("run", stream, name, stream)

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

        stands: Any = {
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

    def wait_event(self, event: FakeEvent) -> None:
        assert event.of is not None, "an event must be recorded before anybody waits for it"
        self.cuda.note("wait", self, event.work, event.of)

    def wait_stream(self, other: FakeStream) -> None:
        self.cuda.touched("wait_stream")
        self.cuda.began_after.append((self, other))

    def query(self) -> bool:
        self.cuda.touched("query")
        return True


@dataclass(eq=False)
class FakeEvent:
    """Recorded once; what it then stands for never changes."""

    cuda: FakeCuda
    work: str | None = None
    of: FakeStream | None = None

    def record(self, stream: FakeStream) -> None:
        assert self.of is None, "recorded once"
        self.work, self.of = stream.last, stream
        self.cuda.note("record", stream, stream.last, stream)

    def synchronize(self) -> None:
        assert self.of is not None, "an event must be recorded before anybody waits for it"
        self.cuda.note("synchronize", None, self.work, self.of)

    def query(self) -> bool:
        return True

    def elapsed_time(self, later: FakeEvent) -> float:
        return 0.0
