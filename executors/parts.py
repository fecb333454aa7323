"""What a datum is made of: its parts, found without knowing any type of ours.

Tuples, lists, dicts, sets and the attributes of objects are entered; modules of torch (weights are
equipment, no value), functions and classes are not. Nothing here imports torch or numpy, since a
graph of plain functions runs without them.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Container, Iterator
from types import BuiltinFunctionType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any

MAX_DEPTH = 8
MAX_OBJECTS = 4096
FEW = 16  # items of a sequence, up to which all are looked at
PATIENCE = 12  # fruitless walks of a type before it is entered only at powers of two

SCALARS = (int, float, bool, complex, str, bytes, type(None))
PLAIN = frozenset(SCALARS)  # for a look-up by the exact type, which is faster
CONTAINERS = (list, tuple, dict, set, frozenset, deque)
_CODE = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType)


def is_tensor(datum: object) -> bool:
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(datum, torch.Tensor)


def is_array(datum: object) -> bool:
    numpy: Any = sys.modules.get("numpy")
    return numpy is not None and isinstance(datum, numpy.ndarray)


def is_memory(datum: object) -> bool:
    return is_tensor(datum) or is_array(datum) or isinstance(datum, bytearray)


_sorts: dict[type, str] = {}


def _sort(kind: type) -> str:
    """What to do with objects of a class: "memory", "entered", or "left" where there is no data:
    scalars, code, weights, names of devices and types.
    """
    torch: Any = sys.modules.get("torch")
    numpy: Any = sys.modules.get("numpy")
    memory = (bytearray, *([torch.Tensor] if torch else []), *([numpy.ndarray] if numpy else []))
    left: tuple[type, ...] = (*SCALARS, *_CODE)
    if torch is not None:
        left += (torch.nn.Module, torch.device, torch.dtype)
    sort = "memory" if issubclass(kind, memory) else "left" if issubclass(kind, left) else "entered"
    _sorts[kind] = sort
    return sort


def parts(datum: Any) -> Iterator[tuple[str, object]]:
    """Each direct part that is no scalar, and how it is reached: `[0]`, `['key']` or `.name`."""
    if isinstance(datum, dict | MappingProxyType):
        for key, part in tuple(datum.items()):
            if not isinstance(part, SCALARS):
                yield f"[{key!r}]", part
    elif isinstance(datum, list | tuple | deque):
        # A long one that begins and ends with a number is taken for numbers: a list of tokens.
        ends = (datum[0], datum[-1]) if len(datum) > FEW else ()
        if not ends or not all(isinstance(each, int) for each in ends):
            names = getattr(datum, "_fields", None)
            for index, part in enumerate(tuple(datum)):
                if not isinstance(part, SCALARS):
                    yield f".{names[index]}" if names else f"[{index}]", part
    elif isinstance(datum, set | frozenset):
        for part in tuple(datum):
            if not isinstance(part, SCALARS):
                yield "[…]", part
    else:
        for path, name in _slots(type(datum)):
            part = getattr(datum, name, None)
            if type(part) not in PLAIN and not isinstance(part, SCALARS):
                yield path, part
        for name, part in tuple(getattr(datum, "__dict__", {}).items()):
            if type(part) not in PLAIN and not isinstance(part, SCALARS):
                yield f".{name}", part


class Patience:
    """Which types are worth entering: one that was entered in vain is entered ever more seldom.

    So requests and batches of host objects, which hold no memory, cost next to nothing.
    """

    def __init__(self) -> None:
        self._fruitless: dict[type, int] = {}

    def has(self, kind: type) -> bool:
        tried = self._fruitless.get(kind, 0)
        if tried < PATIENCE:
            return True
        self._fruitless[kind] = tried + 1
        return tried & (tried - 1) == 0

    def note(self, kind: type, *, found: bool) -> None:
        if kind not in CONTAINERS:
            self._fruitless[kind] = 0 if found else self._fruitless.get(kind, 0) + 1


def reached(datum: object, patience: Patience, known: Container[int] = ()) -> list[tuple[str, Any]]:
    """Every object that `datum` reaches, itself first, with the path to it; no scalars.

    Up to a depth and a number of objects. Tensors, arrays and bytearrays are not entered, nor are
    objects with an id among `known` that promise by a true attribute `fixed` that their tensors
    never move.
    """
    walk = _Walk(patience, known)
    walk.enter(datum, "", 0)
    return walk.found


class _Walk:
    """One walk through a datum. It is done for each datum that an op publishes: no generators."""

    __slots__ = ("found", "known", "left", "memory", "patience", "seen")

    def __init__(self, patience: Patience, known: Container[int]) -> None:
        self.found: list[tuple[str, Any]] = []
        self.patience, self.known = patience, known
        self.seen: set[int] = set()
        self.left = MAX_OBJECTS
        self.memory = 0  # how many of those so far were memory

    def enter(self, datum: object, path: str, depth: int) -> None:
        """Note the datum, and what it reaches from this depth on."""
        kind = type(datum)
        sort = _sorts.get(kind) or _sort(kind)
        if sort == "memory":
            self.memory += 1
            self.found.append((path, datum))
            return
        if sort != "entered" or depth >= MAX_DEPTH or id(datum) in self.seen or self.left <= 0:
            return
        self.seen.add(id(datum))
        self.found.append((path, datum))
        if id(datum) in self.known and getattr(datum, "fixed", False):
            self.memory += 1
            return
        if not self.patience.has(kind):
            return
        before = self.memory
        for name, part in parts(datum):
            self.left -= 1
            if self.left <= 0:
                break
            self.enter(part, path + name, depth + 1)
        self.patience.note(kind, found=self.memory > before)


_known_slots: dict[type, tuple[tuple[str, str], ...]] = {}


def _slots(kind: type) -> tuple[tuple[str, str], ...]:
    """The path to each slot of a class, and its name."""
    if kind not in _known_slots:
        _known_slots[kind] = _slots_of(kind)
    return _known_slots[kind]


def _slots_of(kind: type) -> tuple[tuple[str, str], ...]:
    found: list[str] = []
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        found += (slots,) if isinstance(slots, str) else slots
    return tuple((f".{name}", name) for name in found if name not in ("__dict__", "__weakref__"))
