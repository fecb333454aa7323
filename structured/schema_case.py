"""One case of a schema: values of one type, the constraints on them merged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from .schema_terms import Fact, Node


class Nodes(Protocol):
    """What is asked about nodes inside of a case."""

    def possible(self, node: Node) -> bool:
        """Whether some value may fulfil it; true where that is hard to say."""
        ...

    def holds(self, node: Node, value: object) -> bool:
        """Whether a value fulfils it."""
        ...

    def listed(self, node: Node) -> list[object] | None:
        """All values that fulfil it, if it lists them."""
        ...

    def count(self) -> None:
        """Take note of one more alternative; there is a limit. May raise `GrammarError`."""
        ...


Report = Callable[[Fact, str], None]
"""Takes a fact that is left out, which allows more, and why."""


@dataclass
class Case:
    """A schema for values of one type."""

    type: str
    """Of JSON Schema, or "values"."""
    parts: dict[str, Any] = field(default_factory=dict)
    """By keyword; schemas inside are nodes. "values" has the list; "patterns", "formats" and
    "differs" are lists of texts, "slots" is `Slots` and "members" is a `Layer`."""
    places: dict[str, str] = field(default_factory=dict)
    """Where a keyword was stated, by keyword as it was written."""


def add_counts(case: Case, facts: Sequence[Fact], least: str, most: str) -> bool:
    """Put the tightest counts into a case; False if they exclude each other."""
    for fact in facts:
        known = case.parts.get(fact.keyword)
        if fact.keyword == least and fact.value and (known is None or fact.value > known):
            case.parts[least], case.places[least] = fact.value, fact.place
        if fact.keyword == most and (known is None or fact.value < known):
            case.parts[most], case.places[most] = fact.value, fact.place
    low = case.parts.get(least, 0)
    return bool(low <= case.parts.get(most, low))
