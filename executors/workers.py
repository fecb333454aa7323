"""Worker threads that stand for streams: real overlap on a CPU, where work releases the GIL.

A stream is a queue and a thread that takes from it; or, for a while, whichever thread launches its
work (`caller_runs.py`). An event is a queue of its own, so that to set one is a single call without
a frame of Python.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from queue import SimpleQueue
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ..backends.streams import CannotCapture, Event, Moment, Recording
from .caller_runs import CallerRuns

if TYPE_CHECKING:
    from ..backends.tape.tapes import Tapes  # with torch, which plain functions do without

Item = tuple[Callable[[Any], object], object]  # to be called with that


class WorkerEvent(SimpleQueue[None]):
    """Set once, by the worker that comes to it: from then on it holds an item."""

    def synchronize(self, _: object = None) -> None:
        self.get()
        self.put(None)  # there again, for the next who waits


DONE = WorkerEvent()
DONE.put(None)


class WorkerStream:
    """A thread that does what is put on its queue, in order."""

    def __init__(self, name: str, tapes: Tapes | None, callers: CallerRuns | None = None) -> None:
        self._queue: SimpleQueue[Item | None] = SimpleQueue()
        self._put = self._queue.put
        self._recorded: deque[WorkerEvent] = deque()  # all that may not be set yet, in order
        self._tapes = tapes
        self._callers, self._called = callers, False  # whether the caller of `run` does the work
        self._step = -1
        self._aborted = False
        self.thread = threading.Thread(target=self._work, name=f"stepweave-{name}", daemon=True)
        self.thread.start()

    def run(self, work: Callable[[int], None], step: int, node: str) -> None:
        if self._callers is not None and step > self._step:
            self._turn(self._callers.at(step))
            self._step = step
        if self._called:
            work(step)
        else:
            self._put((work, step))

    def _turn(self, called: bool) -> None:
        """Go over between the thread and its callers. Where a step begins no capture is open: all
        ops of one are launched by one thread, one right after the other."""
        if called and not self._called:
            self.record().synchronize()
        self._called = called

    def record(self) -> WorkerEvent:
        if self._called:
            return DONE
        event = WorkerEvent()
        recorded = self._recorded
        recorded.append(event)
        while recorded and not recorded[0].empty():
            recorded.popleft()
        if self._aborted:  # else `abort` is yet to come, and finds the event in its list
            event.put(None)
        self._put((event.put, None))
        return event

    def abort(self) -> None:
        """Set all events, those to come too: the work before them may never be done."""
        self._aborted = True
        for event in list(self._recorded):
            event.put(None)

    def wait(self, event: Event) -> None:
        assert isinstance(event, WorkerEvent), "streams wait for their own device's events"
        if self._called:
            event.synchronize()
            return
        self._put((event.synchronize, None))

    def stamp(self) -> Moment:
        if self._called:
            now = perf_counter()
            return lambda: now
        at: list[float] = []
        self._put((lambda _: at.append(perf_counter()), None))
        return lambda: at[0] if at else None

    def recording(self, pool: str) -> Recording:
        """A tape of the operations, where these threads capture; else raises `CannotCapture`."""
        if self._tapes is None:
            raise CannotCapture("worker threads run everything as usual")
        return self._tapes.of(pool)

    def end(self) -> None:
        self._put(None)

    def _work(self) -> None:
        get = self._queue.get
        while (item := get()) is not None:
            work, argument = item
            work(argument)


@dataclass
class Workers:
    """A device of worker threads. `tapes`: of what they capture, if they do.

    `callers`: when whoever launches work does it in place of the stream's thread.
    """

    tapes: Tapes | None = None
    callers: CallerRuns | None = None
    defers: bool = field(default=False, init=False)
    advice: str = field(default="", init=False)
    _streams: dict[str, WorkerStream] = field(default_factory=dict, init=False)

    def entered(self) -> nullcontext[None]:
        """Threads of a CPU have no current device."""
        return nullcontext()

    def open(self, streams: Sequence[str], urgent: frozenset[str]) -> Mapping[str, WorkerStream]:
        """Threads have no priorities: `urgent` says nothing here."""
        if self.callers is not None:
            self.callers.begin()
        self._streams = {name: WorkerStream(name, self.tapes, self.callers) for name in streams}
        return self._streams

    def close(self, seconds: float | None) -> Sequence[str]:
        for stream in self._streams.values():
            stream.end()
        for stream in self._streams.values():
            stream.thread.join(seconds)
        return [name for name, stream in self._streams.items() if stream.thread.is_alive()]

    def abort(self) -> None:
        for stream in self._streams.values():
            stream.abort()
