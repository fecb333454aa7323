"""Who touches a host object of a state must have declared that state.

For the time of a run the objects that a state reaches have another class: a subclass of theirs,
under which each access to an attribute asks which op is at work on this thread. So it does not
matter how an op has come by the object: through a closure, a global, or a value. A thread that is
at work on no op, such as one that submits requests, is not asked.

Built-in containers cannot have another class, but who has one of them got it from an object; for
states that are such containers themselves see `references.py`. Tensors are watched (`monitor.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from types import FunctionType
from typing import Any, NoReturn, Protocol

from ...graph.immutable import is_frozen
from .reach import reached, written_class


class Worker(Protocol):
    """The checks of an op that is at work."""

    @property
    def may_touch(self) -> frozenset[str]:
        """The states that the op declares."""

    @property
    def may_change(self) -> frozenset[str]:
        """Those of them that it declares to write."""

    def reaches(self, owners: Collection[str], what: str, *, writes: bool) -> NoReturn:
        """It touches `what` of states none of which it declares, or none to write."""


class _AtWork(threading.local):
    op: Worker | None = None


AT_WORK = _AtWork()
"""The op whose function this thread runs. None: it runs no op, or checking mode itself."""


@contextmanager
def outside_ops() -> Iterator[None]:
    """For what stands around an op, such as a fault on purpose: what it touches is no access."""
    before, AT_WORK.op = AT_WORK.op, None
    try:
        yield
    finally:
        AT_WORK.op = before


class Guards:
    """What is guarded of the states of one run, `states` by name."""

    def __init__(self, states: Mapping[str, object]) -> None:
        self._states = states
        self._lock = threading.Lock()
        self._reached: dict[str, dict[int, Any]] = {}  # by state: its objects, by identity
        self._owners: dict[int, frozenset[str]] = {}
        self._sharing: dict[str, set[str]] = {name: set() for name in states}

    def look(self, states: Collection[str]) -> None:
        """Guard what these states reach now, and no longer what they do not reach any more.

        What came into an object that one shares with another state is reached by that one too.
        """
        with self._lock:
            for state in states:
                self._look(state)
            sharing = {other for state in states for other in self._sharing[state]}
            for other in sharing.difference(states):
                self._look(other)

    def _look(self, state: str) -> None:
        now: dict[int, Any] = {}
        for part in reached(self._states[state]):
            kind: type = type(part)
            if _can_be_guarded(kind):
                now[id(part)] = part
        before = self._reached.get(state, {})
        self._reached[state] = now
        for key in now.keys() - before.keys():
            self._own(now[key], self._owners.get(key, frozenset()) | {state})
        for key in before.keys() - now.keys():
            self._own(before[key], self._owners[key] - {state})

    def release(self) -> None:
        """Every object has its own class again."""
        with self._lock:
            for objects in self._reached.values():
                for part in objects.values():
                    _set_class(part, written_class(type(part)))
            self._reached.clear()
            self._owners.clear()

    def _own(self, part: object, owners: frozenset[str]) -> None:
        kind = written_class(type(part))
        if owners:
            self._owners[id(part)] = owners
            for state in owners if len(owners) > 1 else ():
                self._sharing[state] |= owners - {state}
        else:
            del self._owners[id(part)]
        _set_class(part, _guarded(kind, owners) if owners else kind)


def _set_class(part: object, kind: type) -> None:
    """Where the memory of an object is laid out so that it cannot change its class, it keeps it."""
    try:
        object.__setattr__(part, "__class__", kind)
    except TypeError:
        return


_FROZEN = (tuple, frozenset, int, float, complex, str, bytes)


@cache
def _can_be_guarded(kind: type) -> bool:
    """Whether objects of a class can change, and can be of another class meanwhile."""
    kind = written_class(kind)
    of_a_class_statement = bool(kind.__flags__ & 1 << 9)
    makes = next(base for base in kind.__mro__ if "__init_subclass__" in base.__dict__)
    told_of_subclasses = makes is not object and makes.__module__ != "typing"
    frozen = is_frozen(kind) or issubclass(kind, _FROZEN)
    return of_a_class_statement and not frozen and not told_of_subclasses


@cache
def _guarded(kind: type, owners: frozenset[str]) -> type:
    """The subclass of `kind` whose objects belong to these states; `kind` where it has none."""
    read: Any = kind.__getattribute__
    write: Any = kind.__setattr__
    remove: Any = kind.__delattr__

    def reads(name: str) -> None:
        op = AT_WORK.op
        if op is not None and owners.isdisjoint(op.may_touch):
            op.reaches(owners, f"{kind.__qualname__}.{name}", writes=False)

    def writes(name: str) -> None:
        op = AT_WORK.op
        if op is not None and owners.isdisjoint(op.may_change):
            op.reaches(owners, f"{kind.__qualname__}.{name}", writes=True)

    def __getattribute__(self: Any, name: str) -> Any:
        if name == "__class__":
            return kind  # what compares classes finds the one that was written
        op = AT_WORK.op  # as in `reads`, without a call: there are thousands in a step
        undeclared = op is not None and owners.isdisjoint(op.may_touch)
        if undeclared and (not name.startswith("__") or name == "__dict__"):
            reads(name)
        return read(self, name)

    def __setattr__(self: Any, name: str, value: Any) -> None:
        writes(name)
        write(self, name, value)

    def __delattr__(self: Any, name: str) -> None:
        writes(name)
        remove(self, name)

    members: dict[str, Any] = {
        "__slots__": (),
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
        "_guarded_class": kind,
        "__getattribute__": __getattribute__,
        "__setattr__": __setattr__,
        "__delattr__": __delattr__,
    }
    for name, asks in {**dict.fromkeys(_READING, reads), **dict.fromkeys(_WRITING, writes)}.items():
        method = getattr(kind, name, None)
        if method is not None and not isinstance(method, FunctionType):
            members[name] = _asking_first(name, method, asks)
    try:
        return type(kind)(kind.__name__, (kind,), members)
    except TypeError:  # a class that allows no subclass
        return kind


_READING = ("__len__", "__getitem__", "__contains__", "__iter__", "__reversed__", "__next__")
_WRITING = ("__setitem__", "__delitem__", "__iadd__", "__ior__", "__iand__", "__isub__", "__ixor__")
"""What Python calls without asking for an attribute. Methods written in Python do ask for some."""


def _asking_first(name: str, method: Any, asks: Callable[[str], None]) -> Callable[..., Any]:
    def asking(self: Any, *arguments: Any) -> Any:
        asks(name)
        return method(self, *arguments)

    return asking
