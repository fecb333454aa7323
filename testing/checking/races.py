"""Races that a run did not lose: accesses of one piece of memory that the plan leaves unordered.

A wrong plan gives right data in most runs. So checking mode compares what ops touch with what the
plan orders (`clocks.py`; over switches, `legs.py`), not with when it happened: two accesses of one
piece of memory, of which one writes, must be ordered by the plan, however far apart they were this
time. The pieces are the cells of values, states, storages, and the arrays that values are made of.

Vector clocks as in Fidge and Mattern; that a lucky run shows a race is the idea of the
happens-before race detectors, such as FastTrack (Flanagan and Freund 2009).
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable, Iterator
from typing import Any, NamedTuple

from ...executors.parts import is_array
from .legs import Legs
from .memory import Block

REMEMBERED = 16  # steps of each op, for each piece of memory
MOST_ARRAYS = 512  # that are known by identity, the most recent ones


class Access(NamedTuple):
    """One op touched a piece of memory in one step."""

    op: str
    step: int
    writes: bool


class Piece:
    """The latest accesses of one piece of memory, by op."""

    __slots__ = ("accesses",)

    def __init__(self) -> None:
        self.accesses: dict[tuple[str, bool], deque[int]] = {}


class Races:
    """All accesses of one run."""

    def __init__(self, legs: Legs) -> None:
        self._before = legs.before
        self._lock = threading.Lock()
        self._named: dict[Hashable, Piece] = {}
        self._arrays: OrderedDict[int, tuple[object, Piece, bytes]] = OrderedDict()

    def named(self, name: Hashable, access: Access) -> Access | None:
        """Note an access of what has a name: a cell, a state. Like `touch`."""
        with self._lock:
            piece = self._named.setdefault(name, Piece())
        return self.touch(piece, access)

    def forget(self, name: Hashable) -> None:
        """What has this name is never accessed again."""
        self._named.pop(name, None)

    def touch(self, piece: Piece, access: Access) -> Access | None:
        """Note an access; an earlier one that the plan orders neither before nor after it."""
        op, step, writes = access
        with self._lock:
            found = self._unordered(piece, access)
            steps = piece.accesses.setdefault((op, writes), deque(maxlen=REMEMBERED))
            if not steps or steps[-1] != step:
                steps.append(step)
        return found

    def _unordered(self, piece: Piece, access: Access) -> Access | None:
        op, step, writes = access
        before = self._before
        for (other, wrote), steps in piece.accesses.items():
            if not (writes or wrote):
                continue
            for at in reversed(steps):
                if other == op and at == step:
                    continue
                if before(other, at, op, step):
                    break  # and so are its earlier steps
                if not before(op, step, other, at):
                    return Access(other, at, wrote)
        return None

    # --- arrays of numpy, which no operation of torch shows

    def publish_arrays(self, blocks: Iterable[Block], op: str, step: int) -> Access | None:
        """Note that an op publishes these arrays; their content tells whether it wrote."""
        for array in _arrays(blocks):
            content = array.tobytes()
            with self._lock:
                known = self._arrays.get(id(array))
                piece = Piece() if known is None else known[1]
                writes = known is None or known[2] != content
                self._arrays[id(array)] = (array, piece, content)
                self._arrays.move_to_end(id(array))
                if len(self._arrays) > MOST_ARRAYS:
                    self._arrays.popitem(last=False)
            found = self.touch(piece, Access(op, step, writes))
            if found is not None:
                return found
        return None

    def read_arrays(self, blocks: Iterable[Block], op: str, step: int) -> Access | None:
        """Note that an op reads these arrays."""
        for array in _arrays(blocks):
            known = self._arrays.get(id(array))
            if known is not None:
                found = self.touch(known[1], Access(op, step, False))
                if found is not None:
                    return found
        return None


def _arrays(blocks: Iterable[Block]) -> Iterator[Any]:
    return (block.holder for block in blocks if is_array(block.holder))
