"""What a state reaches on the host: objects, and built-in containers.

What libraries hold is not entered, nor the weights of a model, nor what is declared `immutable`:
they are equipment, and what they hold is no state of a graph.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
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
LONG, LONG_MAPPING = 4, 64  # as many that begin and end with a scalar are taken for scalars alone


def written_class(kind: type) -> type:
    """The class as it was written, of one that guards stand before (`guards.py`)."""
    found: type = kind.__dict__.get("_guarded_class", kind)
    return found


def reached(datum: object, through: tuple[type, ...] = (object,)) -> Iterator[Any]:
    """Every object and container that `datum` reaches through such, itself first, each once."""
    everything = through == (object,)
    seen: set[int] = set()
    left: list[Any] = [datum]
    while left and len(seen) < MOST:
        part = left.pop()
        if id(part) in seen:
            continue
        way = _ways.get(type(part)) or _learn(type(part))
        if way.entered:
            seen.add(id(part))
            yield part
            if everything or issubclass(way.kind, through):
                _enter(part, way, left)


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


@dataclass(frozen=True, slots=True)
class _Way:
    """How the objects of a class are entered."""

    kind: type
    entered: bool
    maps: bool = False
    holds: bool = False
    slots: tuple[Callable[[Any], Any], ...] = ()  # what gets each
    has_dict: bool = False


_ways: dict[type, _Way] = {}
_not_entered: set[object] = set(SCALARS)  # and those of `_ways`


def _learn(given: type) -> _Way:
    kind = written_class(given)
    slots = tuple(
        base.__dict__[name].__get__
        for base in kind.__mro__
        for name in _names(base.__dict__.get("__slots__", ()))
        if name in base.__dict__ and name not in ("__dict__", "__weakref__")
    )
    way = _ways[given] = _Way(
        kind,
        entered=_is_entered(kind),
        maps=issubclass(kind, dict | MappingProxyType),
        holds=issubclass(kind, CONTAINERS),
        slots=slots,
        has_dict=any("__dict__" in base.__dict__ for base in kind.__mro__),
    )
    if not way.entered:
        _not_entered.add(given)
    return way


def _names(slots: str | Iterable[str]) -> Iterable[str]:
    return (slots,) if isinstance(slots, str) else slots


def _is_entered(kind: type) -> bool:
    unchanging = never_changes(kind)
    if issubclass(kind, (*CONTAINERS, bytearray)):
        return True
    if unchanging or any(b.__module__.startswith("torch.nn.") for b in kind.__mro__):
        return False
    return kind.__module__.partition(".")[0] not in EQUIPMENT


def _enter(part: Any, way: _Way, left: list[Any]) -> None:
    """Add what `part` holds to what is left to look at, but for what is not entered."""
    if way.holds:
        held = _unless_scalars(part.values(), LONG_MAPPING) if way.maps else _unless_scalars(part)
        left += [each for each in held if type(each) not in _not_entered]
    for slot in way.slots:
        try:
            each = slot(part)
        except AttributeError:  # not set yet
            continue
        if type(each) not in _not_entered:
            left.append(each)
    if way.has_dict:
        held = tuple(_get(part, "__dict__").values())
        left += [each for each in held if type(each) not in _not_entered]


_get = object.__getattribute__


def _unless_scalars(held: Any, least: int = LONG) -> Iterable[Any]:
    if len(held) >= least and type(next(iter(held), None)) in SCALARS:
        reverse = getattr(held, "__reversed__", None)
        if reverse is None or type(next(reverse(), None)) in SCALARS:
            return ()
    return tuple(held)
