"""What a datum is made of, as far as a captured graph is concerned: its tensors, and all the rest.

A graph reads tensors when it is replayed, by address; everything else is what it was when the
bodies ran. So two data are the same to a graph if their tensors lie in the same places, and the
rest is equal by type, content and bits: 2 is not 2.0, 0.0 is not -0.0, and nan is itself.

A datum consists of numbers, texts, enumerations, tuples, lists, dicts, dataclasses and objects of
classes written in Python, which are their attributes. Anything else (a NumPy array, a set, a
function, an object of an extension) can change where nobody sees it: it makes a datum `Unstable`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from enum import Enum
from functools import cache, partial
from operator import attrgetter
from types import MappingProxyType, MemberDescriptorType
from typing import Any

import torch
from torch import Tensor

DEEPEST = 16
"""Levels of a datum within another. What refers to itself has no end."""

_bits = partial(struct.pack, "<d")
_BITS: Mapping[type, Callable[[Any], Hashable]] = MappingProxyType(
    {float: _bits, complex: lambda number: (_bits(number.real), _bits(number.imag))}
)
_WHOLE = (bool, bytes, Enum, torch.dtype, torch.device, torch.layout, torch.memory_format, type)
_TEXT_AND_WHOLE_NUMBERS = frozenset((int, str, type(None)))  # equal only if they are the same
_LISTS = (tuple, list, torch.Size)
_WRITTEN_IN_PYTHON = 1 << 9  # Py_TPFLAGS_HEAPTYPE: or made at run time by an extension


class Unstable(Exception):
    """What it says: why such a datum is not worth capturing what reads it."""


def signature(
    datum: Any,
    of_tensor: Callable[[Tensor], Hashable],
    levels: int = DEEPEST,
    of_fixed: Callable[[Any], Hashable] | None = id,
) -> Hashable:
    """Equal for data that a graph cannot tell apart; `of_tensor` says so of two tensors.

    An object with a true attribute `fixed` is known by its identity: its class promises that its
    numbers never change and its tensors never move, as those of a cache that is allocated once.
    `of_fixed`: or by what that says of it; None: it is like any other.

    Raises:
        Unstable: what the datum holds cannot be compared; or it has a true attribute `one_off`: its
            sizes are not expected to come up again.
    """
    kind = type(datum)
    if kind in _TEXT_AND_WHOLE_NUMBERS:
        return datum  # type: ignore[no-any-return]
    if isinstance(datum, Tensor):
        return of_tensor(datum)
    if kind in _BITS:
        return (kind, _BITS[kind](datum))
    if isinstance(datum, _WHOLE):
        return (kind, datum)
    if levels == 0:
        raise Unstable(f"what it reads is more than {DEEPEST} levels deep")
    if kind in _LISTS and _TEXT_AND_WHOLE_NUMBERS.issuperset(map(type, datum)):
        return (kind, *datum)
    if getattr(datum, "one_off", False):
        raise Unstable("sizes that are not rounded up")
    if of_fixed is not None and getattr(datum, "fixed", False):
        return (kind, of_fixed(datum))
    parts = _values(datum)
    if parts is None:
        raise Unstable(f"what it reads holds a {kind.__name__}, whose contents cannot be compared")
    return (
        kind,
        *[
            part
            if type(part) in _TEXT_AND_WHOLE_NUMBERS
            else signature(part, of_tensor, levels - 1, of_fixed)
            for part in parts
        ],
    )


def tensors(datum: Any) -> Iterator[Tensor]:
    """All tensors `[...]` of a datum, in a fixed order."""
    return (part for part in ends(datum) if isinstance(part, Tensor))


def ends(datum: Any, levels: int = DEEPEST) -> Iterator[Any]:
    """All tensors `[...]` of a datum, and what nobody can enter, whatever that holds."""
    kind = type(datum)
    if isinstance(datum, Tensor):
        yield datum
    elif not (isinstance(datum, _WHOLE) or kind in _BITS or kind in _TEXT_AND_WHOLE_NUMBERS):
        parts = _parts(datum) if levels else None
        if parts is None:
            yield datum
        for part in parts or ():
            yield from ends(part, levels - 1)


def mapped(datum: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same with other tensors, changed in the order of `tensors`."""
    if isinstance(datum, Tensor):
        return change(datum)
    kind, parts = type(datum), _parts(datum)
    if parts is None:
        return datum
    made = [mapped(part, change) for part in parts]
    if kind in _LISTS:
        return kind(made)
    if isinstance(datum, tuple):
        return kind(*made)  # a named one
    if kind is dict:
        return dict(zip(made[::2], made[1::2], strict=True))
    changed = object.__new__(kind)
    for name, part in zip(made[::2], made[1::2], strict=True):
        object.__setattr__(changed, name, part)
    return changed


def _values(datum: Any) -> Iterable[Any] | None:
    """What tells a datum from others of its class: attributes without their names, where all
    objects of the class have the same."""
    get = _all_attributes(type(datum))  # type: ignore[arg-type]  # a class can be hashed
    if get is not None:
        try:
            return get(datum)
        except AttributeError:  # one is not set
            pass
    return _parts(datum)


@cache
def _all_attributes(kind: type) -> Callable[[Any], tuple[Any, ...]] | None:
    """Gets the attributes of an object that consists of two slots or more, and nothing else."""
    slots = _slots_if_plain(kind)
    return attrgetter(*slots) if slots and len(slots) > 1 and not kind.__dictoffset__ else None


def _parts(datum: Any) -> list[Any] | None:
    """What a datum consists of, names and keys before what they name; None if nobody can tell."""
    kind: type[object] = type(datum)
    if kind in _LISTS:
        return list(datum)
    if kind is dict:
        return [part for item in datum.items() for part in item]
    if isinstance(datum, tuple) and hasattr(kind, "_fields") and not hasattr(datum, "__dict__"):
        return list(datum)
    slots = _slots_if_plain(kind)  # type: ignore[arg-type]  # a class can be hashed
    if slots is None:
        return None
    found = [
        part for name in slots if hasattr(datum, name) for part in (name, getattr(datum, name))
    ]
    if hasattr(datum, "__dict__"):
        found += [part for item in vars(datum).items() for part in item]
    return found


@cache
def _slots_if_plain(kind: type) -> tuple[str, ...] | None:
    """The slots of a class whose objects consist of slots and a `__dict__`; None of another.

    An object of a class that is not written in Python, such as `functools.partial`, takes more
    memory than a place for each of these.
    """
    if issubclass(kind, type | Enum | tuple) or not kind.__flags__ & _WRITTEN_IN_PYTHON:
        return None
    slots = tuple(
        name
        for base in reversed(kind.__mro__)
        for name, entry in vars(base).items()
        if isinstance(entry, MemberDescriptorType)
    )
    names = ("__dict__",) * bool(kind.__dictoffset__) + ("__weakref__",) * bool(
        kind.__weakrefoffset__
    )
    plain = type("Plain", (), {"__slots__": names})
    size = plain.__basicsize__ + len(slots) * struct.calcsize("P")
    return slots if kind.__basicsize__ == size and kind.__itemsize__ == 0 else None
