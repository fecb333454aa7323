"""An event that a signal handler may set while its own thread is inside the event."""

from __future__ import annotations

import queue
from contextlib import suppress


class Wake:
    """Wakes the one thread that waits, now or when it next does; set from any thread.

    `threading.Event` deadlocks where a signal handler interrupts one of the event's methods and
    calls another, since they share a lock; putting into a `SimpleQueue` is reentrant.
    """

    def __init__(self) -> None:
        self._set: queue.SimpleQueue[None] = queue.SimpleQueue()

    def set(self) -> None:
        self._set.put(None)

    def clear(self) -> None:
        while not self._set.empty():  # one thread takes out
            self._set.get_nowait()

    def wait(self, seconds: float) -> None:
        """Until it is set, which this takes back, or for so long."""
        with suppress(queue.Empty):
            self._set.get(timeout=seconds)
