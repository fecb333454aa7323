"""Whether a schema is of endless texts only: each value of it has another in it, and so on."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from typing import NamedTuple

from .schema_case import Case
from .schema_normal import Key, Normaliser
from .schema_terms import Layer, Node, Slots
from .schema_values import child, item


class _Way(NamedTuple):
    """What all values of a case have in them."""

    all: list[Key]
    some: Sequence[Key] = ()
    """At least `least` of them, too."""
    least: int = 0

    def left(self, ending: Container[Key]) -> list[Key]:
        """What they need and does not end."""
        left = [key for key in self.some if key not in ending]
        enough = len(self.some) - len(left) >= self.least
        return [*(key for key in self.all if key not in ending), *([] if enough else left)]


class _Needs(NamedTuple):
    """What the values of a node have in them, in one of these ways."""

    place: str
    ways: list[_Way]


class Endings:
    """Which nodes have values that come to an end. Answers are kept.

    A node ends if it has a case of which all that is needed ends: the least such set of nodes.

    Args:
        nodes: of the document.
    """

    def __init__(self, nodes: Normaliser) -> None:
        self._nodes = nodes
        self._needs: dict[Key, _Needs] = {}
        self._ending: set[Key] = set()

    def has(self, node: Node) -> bool:
        """Whether some value of a node comes to an end; false if it has no value."""
        node = self._nodes.canonical(node)
        self._learn(node)
        return self._nodes.key(node) in self._ending

    def of(self, case: Case) -> bool:
        """Whether some value of a case comes to an end."""
        return any(
            all(map(self.has, every)) and sum(map(self.has, some)) >= least
            for every, some, least in _needed(case, self._nodes)
        )

    def place(self, root: Node) -> str | None:
        """The place of a schema that every value of `root` has in it, itself included; None if
        some value of it comes to an end, or it has none."""
        root = self._nodes.canonical(root)
        self._learn(root)
        key = self._nodes.key(root)
        seen: set[Key] = set()
        while key not in self._ending and key not in seen:
            seen.add(key)
            if not self._needs[key].ways:  # it has no value at all
                return None
            key = self._needs[key].ways[0].left(self._ending)[0]
        return None if key in self._ending else self._needs[key].place

    def _learn(self, root: Node) -> None:
        """Find out about a node, and about all that its values may have in them."""
        found = self._needed_by(root)
        self._needs |= found
        more = True
        while more:
            more = False
            for key, each in found.items():
                if key not in self._ending and not all(w.left(self._ending) for w in each.ways):
                    self._ending.add(key)
                    more = True

    def _needed_by(self, root: Node) -> dict[Key, _Needs]:
        """By key each node that a value of `root` may have in it, and that is new."""
        found: dict[Key, _Needs] = {}
        nodes = self._nodes
        left = [root]

        def keys(inner: Iterable[Node]) -> list[Key]:
            canonical = [nodes.canonical(each) for each in inner]
            left.extend(canonical)
            return [nodes.key(each) for each in canonical]

        while left:
            node = left.pop()
            key = nodes.key(node)
            if key in found or key in self._needs:
                continue
            if not node:  # anything
                found[key] = _Needs("#", [_Way([])])
                continue
            ways = [
                _Way(keys(all_), keys(some), least)
                for case in nodes.cases(node)
                for all_, some, least in _needed(case, nodes)
            ]
            found[key] = _Needs(node[0].place, ways)
        return found


def _needed(case: Case, nodes: Normaliser) -> Iterator[tuple[list[Node], list[Node], int]]:
    """The ways of a case, as `_Way` has them."""
    if case.type == "object":
        yield from _members(case, nodes)
    elif case.type == "array":
        slots = case.parts.get("slots", Slots((), None))
        least = min(case.parts.get("minItems", 0), len(slots.prefix) + 1)
        yield [item(slots, index) for index in range(least)], [], 0
    else:
        yield [], [], 0


def _members(case: Case, nodes: Normaliser) -> Iterator[tuple[list[Node], list[Node], int]]:
    layer: Layer = case.parts.get("members", Layer({}))
    required = case.parts.get("required", ())
    needed = [child(layer, name) for name in required]
    more = case.parts.get("minProperties", 0) - len(required)
    if more <= 0:
        yield needed, [], 0
        return
    possible = {name: node for name, node in layer.names.items() if nodes.possible(node)}
    named = [node for name, node in possible.items() if name not in required]
    others = [*layer.patterns.values()]
    if layer.rest is not None or "propertyNames" in case.parts or not (possible or others):
        others.append(layer.rest or ())
    if more <= len(named):
        yield needed, named, more
    for node in filter(nodes.possible, others):  # as many as there are to be
        yield [*needed, node], [], 0
