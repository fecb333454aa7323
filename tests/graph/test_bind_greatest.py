"""Any set of nodes: what is bound is the greatest set in which each access has its other side."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from inspect import Parameter as Argument
from inspect import Signature
from itertools import combinations
from typing import Any

from hypothesis import given as drawn
from hypothesis import strategies as st

from stepweave.graph.bind import Binder, Declared
from stepweave.graph.declare import op
from stepweave.graph.node import Node, Value
from stepweave.graph.parameters import (
    Resources,
    optional,
    optional_state,
    optional_update,
    read,
    state,
    update,
    wanted,
)
from tests.graph.strategies import examples


@dataclass(frozen=True)
class Asked:
    """What one op function asks for."""

    reads: dict[str, bool]  # by value: optional?
    writes: dict[str, tuple[bool, str | None]]  # by value: wanted only? and of which read
    states: dict[str, str] = field(default_factory=dict)  # by state: role

    def function(self, name: str) -> Declared:
        asks: list[Any] = [
            optional(value) if may else read(value) for value, may in self.reads.items()
        ]
        roles: dict[str, Callable[[str], Any]] = {
            "state": state,
            "update": update,
            "optional_state": optional_state,
            "optional_update": optional_update,
        }
        asks += [roles[role](each) for each, role in self.states.items()]
        arguments = [
            Argument(f"p{index}", Argument.KEYWORD_ONLY, default=each)
            for index, each in enumerate(asks)
        ]

        def body(**given: Any) -> None: ...

        body.__signature__ = Signature(arguments)  # type: ignore[attr-defined]
        writes: Any = tuple(
            wanted(Value(value), None if of is None else Value(of)) if only else value
            for value, (only, of) in self.writes.items()
        )
        found: Any = op(writes=writes)
        return Declared(Node(name), host=(found(body),))

    def optional(self, at: int) -> Iterator[tuple[str, int, str]]:
        yield from (("read", at, value) for value, may in self.reads.items() if may)
        yield from (("write", at, value) for value, (only, _) in self.writes.items() if only)
        yield from (("state", at, s) for s, role in self.states.items() if "optional" in role)


Accesses = frozenset[tuple[str, int, str]]


def sound(nodes: list[Asked], bound: Accesses) -> bool:
    """Whether each of these optional accesses has its other side; written from the promise."""

    def updates(at: int, name: str) -> bool:
        role = nodes[at].states.get(name)
        return role == "update" or (role == "optional_update" and ("state", at, name) in bound)

    def asks(at: int, name: str) -> bool:
        """Whether the node has the state, and not only to keep up what others have."""
        role = nodes[at].states.get(name)
        if role in (None, "optional_update") or not works[at]:
            return False
        return "optional" not in role or ("state", at, name) in bound

    def writes(at: int, name: str) -> bool:
        asked = nodes[at].writes.get(name)
        return asked is not None and (not asked[0] or ("write", at, name) in bound)

    def reads(at: int, name: str) -> bool:
        may = nodes[at].reads.get(name)
        return may is not None and works[at] and (not may or ("read", at, name) in bound)

    everybody = range(len(nodes))
    works = [
        not asked.writes
        or any(writes(at, name) for name in asked.writes)
        or any(updates(at, name) for name in asked.states)
        for at, asked in enumerate(nodes)
    ]
    for kind, at, name in bound:
        asked, others = nodes[at], [each for each in everybody if each != at]
        if not works[at]:
            return False
        if kind == "read":
            made = [each for each, (_, of) in asked.writes.items() if of == name]
            if not any(writes(each, name) for each in everybody):
                return False
            if made and not any(writes(at, each) for each in made):
                return False
        elif kind == "write":
            of = asked.writes[name][1]
            if not any(reads(each, name) for each in everybody):
                return False
            if of is not None and not reads(at, of):
                return False
        elif asked.states[name] == "optional_state":
            if not any(updates(each, name) for each in others):
                return False
        elif not any(asks(each, name) for each in others):
            return False
    return True


def found_by_binder(nodes: list[Asked]) -> Accesses:
    built = Binder(
        [asked.function(f"n{at}") for at, asked in enumerate(nodes)], (), ("s0", "s1"), Resources()
    ).nodes(bodies=False)
    bound: set[tuple[str, int, str]] = set()
    for at, (asked, each) in enumerate(zip(nodes, built, strict=True)):
        reads = {access.name for access in each.host[0].reads}
        for access in asked.optional(at):
            kind, _, name = access
            if name in (each.host[0].writes if kind == "write" else reads):
                bound.add(access)
    return frozenset(bound)


@st.composite
def node_sets(draw: st.DrawFn) -> list[Asked]:
    """Up to five nodes over four values and two states, with at most nine optional accesses."""
    count = draw(st.integers(1, 5))
    values = ["v0", "v1", "v2", "v3"]
    writer = {value: draw(st.integers(-1, count - 1)) for value in values}
    left = 9
    nodes: list[Asked] = []
    for at in range(count):
        reads: dict[str, bool] = {}
        for name in draw(st.lists(st.sampled_from(values), unique=True, max_size=3)):
            reads[name] = left > 0 and draw(st.integers(0, 3)) > 0
            left -= reads[name]
        writes: dict[str, tuple[bool, str | None]] = {}
        for value in (each for each, by in writer.items() if by == at):
            only = left > 0 and draw(st.integers(0, 3)) > 0
            left -= only
            of = draw(st.sampled_from([None, *reads])) if only else None
            writes[value] = (only, of)
        states: dict[str, str] = {}
        for name in draw(st.lists(st.sampled_from(["s0", "s1"]), unique=True)):
            may = left > 0 and draw(st.integers(0, 2)) > 0
            left -= may
            states[name] = ("optional_" if may else "") + draw(st.sampled_from(["state", "update"]))
        nodes.append(Asked(reads, writes, states))
    return nodes


@examples(120)
@drawn(node_sets())
def test_what_is_bound_is_the_greatest_set_in_which_each_access_has_its_other_side(
    nodes: list[Asked],
) -> None:
    bound = found_by_binder(nodes)
    assert sound(nodes, bound)
    every = [access for at, asked in enumerate(nodes) for access in asked.optional(at)]
    for size in range(len(every) + 1):
        for some in map(frozenset, combinations(every, size)):
            assert some <= bound or not sound(nodes, some), f"these could be bound too: {some}"
