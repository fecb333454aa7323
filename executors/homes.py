"""The memory of slots: made once, written again and again, and nobody else's.

A value with slots and an `allocate` has one *home* for each slot. An op fills the home of its slot
and publishes it. Memory that will be written again must not be read under another name, or as
another version: nothing would order those readers and the next writer. So

- `allocate` has to give each slot memory of its own;
- what an op publishes may lie in the home of its own slot. What lies in the home of another slot or
  value, or in a state, is copied into the slot's home, or refused where there is none that fits;
- of a value with homes, what lies anywhere else is copied into the home as well. So the value
  always lies where it lay, whatever an op publishes.

All other data are held by reference: numbers, texts, and memory that nobody writes again, which
versions and values may share.
"""

from __future__ import annotations

import ctypes
import sys
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

from ..graph.errors import StepweaveError
from .parts import (
    CONTAINERS,
    PLAIN,
    SCALARS,
    Patience,
    is_array,
    is_memory,
    is_tensor,
    parts,
    reached,
)

_MUTABLE = (list, dict, set, bytearray)
_patience = Patience()


class Home(NamedTuple):
    """One slot of a value, or a state."""

    name: str
    slot: int | None = None

    def __str__(self) -> str:
        where = "the state" if self.slot is None else f"slot {self.slot} of value"
        return f"{where} {self.name!r}"


class _Span(NamedTuple):
    """Addresses start … end − 1, whose they are, and whether they still are."""

    start: int
    end: int
    home: Home
    alive: Callable[[], bool]


class Homes:
    """Which memory belongs to which slot or state, for one run."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._spans: list[_Span] = []
        self._objects: dict[int, tuple[object, Home]] = {}  # buffers that are plain objects

    def add_state(self, name: str, datum: object) -> None:
        """Note the memory that a state reaches now. States may share theirs."""
        for start, end, alive in _spans(datum):
            if self._span(start) is None:
                self._insert(_Span(start, end, Home(name), alive))

    def add_slot(self, name: str, slot: int, buffer: object) -> None:
        """Note the memory of a slot. Raises `StepweaveError` where it is another's already."""
        home = Home(name, slot)
        for start, end, alive in _spans(buffer):
            taken = self._span(start) or self._within(start, end)
            if taken is None:
                self._insert(_Span(start, end, home, alive))
            elif taken.home != home:
                raise _shared_allocation(home, taken.home)
        for part in _objects(buffer):
            known = self._objects.setdefault(id(part), (part, home))
            if known[1] != home:
                raise _shared_allocation(home, known[1])

    def check_initial(self, name: str, datum: object) -> None:
        """What is read before step 0 must not lie in a slot, which step 0 may already fill.

        Raises `StepweaveError` if it does.
        """
        taken = next((home for home in self.of(datum) if home and home.slot is not None), None)
        if taken is not None:
            raise StepweaveError(
                f"value {name!r}: its `initial` is in the memory of {taken}, which is overwritten"
                " while `initial` is still read. Give it a tensor or object of its own.",
                code="SW-SHARED-MEMORY",
            )

    def of(self, datum: object) -> set[Home | None]:
        """Whose memory a datum reaches; None stands for memory that is nobody's."""
        found: set[Home | None] = set()
        for _, part in reached(datum, _patience, self._objects):
            address = None
            if is_tensor(part):
                address = _address_of_tensor(part)
            elif is_array(part):
                address = _address_of_array(part)
            if address is not None:
                if address:
                    span = self._span(address)
                    found.add(None if span is None else span.home)
            elif (known := self._objects.get(id(part))) is not None:
                found.add(known[1])
            elif isinstance(part, _MUTABLE):
                found.add(None)
        return found

    def _span(self, address: int) -> _Span | None:
        at = bisect_right(self._starts, address) - 1
        if at < 0:
            return None
        span = self._spans[at]
        return span if address < span.end and span.alive() else None

    def _within(self, start: int, end: int) -> _Span | None:
        """A span that begins inside another allocation, as a part of an array does."""
        at = bisect_right(self._starts, start)
        if at < len(self._spans) and self._spans[at].start < end and self._spans[at].alive():
            return self._spans[at]
        return None

    def _insert(self, span: _Span) -> None:
        at = bisect_right(self._starts, span.start)
        self._starts.insert(at, span.start)
        self._spans.insert(at, span)


def is_plain(datum: object) -> bool:
    """Whether nobody could ever change it: a number, a text, none."""
    return type(datum) in PLAIN


def share(first: object, second: object) -> bool:
    """Whether two data reach the same memory."""
    homes = Homes()
    homes.add_slot("", 0, first)
    return Home("", 0) in homes.of(second)


def _shared_allocation(home: Home, other: Home) -> StepweaveError:
    return StepweaveError(
        f"value {home.name!r}: `allocate` gave {home} the memory of {other}, so one would overwrite"
        " the other. Make a new buffer in each call.",
        code="SW-SHARED-MEMORY",
    )


# --- filling a home from another datum ------------------------------------------------------


def fits(home: Any, datum: Any) -> bool:
    """Whether `datum` can be copied into `home`: the same kind, shapes, dtypes and devices."""
    if is_tensor(home):
        return (
            is_tensor(datum)
            and home.shape == datum.shape
            and home.dtype == datum.dtype
            and home.device == datum.device
        )
    if is_array(home):
        return is_array(datum) and home.shape == datum.shape and home.dtype == datum.dtype
    if type(home) is not type(datum):
        return False
    if isinstance(home, list | dict | set):
        content = datum.values() if isinstance(datum, dict) else datum
        return all(isinstance(each, SCALARS) for each in content)
    if isinstance(home, bytearray):
        return len(home) == len(datum)
    if is_dataclass(home):
        pairs = [(getattr(home, f.name), getattr(datum, f.name)) for f in fields(home)]
        return all(mine is its or fits(mine, its) for mine, its in pairs)
    return is_plain(home) and bool(home == datum)


def fill(home: Any, datum: Any) -> None:
    """Copy `datum`, which fits, into `home`."""
    if is_tensor(home):
        torch: Any = sys.modules["torch"]
        with torch.inference_mode():
            home.copy_(datum)
    elif is_array(home):
        home[...] = datum
    elif isinstance(home, list | bytearray):
        home[:] = datum
    elif isinstance(home, dict | set):
        home.clear()
        home.update(datum)
    elif is_dataclass(home):
        for field in fields(home):
            mine, its = getattr(home, field.name), getattr(datum, field.name)
            if mine is not its:
                fill(mine, its)


# --- addresses ------------------------------------------------------------------------------


def _address_of_array(datum: Any) -> int:
    """Where its data begin; 0 where they lie in no memory."""
    return int(datum.__array_interface__["data"][0]) if datum.nbytes else 0


def _address_of_tensor(datum: Any) -> int:
    """Where its data begin; 0 where they lie in no memory."""
    torch: Any = sys.modules["torch"]
    try:
        # Not `datum.data_ptr`, which checking mode replaces by a wrapper that tells of it.
        return int(torch._C.TensorBase.data_ptr(datum))
    except (NotImplementedError, RuntimeError):  # sparse, or of a subclass without storage
        return 0


def _spans(datum: object) -> Iterator[tuple[int, int, Callable[[], bool]]]:
    """All memory that a datum reaches, as whole allocations; not that of read-only arrays."""
    for _, part in reached(datum, _patience):
        if is_memory(part):
            yield from _allocation(part)


def _allocation(holder: Any) -> Iterator[tuple[int, int, Callable[[], bool]]]:
    if isinstance(holder, bytearray):
        if holder:
            start = ctypes.addressof((ctypes.c_char * len(holder)).from_buffer(holder))
            yield start, start + len(holder), lambda: True
        return
    if is_array(holder):
        while is_array(holder.base):
            holder = holder.base
        if is_tensor(holder.base):
            yield from _allocation(holder.base)
            return
        constant = holder.base is None and not holder.flags.writeable
        if holder.nbytes and holder.dtype != object and not constant:
            start = _address_of_array(holder)
            reference = weakref.ref(holder)
            yield start, start + holder.nbytes, lambda: reference() is not None
        return
    from torch.multiprocessing import reductions

    try:
        storage = holder.untyped_storage()
        start, size = storage.data_ptr(), storage.nbytes()
    except (NotImplementedError, RuntimeError):
        return
    if start and size:
        reference_to: Any = reductions.StorageWeakRef
        weak = reference_to(storage)
        yield start, start + size, lambda: not weak.expired()


def _objects(buffer: object) -> Iterator[object]:
    """The objects by which a buffer is known: itself, and mutable containers in it."""
    if is_tensor(buffer) or is_array(buffer) or isinstance(buffer, SCALARS):
        return
    pending = [buffer]
    seen: set[int] = set()
    while pending:
        part = pending.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if (part is buffer and type(part) not in (tuple, frozenset)) or isinstance(part, _MUTABLE):
            yield part
        if isinstance(part, CONTAINERS):
            pending += [each for _, each in parts(part)]
