"""Where requests arrive, from any thread: the one part of the table that other threads touch."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from time import perf_counter
from typing import NamedTuple, TypeVar

from .request import Request, RequestError
from .wake import Wake

T = TypeVar("T")


class Taken(NamedTuple):
    """What the owner of the table takes in at one time."""

    open: bool  # somebody held the inbox open before the rest was taken out
    left: bool  # the run is to end between two steps
    arrived: tuple[Request, ...]
    cancelled: tuple[tuple[int, str | None], ...]  # the requests to end, and why


class Inbox:
    """Arrivals and cancellations, and whether more are to be expected."""

    def __init__(self, max_queue: int) -> None:
        self._max_queue = max_queue
        self._arrived: queue.SimpleQueue[Request] = queue.SimpleQueue()
        self._cancelled: queue.SimpleQueue[tuple[int, str | None]] = queue.SimpleQueue()
        self._woken = Wake()
        self._opening = threading.RLock()  # a signal handler may cancel while its thread is in here
        self._openers = 0
        self._left = False

    # -- from any thread -------------------------------------------------------------------

    def open(self) -> None:
        with self._opening:
            self._openers += 1

    def close(self) -> None:
        """Undo one `open`. Raises `RuntimeError` if there is none to undo."""
        with self._opening:
            if self._openers == 0:
                raise RuntimeError("the request table was closed more often than opened")
            self._openers -= 1
        self._woken.set()

    def submit(self, request: Request) -> None:
        """Raises `RequestError` if the queue is full."""
        if self._arrived.qsize() >= self._max_queue:
            raise RequestError(
                f"the queue is full ({self._max_queue} requests wait)", code="SW-QUEUE-FULL"
            )
        self.submit_all([request])

    def submit_all(self, requests: Iterable[Request]) -> None:
        for request in requests:
            request.moments.submitted_s = perf_counter()
            self._arrived.put(request)
        self._woken.set()

    def cancel(self, uid: int, error: str | None = None) -> None:
        self._cancelled.put((uid, error))
        self._woken.set()

    def leave(self) -> None:
        """Have the run that is on end between two steps, and any other, until `resume`."""
        self._left = True
        self._woken.set()

    def resume(self) -> None:
        """Let runs go on."""
        self._left = False

    @property
    def waiting(self) -> int:
        """How many have arrived and were not taken out."""
        return self._arrived.qsize()

    @property
    def is_open(self) -> bool:
        return self._openers > 0

    @property
    def over(self) -> bool:
        """Nobody holds it open, and nothing is in it."""
        # In this order: who opens, submits and closes meanwhile is seen in the queue.
        return not self.is_open and self._arrived.empty()

    # -- from the thread that owns the table -----------------------------------------------

    def take(self, step: int) -> Taken:
        """Take out what has come since the last time, for the schedule of `step`."""
        # In this order: who opens, submits and closes meanwhile is seen in the queue. Those to end
        # are taken out before those who arrive: each of them has arrived by then, and who arrives
        # and is to end meanwhile is found the next time.
        is_open, left = self.is_open, self._left
        self._woken.clear()  # before taking out: what comes in between wakes the next wait
        cancelled = tuple(_drained(self._cancelled))
        return Taken(is_open, left, tuple(_drained(self._arrived)), cancelled)

    def wait(self, seconds: float) -> None:
        """Until something comes that `take` has not taken out, or the last opener closes."""
        self._woken.wait(seconds)


def _drained(inbox: queue.SimpleQueue[T]) -> Iterator[T]:
    while not inbox.empty():  # there is one reader: what is there stays there
        yield inbox.get_nowait()
