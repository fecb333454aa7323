"""Worker threads that stand for streams: real overlap on a CPU, where work releases the GIL.

A stream is a queue and a thread that takes from it. An event is a lock that its recorder frees:
handing over through one costs a third of what `threading.Event` does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from time import perf_counter

from .device import CannotCapture, Event, Moment, Recording


class WorkerEvent:
    """Set once, by the worker that comes to it."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        try:  # noqa: SIM105 - `suppress` takes longer than the hand-over
            self._lock.release()
        except RuntimeError:
            pass  # set already, by an abort

    def synchronize(self) -> None:
        self._lock.acquire()
        self.set()  # free again, for the next who waits


class WorkerStream:
    """A thread that does what is put on its queue, in order."""

    def __init__(self, name: str, pending: set[WorkerEvent]) -> None:
        self._queue: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._pending = pending
        self.thread = threading.Thread(target=self._work, name=f"stepweave-{name}", daemon=True)
        self.thread.start()

    def run(self, work: Callable[[], None], name: str) -> None:
        self._queue.put(work)

    def record(self) -> WorkerEvent:
        event = WorkerEvent()
        pending = self._pending
        pending.add(event)

        def come_by() -> None:
            event.set()
            pending.discard(event)

        self._queue.put(come_by)
        return event

    def wait(self, event: Event) -> None:
        self._queue.put(event.synchronize)

    def stamp(self) -> Moment:
        at: list[float] = []
        self._queue.put(lambda: at.append(perf_counter()))
        return lambda: at[0]

    def recording(self, pool: str) -> Recording:
        raise CannotCapture("worker threads run everything as usual")

    def end(self) -> None:
        self._queue.put(None)

    def _work(self) -> None:
        get = self._queue.get
        while (work := get()) is not None:
            work()


@dataclass
class Workers:
    """A device of worker threads."""

    defers: bool = field(default=False, init=False)
    _streams: dict[str, WorkerStream] = field(default_factory=dict, init=False)
    _pending: set[WorkerEvent] = field(default_factory=set, init=False)

    def open(self, streams: Sequence[str], urgent: frozenset[str]) -> Mapping[str, WorkerStream]:
        """Threads have no priorities: `urgent` says nothing here."""
        self._streams = {name: WorkerStream(name, self._pending) for name in streams}
        return self._streams

    def close(self, seconds: float | None) -> Sequence[str]:
        for stream in self._streams.values():
            stream.end()
        for stream in self._streams.values():
            stream.thread.join(seconds)
        return [name for name, stream in self._streams.items() if stream.thread.is_alive()]

    def abort(self) -> None:
        for event in list(self._pending):
            event.set()
