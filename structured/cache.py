"""Compiled grammars kept for the next request that asks for the same, bounded in bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Kept = TypeVar("Kept")


class ByteCache(Generic[Key, Kept]):
    """Least recently used goes first. What alone exceeds the bound is never kept, so that one
    huge grammar does not push out all others. Safe to call from several threads.

    Args:
        limit: bytes of all that is kept; 0 keeps nothing.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: OrderedDict[Key, tuple[Kept, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """Bytes of all that is kept."""
        return self._bytes

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Key) -> Kept | None:
        """What is kept under a key, which is then the most recently used."""
        with self._lock:
            if key not in self._kept:
                return None
            self._kept.move_to_end(key)
            return self._kept[key][0]

    def put(self, key: Key, value: Kept, nbytes: int) -> None:
        """Keep a value of that size if it fits, in place of the least recently used."""
        with self._lock:
            if key in self._kept:
                self._bytes -= self._kept.pop(key)[1]
            if nbytes > self._limit:
                return
            self._kept[key] = (value, nbytes)
            self._bytes += nbytes
            while self._bytes > self._limit:
                self._bytes -= self._kept.popitem(last=False)[1][1]
