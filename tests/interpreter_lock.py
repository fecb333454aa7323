"""Whether a call gives the interpreter's lock back: the turns of a neighbour tell."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

TRIES = 50


class Neighbour:
    """A thread that counts its turns, and gives up the lock after each of its own accord."""

    def __init__(self) -> None:
        self.turns = 0
        self._go_on = True
        self._thread = threading.Thread(target=self._count)

    def __enter__(self) -> Neighbour:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._go_on = False
        self._thread.join()

    def _count(self) -> None:
        while self._go_on:
            self.turns += 1
            time.sleep(0)


@contextmanager
def nobody_is_interrupted() -> Iterator[None]:
    """A thread loses the lock only where it gives it up: the interpreter never takes it away."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(3600)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


def turns_during(neighbour: Neighbour, call: object) -> bool:
    """Whether the neighbour had a turn while a call was under way; it is made up to 50 times, as
    the machine may have other things to do than to run the neighbour."""
    assert callable(call)
    for _ in range(TRIES):
        before = neighbour.turns
        call()
        if neighbour.turns > before:
            return True
    return False
