"""The memory of a process that runs tests: what is garbage goes before it fills the machine."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

STATM = Path("/proc/self/statm")

ROOM = 3 << 30
"""Bytes that a process may have. Some tests make garbage of a gigabyte."""


class Memory:
    """Engines are cycles, which are collected seldom in tests; and what threads have freed the C
    library keeps for them.
    """

    def __init__(self, room: int = ROOM) -> None:
        self._room = self._limit = room

    def look(self) -> None:
        """Collect where there is more than the room, and half more than was left by the last time.

        Nothing where the system does not tell.
        """
        if resident() < self._limit:
            return
        gc.collect()
        with suppress(AttributeError, OSError):
            ctypes.CDLL(None).malloc_trim(0)
        self._limit = max(self._room, resident() * 3 // 2)


def settle() -> None:
    """What there is now stays, and no collection after this one looks at it: in a process that has
    run many tests that takes seconds. What is garbage already goes.
    """
    gc.collect()
    gc.freeze()


@contextmanager
def staying_young() -> Iterator[Callable[[], int]]:
    """In the block nothing grows old. What is made in it, and is garbage, the function collects.

    So that no collection looks at what all tests before have left.
    """
    gc.disable()
    try:
        yield partial(gc.collect, 1)
    finally:
        gc.enable()


def resident() -> int:
    """Bytes of this process that are in memory; 0 where the system does not tell."""
    try:
        return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
