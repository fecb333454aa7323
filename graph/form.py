"""Refusing declarations that are not of the types they say, before anything is made of them.

Dataclasses take whatever they are given: a text in place of a list would be read letter by letter,
and a mapping by its keys alone. Whether declarations of the right form make sense is asked after
that (`validate.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from .arguments import a, text, texts, whole, wrong
from .modes import Mode
from .node import Comm, Node, Op, Read, State, Value

T = TypeVar("T")

MAX_BYTES = 2**60  # of one slot: past that a number is a typing error
LISTED = (tuple, list)


def check_form(
    nodes: Sequence[object],
    values: Sequence[object],
    states: Sequence[object],
    modes: Sequence[object],
    told_by: object,
) -> None:
    """Raise a `GraphError` for the first declaration that is not what it stands for."""
    where = "StepGraph.build"
    _check_each(nodes, "nodes", Node, "a Node", _check_node)
    _check_each(values, "values", Value, "a Value", _check_value)
    _check_each(states, "states", State, "a name or a State", _check_state)
    for each in modes:
        a(where, "each of modes", each, Mode, "a Mode")
    a(where, "told_by", told_by, (str, type(None)), "the name of a value")


def _check_each(
    given: Sequence[object], what: str, kind: type[T], said: str, check: Callable[[T], None]
) -> None:
    for each in given:
        a("StepGraph.build", f"each of {what}", each, kind, said)
        assert isinstance(each, kind)
        check(each)


def _check_node(node: Node) -> None:
    text("each of nodes", "name", node.name)
    where = f"node {node.name!r}"
    text(where, "actor", node.actor)
    a(where, "stream", node.stream, (str, type(None)), "a name")
    a(where, "allow_sync", node.allow_sync, bool, "true or false")
    a(where, "comm", node.comm, (Comm, type(None)), "a Comm")
    for side, ops in (("host", node.host), ("device", node.device)):
        a(where, side, ops, LISTED, "a tuple of ops, as in (Op(...),)")
        for op in ops:
            a(where, f"each op of {side}", op, Op, "an Op")
            _check_op(where, op)


def _check_op(where: str, op: Op) -> None:
    a(where, "reads", op.reads, LISTED, "a tuple of reads, as in (Read('x'),)")
    for read in op.reads:
        a(where, "each of reads", read, Read, "a Read, as in Read('x')")
        text(where, "the name of a read", read.name)
    texts(where, "writes", op.writes)
    a(where, "phase", op.phase, (str, type(None)), "a name")
    _check_callable(where, "run", op.run)
    a(where, "agrees", op.agrees, bool, "true or false")
    a(where, "decides", op.decides, str, "a text")
    what = "pairs of a state and a class, as in (('table', 'reader'),)"
    a(where, "classes", op.classes, LISTED, what)
    for pair in op.classes:
        if not _are_names(pair, 2):
            raise wrong(where, "classes", what, op.classes, "SW-ARGUMENT")


def _check_value(value: Value) -> None:
    text("each of values", "name", value.name)
    where = f"value {value.name!r}"
    whole(where, "nbytes", value.nbytes, 0, MAX_BYTES)
    a(where, "external", value.external, bool, "true or false")
    for argument in ("first", "size", "allocate"):
        _check_callable(where, argument, getattr(value, argument))


def _check_state(state: State) -> None:
    text("each of states", "name", state.name)
    where = f"state {state.name!r}"
    _check_callable(where, "make", state.make)
    a(where, "keys", state.keys, (str, type(None)), "the name of a pool")
    a(where, "per_run", state.per_run, bool, "true or false")
    what = "triples, as in (('reader', 'owner', 1),)"
    a(where, "leases", state.leases, LISTED, what)
    for lease in state.leases:
        if not isinstance(lease, LISTED) or len(lease) != 3 or not _are_names(lease[:2], 2):
            raise wrong(where, "each of leases", what, lease, "SW-ARGUMENT")


def _check_callable(where: str, argument: str, given: object) -> None:
    if given is not None and not callable(given):
        raise wrong(where, argument, "a function", given, "SW-ARGUMENT")


def _are_names(given: object, count: int) -> bool:
    return (
        isinstance(given, LISTED)
        and len(given) == count
        and all(isinstance(each, str) for each in given)
    )
