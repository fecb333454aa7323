"""What counts as immutable: values of a graph are, all the way down.

An op that reads a value must find in it what its writer has published, in every order that the
plan allows. So what can change after `write` is refused by checking mode: it is a state, and is
declared as one. Exempt is memory, which the planner and checking mode follow: tensors, arrays of
numpy, and the buffer of the value's own slot.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import fractions
import pathlib
import sys
import uuid
from collections.abc import Collection, Iterator
from functools import cache
from types import BuiltinFunctionType, EllipsisType, FunctionType, MappingProxyType
from typing import Any, TypeVar

C = TypeVar("C", bound=type)

_SCALARS = frozenset({type(None), bool, int, float, complex, str, bytes})
_KNOWN: set[type] = {
    *_SCALARS,
    range,
    slice,
    EllipsisType,
    enum.Enum,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    decimal.Decimal,
    fractions.Fraction,
    pathlib.PurePath,
    uuid.UUID,
    type,
    BuiltinFunctionType,
}
"""These and their subclasses, if the subclass adds no attributes of its own."""

_OF_LIBRARIES = (
    ("torch", ("Tensor", "dtype", "device", "layout", "memory_format")),
    ("numpy", ("ndarray", "generic", "dtype")),
)


def immutable(kind: C) -> C:
    """Declare that objects of a class, and all that they reach, never change once they are made.

    For a class that is no frozen dataclass, such as the handle of a library. Use as a decorator, or
    call it with the class. Raises `TypeError` for what is not a class.
    """
    if not isinstance(kind, type):
        raise TypeError(f"immutable: give a class, not {kind!r}")
    _KNOWN.add(kind)
    never_changes.cache_clear()
    return kind


def mutable_part(datum: object, name: str, homes: Collection[object] = ()) -> str | None:
    """What of `datum` could change, with the path to it from `name`; None if nothing can.

    `homes`: objects that it may hold though they change, such as the buffer of its slot.
    """
    found = next(_mutable(datum, name, {id(home) for home in homes}), None)
    return None if found is None else f"{found[0]}: {found[1]}"


def _mutable(datum: Any, path: str, seen: set[int]) -> Iterator[tuple[str, str]]:
    """Each mutable part, and why it is one. `seen`: what need not be looked at (again)."""
    kind: type = type(datum)
    if kind in _SCALARS or id(datum) in seen or never_changes(kind):
        return
    seen.add(id(datum))
    if isinstance(datum, tuple | frozenset):
        yield from _in_sequence(datum, path, seen)
    elif isinstance(datum, MappingProxyType):
        for key, part in datum.items():
            yield from _mutable(key, f"{path} (a key)", seen)
            yield from _mutable(part, f"{path}[{key!r}]", seen)
    elif isinstance(datum, FunctionType):
        for cell in datum.__closure__ or ():
            yield from _mutable(cell.cell_contents, f"{path} (a variable of this function)", seen)
    elif is_frozen(kind):
        for attribute, part in _attributes(datum):
            yield from _mutable(part, f"{path}.{attribute}", seen)
    elif isinstance(datum, list | dict | set | bytearray):
        yield path, f"a {kind.__name__} can be changed"
    else:
        yield path, f"{kind.__name__} is not frozen"


def _in_sequence(datum: Any, path: str, seen: set[int]) -> Iterator[tuple[str, str]]:
    names = getattr(datum, "_fields", None)
    for index, part in enumerate(datum):
        if type(part) not in _SCALARS:
            at = f".{names[index]}" if names else f"[{index}]"
            yield from _mutable(part, path + (at if isinstance(datum, tuple) else "[…]"), seen)


def is_frozen(kind: type) -> bool:
    """Whether a class lets nobody set the attributes of its objects: a frozen dataclass does not,
    nor a frozen model of pydantic.
    """
    if dataclasses.is_dataclass(kind):
        parameters: Any = getattr(kind, "__dataclass_params__", None)
        return bool(parameters.frozen)
    config = getattr(kind, "model_config", None)
    return isinstance(config, dict) and bool(config.get("frozen"))


def _attributes(datum: object) -> Iterator[tuple[str, object]]:
    """What an object holds, in slots and in its dict."""
    for base in type(datum).__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(datum, name):
                yield name, getattr(datum, name)
    yield from tuple(getattr(datum, "__dict__", {}).items())


@cache
def never_changes(kind: type) -> bool:
    """Whether objects of a class count as immutable with all that they reach, or as memory."""
    if any(base in _KNOWN for base in kind.__mro__):
        return True
    return any(
        issubclass(kind, getattr(sys.modules[library], name))
        for library, names in _OF_LIBRARIES
        if library in sys.modules
        for name in names
    )
