"""What a state reaches on the host: objects, and built-in containers.

What libraries hold is not entered, nor the weights of a model, nor what is declared `immutable`:
they are equipment, and what they hold is no state of a graph.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from functools import cache
from types import MappingProxyType
from typing import Any

from ...graph.immutable import never_changes

CONTAINERS = (list, dict, set, deque, tuple, frozenset, MappingProxyType)
CHANGEABLE = (list, dict, set, deque, bytearray)
SCALARS = frozenset({int, float, complex, bool, str, bytes, type(None)})
EQUIPMENT = sys.stdlib_module_names | {
    "huggingface_hub",
    "llguidance",
    "numpy",
    "safetensors",
    "tokenizers",
    "torch",
    "transformers",
    "triton",
    "xgrammar",
}
"""Packages whose objects are not entered."""

MOST = 100_000  # objects and containers of one state
LONG = 64  # a container of as many that begins and ends with a scalar is taken for scalars alone


def written_class(kind: type) -> type:
    """The class as it was written, of one that guards stand before (`guards.py`)."""
    found: type = kind.__dict__.get("_guarded_class", kind)
    return found


def reached(datum: object, through: tuple[type, ...] = (object,)) -> Iterator[Any]:
    """Every object and container that `datum` reaches through such, itself first, each once."""
    seen: set[int] = set()
    left = [datum]
    while left and len(seen) < MOST:
        part = left.pop()
        if id(part) not in seen and _is_entered(kind := written_class(type(part))):
            seen.add(id(part))
            yield part
            if not issubclass(kind, through):
                continue
            left.extend(each for each in _held(part, kind) if type(each) not in SCALARS)


def contents(datum: object) -> list[tuple[Any, Hashable]]:
    """Each built-in container that `datum` reaches, and what tells whether it has changed."""
    return [(part, content(part)) for part in reached(datum) if isinstance(part, CHANGEABLE)]


def content(container: Any) -> Hashable:
    """Equal for equal contents; what is no scalar counts by identity."""
    if isinstance(container, bytearray):
        return bytes(container)
    if isinstance(container, dict):
        return tuple((_name(key), _name(each)) for key, each in container.items())
    names = map(_name, container)
    return frozenset(names) if isinstance(container, set) else tuple(names)


def _name(part: object) -> Hashable:
    return (type(part), part) if type(part) in SCALARS else id(part)


@cache
def _is_entered(kind: type) -> bool:
    if issubclass(kind, (*CONTAINERS, bytearray)):
        return True
    if never_changes(kind) or any(b.__module__.startswith("torch.nn.") for b in kind.__mro__):
        return False
    return kind.__module__.partition(".")[0] not in EQUIPMENT


def _held(part: Any, kind: type) -> Iterator[Any]:
    if issubclass(kind, dict | MappingProxyType):
        yield from _unless_long(part.values())
    elif issubclass(kind, CONTAINERS):
        yield from _unless_long(part)
    for name in _slots(kind):
        try:
            yield object.__getattribute__(part, name)
        except AttributeError:
            continue
    try:
        yield from tuple(object.__getattribute__(part, "__dict__").values())
    except AttributeError:
        return


def _unless_long(held: Any) -> Iterable[Any]:
    if len(held) >= LONG and type(next(iter(held))) in SCALARS:
        reverse = getattr(held, "__reversed__", None)
        if reverse is None or type(next(reverse())) in SCALARS:
            return ()
    return tuple(held)


@cache
def _slots(kind: type) -> tuple[str, ...]:
    found: list[str] = []
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        found += (slots,) if isinstance(slots, str) else slots
    return tuple(name for name in found if name not in ("__dict__", "__weakref__"))
