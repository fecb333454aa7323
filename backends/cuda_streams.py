"""CUDA streams, events and graphs.

A body given to a stream runs at once, on the launching thread, with the stream current: what it
calls are kernel launches and copies, which return before the work is done. It must not ask the
device for anything (`.item()`, a copy to pageable memory, a boolean index): that would wait, and
hold up every launch after it. Checking mode finds such a body, on a CPU as well.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter, sleep
from typing import Any, NoReturn
from weakref import WeakSet

import torch
from torch import Tensor

from .streams import CannotCapture, Event, Moment


@dataclass
class Pool:
    """Memory in which graphs of a stream work: torch's handle, and what works there.

    torch takes a pool back when its last graph goes, and no graph may begin in it again.
    """

    handle: Any
    users: WeakSet[CudaRecording] = field(default_factory=WeakSet)


Pools = dict[str, Pool]

POLL_S = 0.0005  # of the end of a run, where Ctrl-C should still be heard


class CudaEvent:
    """An event that a host waits for asleep: a spinning thread would take the GIL from others."""

    __slots__ = ("event",)

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        self.event.record(stream)

    def synchronize(self) -> None:
        self.event.synchronize()


class CudaRecording:
    """CUDA graphs of what one stream was given: one, and another after each call in between."""

    live = False
    refused = None
    size = 0  # a graph is launched by one call

    def __init__(self, stream: torch.cuda.Stream, pool: Pool) -> None:
        self._stream = stream
        self._pool = pool.handle
        pool.users.add(self)
        self._graph: torch.cuda.CUDAGraph | None = None  # that is being captured
        self._again: list[Callable[[], object]] = []

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Other threads may use the device meanwhile: only this one's calls are recorded."""
        with _no_collector:
            self._begin()
            try:
                yield
            except BaseException:
                if self._graph is not None:
                    with suppress(Exception):  # it is invalid already, and is thrown away
                        self._end()
                raise
            self._end()
        self._again[-1]()  # a capture does nothing yet

    def _begin(self) -> None:
        self._graph = graph = torch.cuda.CUDAGraph()
        _forget_workspaces()  # this graph's products work in its pool
        try:
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        except BaseException:
            self._take_the_pool_back(graph)
            raise

    def _end(self) -> None:
        assert self._graph is not None, "only what has begun is ended"
        graph, self._graph = self._graph, None
        try:
            graph.capture_end()
        except BaseException:
            self._take_the_pool_back(graph)
            raise
        finally:
            _forget_workspaces()  # those of what comes next do not
        self._again.append(graph.replay)

    def between(self, call: Callable[..., None], *tensors: Tensor) -> None:
        """`tensors[...]` are known by address: later pieces may work in their memory."""
        self._end()
        self._again[-1]()
        call(*tensors)
        self._again.append(partial(call, *map(_by_address, tensors)))
        self._begin()

    def _take_the_pool_back(self, graph: torch.cuda.CUDAGraph) -> None:
        """What torch does at the end of a capture, and leaves out where that fails.

        Until then its allocator takes the capture for one that goes on: it frees nothing that
        several streams used, and asks the graph, which must be there to answer, what belongs to it.
        """
        self._graph = None
        _FAILED.append(graph)
        device = self._stream.device_index
        for name in ("_cuda_endAllocateToPool", "_cuda_releasePool"):
            with suppress(RuntimeError, AttributeError):  # done by torch, or no part of this one
                getattr(torch._C, name)(device, self._pool)

    def part(self) -> None:
        """A graph is one part."""

    def moved(self, change: Callable[[Tensor], Tensor]) -> None:
        """None: graphs know addresses."""

    def replay(self, part: int = 0) -> None:
        if not part:
            for again in self._again:
                again()

    def refuse(self, reason: str) -> NoReturn:
        """Raises `CannotCapture`: nothing has been done yet, and nothing can be."""
        raise CannotCapture(reason)


def _by_address(tensor: Tensor) -> Tensor:
    """The same `[...]`, which keeps no memory: a graph's pool may hand it out again.

    What a replay leaves there is right from the piece that writes it to the call that reads it, as
    the pieces follow each other as they were captured.
    """
    memory = tensor.untyped_storage()
    bare = torch._C._construct_storage_from_data_pointer(
        memory.data_ptr(), memory.device, memory.nbytes()
    )
    with torch.inference_mode(tensor.is_inference()):
        alias = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        return alias.set_(bare, tensor.storage_offset(), tensor.shape, tensor.stride())


def _forget_workspaces() -> None:
    """Has torch take new memory for cuBLAS to work in, when the next product asks for it.

    It keeps one workspace for each stream, until anybody in the process has them freed, as
    `torch.compile` does around captures of its own. A graph that knew one by address would write to
    memory that is somebody else's by then, or nobody's. What is taken within a capture is of the
    graph's pool, and lives as long as the graph.
    """
    torch._C._cuda_clearCublasWorkspaces()


_FAILED: list[torch.cuda.CUDAGraph] = []


class _NoCollector:
    """The garbage collector rests while any thread is within.

    Were it to free a graph or a cached block, that call would end the capture.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._within, self._collects = 0, False

    def __enter__(self) -> None:
        with self._lock:
            if self._within == 0:
                self._collects = gc.isenabled()
                gc.disable()
            self._within += 1

    def __exit__(self, *raised: object) -> None:
        with self._lock:
            self._within -= 1
            if self._within == 0 and self._collects:
                gc.enable()


_no_collector = _NoCollector()


ORIGIN_S = 10.0
"""After so long stamps count from a new event: times between two are told in single precision, and
after an hour these would be coarser than a step."""


class _Origin:
    """An event from which stamps count, and when it was: known, or told by the one before."""

    def __init__(self, event: torch.cuda.Event, before: _Origin | None = None) -> None:
        self.event, self.taken_s = event, perf_counter()
        self._before = before
        self._at_s = self.taken_s

    def is_over(self) -> bool:
        return bool(self.event.query())  # type: ignore[no-untyped-call]

    def at_s(self) -> float:
        """When it was. Only once it is over."""
        if self._before is not None:
            self._at_s = self._before.later_s(self.event)
            self._before = None
        return self._at_s

    def later_s(self, event: torch.cuda.Event) -> float:
        """When an event was that is over."""
        return self.at_s() + float(self.event.elapsed_time(event)) / 1e3


class CudaStream:
    """A stream, and the moment from which its stamps count."""

    def __init__(self, stream: torch.cuda.Stream, ranges: bool, pools: Pools) -> None:
        self.stream = stream
        self.pools = pools
        self._origin: _Origin | None = None
        self._ranges = ranges

    def run(self, work: Callable[[int], None], step: int, node: str) -> None:
        with torch.cuda.stream(self.stream):
            if self._ranges:
                with _range(f"{node}/{step}"):
                    work(step)
            else:
                work(step)

    def record(self) -> CudaEvent:
        return CudaEvent(self.stream)

    def wait(self, event: Event) -> None:
        assert isinstance(event, CudaEvent), "streams wait for their own device's events"
        self.stream.wait_event(event.event)

    def stamp(self) -> Moment:
        if self._origin is None:
            first = self._timing_event()
            first.synchronize()  # once a run, and only where times are asked for
            self._origin = _Origin(first)
        elif perf_counter() - self._origin.taken_s > ORIGIN_S and self._origin.is_over():
            self._origin.at_s()
            self._origin = _Origin(self._timing_event(), self._origin)
        origin, event = self._origin, self._timing_event()

        def moment() -> float | None:
            over = bool(event.query())  # type: ignore[no-untyped-call]
            return origin.later_s(event) if over else None

        return moment

    def recording(self, pool: str) -> CudaRecording:
        if pool not in self.pools or not self.pools[pool].users:
            self.pools[pool] = Pool(torch.cuda.graph_pool_handle())
        return CudaRecording(self.stream, self.pools[pool])

    def _timing_event(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(self.stream)
        return event


def _ended(stream: torch.cuda.Stream) -> bool:
    """A device that has failed says so again, whatever it is asked: it does no more."""
    try:
        return bool(stream.query())
    except RuntimeError:
        return True


@contextmanager
def _range(name: str) -> Iterator[None]:
    torch.cuda.nvtx.range_push(name)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        torch.cuda.nvtx.range_pop()  # type: ignore[no-untyped-call]


@dataclass
class CudaStreams:
    """Streams of one GPU. `ranges`: name each op `node/step` for profilers (NVTX)."""

    gpu: torch.device
    ranges: bool
    defers: bool = field(default=True, init=False)
    advice: str = field(
        default="Run with CUDA_LAUNCH_BLOCKING=1 to have the failing op named.", init=False
    )
    _known: dict[str, torch.cuda.Stream] = field(default_factory=dict, init=False)
    _pools: Pools = field(default_factory=dict, init=False)
    _streams: dict[str, CudaStream] = field(default_factory=dict, init=False)

    def entered(self) -> torch.cuda.device:
        return torch.cuda.device(self.gpu)

    def open(self, streams: Sequence[str], urgent: frozenset[str]) -> Mapping[str, CudaStream]:
        """They begin after what the calling thread has on its current stream, such as caches.

        A later run gets the streams of earlier runs: the memory of what they made is theirs.
        """
        before = torch.cuda.current_stream(self.gpu)
        self._streams = {}
        for name in streams:
            if name not in self._known:
                priority = -1 if name in urgent else 0  # lower goes first
                self._known[name] = torch.cuda.Stream(  # type: ignore[no-untyped-call]
                    self.gpu, priority=priority
                )
            stream = self._known[name]
            stream.wait_stream(before)
            self._streams[name] = CudaStream(stream, self.ranges, self._pools)
        return self._streams

    def close(self, seconds: float | None) -> Sequence[str]:
        began = perf_counter()
        left = dict(self._streams)
        while left:
            left = {name: stream for name, stream in left.items() if not _ended(stream.stream)}
            if left and seconds is not None and perf_counter() - began > seconds:
                break
            if left:
                sleep(POLL_S)
        return list(left)

    def abort(self) -> None:
        """Kernels end by themselves, and whoever waits for them wakes then."""
