"""Worker threads that stand for streams: real overlap on a CPU, where work releases the GIL.

A stream is a queue and a thread that takes from it. An event is a lock that its recorder frees:
handing over through one costs a third of what `threading.Event` does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from queue import SimpleQueue
from time import perf_counter
from typing import Any

from ..backends.streams import CannotCapture, Event, Moment, Recording

Item = tuple[Callable[[Any], object], object]  # to be called with that


class WorkerEvent:
    """Set once, by the worker that comes to it."""

    __slots__ = ("_lock", "_pending")

    def __init__(self, pending: set[WorkerEvent]) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self._pending = pending
        pending.add(self)

    def set(self, _: object = None) -> None:
        self._pending.discard(self)
        try:  # noqa: SIM105 - `suppress` takes longer than the hand-over
            self._lock.release()
        except RuntimeError:
            pass  # set already, by an abort

    def synchronize(self, _: object = None) -> None:
        self._lock.acquire()
        self.set()  # free again, for the next who waits


class WorkerStream:
    """A thread that does what is put on its queue, in order."""

    def __init__(self, name: str, pending: set[WorkerEvent]) -> None:
        self._queue: SimpleQueue[Item | None] = SimpleQueue()
        self._pending = pending
        self.thread = threading.Thread(target=self._work, name=f"stepweave-{name}", daemon=True)
        self.thread.start()

    def run(self, work: Callable[[int], None], step: int, node: str) -> None:
        self._queue.put((work, step))

    def record(self) -> WorkerEvent:
        event = WorkerEvent(self._pending)
        self._queue.put((event.set, None))
        return event

    def wait(self, event: Event) -> None:
        assert isinstance(event, WorkerEvent), "streams wait for their own device's events"
        self._queue.put((event.synchronize, None))

    def stamp(self) -> Moment:
        at: list[float] = []
        self._queue.put((lambda _: at.append(perf_counter()), None))
        return lambda: at[0] if at else None

    def recording(self, pool: str) -> Recording:
        """Raises `CannotCapture`: there is nothing to record."""
        raise CannotCapture("worker threads run everything as usual")

    def end(self) -> None:
        self._queue.put(None)

    def _work(self) -> None:
        get = self._queue.get
        while (item := get()) is not None:
            work, argument = item
            work(argument)


@dataclass
class Workers:
    """A device of worker threads."""

    defers: bool = field(default=False, init=False)
    advice: str = field(default="", init=False)
    _streams: dict[str, WorkerStream] = field(default_factory=dict, init=False)
    _pending: set[WorkerEvent] = field(default_factory=set, init=False)

    def entered(self) -> nullcontext[None]:
        """Threads of a CPU have no current device."""
        return nullcontext()

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
