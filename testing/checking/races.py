"""Races that a run did not lose: accesses of one piece of memory that the plan leaves unordered.

A wrong plan gives right data in most runs. So checking mode compares what ops touch with what the
plan orders (`clocks.py`), not with when it happened: two accesses of one piece of memory, of which
one writes, must be ordered by the plan, however far apart they were this time. The pieces are the
cells of values, states, storages, and mutable objects that values are made of.

Vector clocks as in Fidge and Mattern; that a lucky run shows a race is the idea of the
happens-before race detectors, such as FastTrack (Flanagan and Freund 2009).
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple

from ...executors.parts import SCALARS, is_array, parts
from .clocks import Clocks

REMEMBERED = 16  # steps of each op, for each piece of memory
MOST_OBJECTS = 512  # mutable objects that are known by identity, the most recent ones


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

    def __init__(self, clocks: Clocks) -> None:
        self._before = clocks.before
        self._lock = threading.Lock()
        self._named: dict[Hashable, Piece] = {}
        self._objects: OrderedDict[int, tuple[object, Piece, object]] = OrderedDict()

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

    # --- mutable objects, which no operation of torch shows

    def publish_objects(self, datum: object, op: str, step: int) -> Access | None:
        """Note that an op publishes what `datum` is made of; its content tells whether it wrote."""
        for part in _mutable(datum):
            content = _content(part)
            with self._lock:
                known = self._objects.get(id(part))
                piece = Piece() if known is None else known[1]
                writes = known is None or known[2] != content
                self._objects[id(part)] = (part, piece, content)
                self._objects.move_to_end(id(part))
                if len(self._objects) > MOST_OBJECTS:
                    self._objects.popitem(last=False)
            found = self.touch(piece, Access(op, step, writes))
            if found is not None:
                return found
        return None

    def read_objects(self, datum: object, op: str, step: int) -> Access | None:
        """Note that an op reads what `datum` is made of."""
        for part in _mutable(datum):
            known = self._objects.get(id(part))
            if known is not None:
                found = self.touch(known[1], Access(op, step, False))
                if found is not None:
                    return found
        return None


def _mutable(datum: object, depth: int = 0) -> Iterator[Any]:
    """Lists, dicts, sets, bytearrays and arrays in `datum`, through containers only.

    Objects of classes are not entered: a batch reaches its requests, which change as a state.
    """
    if isinstance(datum, list | dict | set | bytearray) or is_array(datum):
        yield datum
    if depth < 4 and isinstance(datum, list | dict | set | tuple | frozenset):
        for _, part in parts(datum):
            yield from _mutable(part, depth + 1)


def _content(part: Any) -> object:
    """Equal for equal contents; parts that are not scalars count by identity."""
    if is_array(part):
        return part.tobytes() if part.dtype != object else None
    if isinstance(part, bytearray):
        return bytes(part)
    if isinstance(part, dict):
        return tuple((_key(key), _key(each)) for key, each in part.items())
    return tuple(sorted(map(_key, part), key=repr) if isinstance(part, set) else map(_key, part))


def _key(part: object) -> object:
    return (type(part), part) if isinstance(part, SCALARS) else id(part)
