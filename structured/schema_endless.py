"""Whether a schema is of endless texts only: each value of it has another in it, and so on."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from .schema_case import Case
from .schema_normal import Key, Normaliser
from .schema_terms import Layer, Node, Slots
from .schema_values import child, item


class _Needs(NamedTuple):
    """What the values of a node have in them."""

    place: str
    ways: list[list[Key]]  # for each of its cases, what all values of that case have


def endless(root: Node, nodes: Normaliser) -> str | None:
    """The place of a schema that every value of `root` has in it, itself included; None if some
    value of it comes to an end.

    A node ends if it has a case of which all that is needed ends: the least such set of nodes.
    """
    needs = _needs(root, nodes)
    ending: set[Key] = set()
    more = True
    while more:
        more = False
        for key, each in needs.items():
            if key not in ending and any(map(ending.issuperset, each.ways)):
                ending.add(key)
                more = True
    key = nodes.key(nodes.canonical(root))
    seen: set[Key] = set()
    while key not in ending and key not in seen:
        seen.add(key)
        if not needs[key].ways:  # it has no value at all
            return None
        key = next(each for each in needs[key].ways[0] if each not in ending)
    return None if key in ending else needs[key].place


def _needs(root: Node, nodes: Normaliser) -> dict[Key, _Needs]:
    """By key each node that a value of `root` may have in it."""
    found: dict[Key, _Needs] = {}
    left = [nodes.canonical(root)]
    while left:
        node = left.pop()
        key = nodes.key(node)
        if key in found:
            continue
        if not node:  # anything
            found[key] = _Needs("#", [[]])
            continue
        inner = [[nodes.canonical(each) for each in _needed(case)] for case in nodes.cases(node)]
        left += chain.from_iterable(inner)
        found[key] = _Needs(node[0].place, [[nodes.key(each) for each in way] for way in inner])
    return found


def _needed(case: Case) -> Iterator[Node]:
    if case.type == "object":
        layer = case.parts.get("members", Layer({}))
        for name in case.parts.get("required", ()):
            yield child(layer, name)
    elif case.type == "array":
        slots = case.parts.get("slots", Slots((), None))
        for index in range(min(case.parts.get("minItems", 0), len(slots.prefix) + 1)):
            yield item(slots, index)
