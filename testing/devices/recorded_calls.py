"""A device that does everything at once and writes down what it was asked.

What it writes is what a GPU would be asked: so the exact sequence of stream and event calls
of a pipeline can be read, compared and checked for races where there is no GPU.

Captures are tapes, by CUDA's rules: what is stamped in one cannot be read, nobody waits for what is
recorded in one, the thread that began it ends it, one that fails leaves its pool unusable, and one
that nobody ends fails the run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Literal, NamedTuple, NoReturn

from ...backends.streams import Event, Moment, Recording
from ...executors.concurrent import run_on
from ...executors.report import RunReport
from ...executors.run_arguments import RunArguments
from ...graph.plan import Plan

if TYPE_CHECKING:
    from torch import Tensor

    from ...executors.capture import Captures


Place = Literal["at its begin", "at its end"]


class Call(NamedTuple):
    """One call on a stream or an event, by a host thread.

    `work` is what was given to the stream, or the last work before the event concerned, as
    `node/step`; None where the stream had been given nothing. `of` is the stream of that work.
    """

    host: str
    kind: Literal["run", "record", "wait", "synchronize"]
    stream: str | None  # None for `synchronize`: the host itself waits
    work: str | None
    of: str

    def __str__(self) -> str:
        match self.kind:
            case "run":
                return f"{self.stream}: run {self.work}"
            case "record":
                return f"{self.stream}: record after {self.work}"
            case "wait":
                return f"{self.stream}: wait for {self.work} of {self.of}"
            case "synchronize":
                return f"{self.host}: wait for {self.work} of {self.of}"


class RecordedEvent:
    def __init__(self, device: RecordedCalls, work: str | None, of: str) -> None:
        self.work = work
        self.of = of
        self._device = device

    def synchronize(self) -> None:
        self._device.note("synchronize", None, self.work, self.of)


@dataclass
class RecordedStream:
    name: str
    device: RecordedCalls
    last: str | None = None

    def run(self, work: Callable[[int], None], step: int, node: str) -> None:
        self.last = f"{node}/{step}"
        self.device.note("run", self.name, self.last, self.name)
        work(step)

    def record(self) -> RecordedEvent:
        self.device.require_no_capture(self.name)
        self.device.note("record", self.name, self.last, self.name)
        return RecordedEvent(self.device, self.last, self.name)

    def wait(self, event: Event) -> None:
        assert isinstance(event, RecordedEvent), "streams wait for their own device's events"
        self.device.require_no_capture(self.name)
        self.device.note("wait", self.name, event.work, event.of)

    def stamp(self) -> Moment:
        if self.name in self.device.capturing:
            return _unreadable
        now = perf_counter()
        return lambda: now

    def recording(self, pool: str) -> Recording:
        return Taped(self.device, self.name, pool)


def _unreadable() -> float:
    raise RuntimeError("an event that was recorded in a capture cannot be queried")


class Taped:
    """A tape of what one stream is given, which keeps CUDA's rules for captures."""

    live = False
    refused = None
    size = 0

    def __init__(self, device: RecordedCalls, stream: str, pool: str) -> None:
        from ..launches import Launches
        from .emulated_graph import EmulatedGraph  # with torch, which noting calls does without

        self.launches = Launches()
        self._device, self._stream, self._pool = device, stream, pool
        self._tape = EmulatedGraph()

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Raises `RuntimeError` where the pool, or the stream, is in a capture already."""
        device = self._device
        device.require_no_capture(self._stream)
        if self._pool in device.pools_in_capture:
            raise RuntimeError(f"pool {self._pool!r} is in a capture already, or one that failed")
        device.pools_in_capture.add(self._pool)
        self._fail_if_wanted("at its begin")
        device.capturing[self._stream] = threading.get_ident()
        try:
            with self._tape.capture(), self.launches:
                yield
                self._fail_if_wanted("at its end")
        finally:
            began = device.capturing.pop(self._stream)
            assert began == threading.get_ident(), "a capture is ended by the thread that began it"
        device.pools_in_capture.remove(self._pool)
        device.empty_captures += not self._tape.calls

    def refuse(self, reason: str) -> NoReturn:
        """Raises `CannotCapture`."""
        self._tape.refuse(reason)

    def _fail_if_wanted(self, where: Place) -> None:
        if self._device.failing.get(self._stream) == where:
            del self._device.failing[self._stream]
            raise RuntimeError("operation failed due to a previous error during capture")

    def part(self) -> None:
        """A graph is one part."""

    def between(self, call: Callable[..., None], *tensors: Tensor) -> None:
        """The call on `tensors[...]` is in no capture."""
        device = self._device

        def outside(*touched: Tensor) -> None:
            thread = device.capturing.pop(self._stream, None)
            try:
                call(*touched)
            finally:
                if thread is not None:
                    device.capturing[self._stream] = thread

        self.launches.paused = True
        try:
            self._tape.between(outside, *tensors)
        finally:
            self.launches.paused = False

    def moved(self, change: Callable[[Tensor], Tensor]) -> None:
        """None: graphs know addresses."""

    def replay(self, part: int = 0) -> None:
        """Raises `RuntimeError` where the stream is in a capture."""
        self._device.require_no_capture(self._stream)
        if not part:
            self._tape.replay()


@dataclass
class RecordedCalls:
    """A device and an executor. `calls`: all of its runs, in the order in which they were made.

    `graphs`: capture segments, as tapes, and replay them; `pieces`: and parts of ops, in steps of
    up to so many tokens.
    """

    graphs: bool = False
    pieces: int = 0
    captures: Captures | None = field(default=None, init=False)
    calls: list[Call] = field(default_factory=list)
    urgent: frozenset[str] = frozenset()
    defers: bool = field(default=True, init=False)
    advice: str = field(default="", init=False)
    capturing: dict[str, int] = field(default_factory=dict)  # stream -> thread
    pools_in_capture: set[str] = field(default_factory=set)
    failing: dict[str, Place] = field(default_factory=dict)  # the next capture of these streams
    empty_captures: int = 0  # graphs that do nothing

    def entered(self) -> nullcontext[None]:
        """There is no device to be on."""
        return nullcontext()

    def open(self, streams: Sequence[str], urgent: frozenset[str]) -> Mapping[str, RecordedStream]:
        for name in streams:
            self.require_no_capture(name)
        self.urgent = urgent
        return {name: RecordedStream(name, self) for name in streams}

    def close(self, seconds: float | None) -> Sequence[str]:
        for name in [*self.capturing]:
            self.require_no_capture(name)
        return ()

    def require_no_capture(self, stream: str) -> None:
        """Raises `RuntimeError` where `stream` is in a capture, in which this is not permitted."""
        if stream in self.capturing:
            raise RuntimeError(f"operation not permitted when stream {stream!r} is capturing")

    def abort(self) -> None:
        """Nobody ever sleeps here."""

    def note(
        self,
        kind: Literal["run", "record", "wait", "synchronize"],
        stream: str | None,
        work: str | None,
        of: str,
    ) -> None:
        host = threading.current_thread().name.removeprefix("stepweave-")
        self.calls.append(Call(host, kind, stream, work, of))

    def __call__(self, plan: Plan, given: RunArguments) -> RunReport:
        plans = given.plans(plan)
        if self.graphs and (self.captures is None or not self.captures.fit(plans)):
            from ...executors.capture import Captures

            self.captures = Captures(*plans, largest=self.pieces)
        return run_on(
            self,
            plan,
            given,
            captures=self.captures,
        )
