"""Whose memory is whose: from an address to the values and states that it belongs to.

Memory belongs to at most one *home*, a state or a buffer that a slot keeps, or else to any number
of versions of values, which may share what neither changes. Memory that a version had, and no
version has any more, is *retired*. Everything else, such as weights, constants and intermediate
results, belongs to nobody and is free.

An address alone names no memory, since allocators hand it out again; so an entry holds the storage
by a weak reference, and counts for nothing once that has expired. Look-ups take no lock: the table
is replaced as a whole, and an entry's owners are an immutable set.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterable
from typing import Any, NamedTuple

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from .memory import Block
from .races import Piece


class Key(NamedTuple):
    """A version of a value (−1: every one before step 0); without one, a state or a slot."""

    name: str
    version: int | None = None


_WEAK: Any = StorageWeakRef


class Entry:
    """One storage that belongs, or did belong, to somebody."""

    __slots__ = (
        "born",
        "end",
        "filled",
        "home",
        "owners",
        "paths",
        "pieces",
        "reference",
        "retired",
        "start",
    )

    def __init__(self, block: Block) -> None:
        assert isinstance(block.holder, Tensor)
        self.start, self.end = block.start, block.start + block.nbytes
        storage: Any = block.holder.untyped_storage()
        self.reference: Any = _WEAK(storage)
        self.home: Key | None = None
        self.owners: frozenset[Key] = frozenset()
        self.retired: Key | None = None
        self.born = False  # it was allocated by the op that published it
        self.filled: int | None = None  # of a slot: the step that last filled it
        self.paths: dict[str, str] = {}
        self.pieces: dict[str, Piece] = {}  # who accessed it, and when; by class of users, if any

    def piece(self, users: str = "") -> Piece:
        """Those who accessed it; where its parts have keys, those of one class of users."""
        return self.pieces.setdefault(users, Piece())

    @property
    def free(self) -> bool:
        """Nobody's: an intermediate result, a weight, a constant."""
        return self.home is None and not self.owners and self.retired is None

    @property
    def alive(self) -> bool:
        expired: bool = self.reference.expired()
        return not expired


class Owners:
    """The entries of one run, by address."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._table: tuple[list[int], list[Entry]] = ([], [])
        self._most = 64  # entries; beyond that, the expired ones go

    def find(self, address: int) -> Entry | None:
        """The entry of the memory at `address`, also of a part of it seen as a storage."""
        entry = self.near(address)
        while entry is not None and not entry.alive:
            with self._lock:
                self._drop_expired()
            entry = self.near(address)
        return entry

    def near(self, address: int) -> Entry | None:
        """Like `find`, but the entry may have expired and the memory be another's by now."""
        starts, entries = self._table
        at = bisect_right(starts, address) - 1
        if at >= 0 and address < entries[at].end:
            return entries[at]
        return None

    def claim(self, blocks: Iterable[Block], key: Key, *, home: bool = False) -> list[Entry]:
        """Say that `blocks` belong to `key`. Memory that has a home stays there."""
        found = []
        with self._lock:
            for block in blocks:
                known = self.find(block.start)
                if known is None and not isinstance(block.holder, Tensor):
                    continue  # an array; one that lies in the memory of a tensor is known by that
                entry = known or self._add(Entry(block))
                entry.paths[key.name] = block.path
                entry.retired = None
                if home:
                    entry.home = entry.home or key
                elif entry.home is None:
                    entry.owners |= {key}
                found.append(entry)
        return found

    def note(self, block: Block) -> None:
        """Know memory that is nobody's, from now on."""
        with self._lock:
            if self.find(block.start) is None:
                self._add(Entry(block))

    def retire(self, blocks: Iterable[Block], key: Key) -> list[Block]:
        """Those of `blocks` that nobody has now that the last reader of `key` is done."""
        left = []
        with self._lock:
            for block in blocks:
                entry = self.find(block.start)
                if entry is None or key not in entry.owners:
                    continue
                entry.owners -= {key}
                if not entry.owners and entry.home is None and entry.born:
                    entry.retired = key
                    left.append(block)
        return left

    def _add(self, entry: Entry) -> Entry:
        starts, entries = self._table[0].copy(), self._table[1].copy()
        at = bisect_right(starts, entry.start)
        starts.insert(at, entry.start)
        entries.insert(at, entry)
        self._table = (starts, entries)
        if len(entries) > self._most:
            self._drop_expired()
            self._most = 2 * len(self._table[1]) + 64
        return entry

    def _drop_expired(self) -> None:
        kept = [entry for entry in self._table[1] if entry.alive]
        self._table = ([entry.start for entry in kept], kept)
