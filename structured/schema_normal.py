"""The normal form of a JSON Schema: every schema in it is a union of cases of one type each.

References, `allOf`, `anyOf`, `oneOf`, `not`, `if` and dependencies are worked out, by the laws of
logic and nothing else, so that what is left (`type`, bounds, members, items, lists of values) is
what grammar libraries serve. A value is valid under the normal form exactly where it is valid under
the schema, except where no schema names a type: what only keywords of one type speak of is then of
this type, which is narrower, and what people mean.

This is a tableau: a node (a conjunction of schemas) is opened into branches of facts, and the nodes
inside of them (of properties and items) are conjunctions of schemas of the same document again, so
that there are finitely many, recursion included.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from .regex_language import MAX_LISTED, texts_with
from .regex_syntax import RegexError
from .schema_case import Case, Report
from .schema_cases import cases
from .schema_document import Document, pointer, refuse
from .schema_terms import (
    KINDS,
    NOTHING,
    Choice,
    Fact,
    Literal,
    Node,
    Term,
    negation,
    terms,
)
from .schema_values import distinct, fulfils, kind_of

MAX_BRANCHES: Final = 512
"""Most combinations of alternatives that one schema may come to."""

MAX_STEPS: Final = 20_000
"""Most alternatives that are looked at in one document, those that turn out impossible included.
Of a thousand published schemas none needs a fifth of it; this many take seconds."""

MAX_NEEDED: Final = 64
"""How many schemas in a row may be asked for whether each can hold at all, each on account of the
one before: a chain of required properties, say. A number of our own, not the interpreter's limit on
calls in each other: what is served must not depend on who calls."""

Key = frozenset[Literal]


class _Goal(NamedTuple):
    """A term that is to be worked in, and how it came about."""

    term: Term
    above: frozenset[Literal] = frozenset()
    reason: tuple[str, str] | None = None


class _Branch(NamedTuple):
    """A way in which a node may hold, as far as it is worked out."""

    goals: Sequence[_Goal]
    facts: Sequence[Fact] = ()
    choices: Sequence[_Goal] = ()
    opened: Collection[Literal] = ()


class Normaliser:
    """The cases of every node of one document. Answers are kept."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._branches: dict[Key, list[Sequence[Fact]]] = {}
        self._cases: dict[Key, list[Case]] = {}
        self._possible: dict[Key, bool] = {}
        self._opening: set[Key] = set()
        self._making: set[Key] = set()
        self._steps = 0
        self.flaws: dict[tuple[str, str], None] = {}
        """Place and words of each constraint that had to be left out, which allows more."""

    def cases(self, node: Node) -> list[Case]:
        """The union that a node is. What has no such form is left out and noted in `flaws`."""
        key = self.key(node)
        if key not in self._cases:
            found: list[Case] = []
            self._making.add(key)
            try:
                for facts in self._opened(node):
                    made = self._made(node, _typed(facts), self._note)
                    found.extend(case for case in made if case not in found)
            finally:
                self._making.discard(key)
            self._cases[key] = _joined(found)
        return self._cases[key]

    def _made(self, node: Node, facts: Sequence[Fact], report: Report) -> list[Case]:
        try:
            return cases(facts, self, report)
        except RegexError as error:  # it was to be looked for in a text of the schema
            refuse(node[0].place if node else "#", str(error))

    def key(self, node: Node) -> Key:
        """Equal for nodes that are the same conjunction."""
        return frozenset(node)

    def canonical(self, node: Node) -> Node:
        """The node without what is always true, and with references followed."""
        found: dict[Literal, None] = {}
        for literal in node:
            literal = Literal(literal.positive, self._followed(literal.place))
            schema = False if literal.place == "false" else self._document.at(literal.place)
            if schema is literal.positive or (schema == {} and literal.positive):
                continue
            if schema is (not literal.positive):
                return NOTHING
            found[literal] = None
        return tuple(found)

    def possible(self, node: Node) -> bool:
        """See `Nodes`. Where a node needs itself the answer is yes."""
        node = self.canonical(node)
        if not node:
            return True
        key = self.key(node)
        if key not in self._possible:
            if key in self._opening:
                return True
            if len(self._opening) == MAX_NEEDED:
                refuse(
                    node[0].place,
                    f"more than {MAX_NEEDED} schemas in a row need the next one; let fewer "
                    "required properties and items lead from one to the next",
                )
            self._opening.add(key)
            try:
                self._possible[key] = any(
                    self._made(node, _typed(facts), _ignore) for facts in self._opened(node)
                )
            finally:
                self._opening.discard(key)
        return self._possible[key]

    def to_blame(self, place: str) -> str:
        """Of a place that nothing satisfies: the innermost that a value of it must have, and that
        nothing satisfies either.
        """
        seen = {place}
        while True:
            needed = (each for each in self._needed(place) if each not in seen)
            inner = next((x for x in needed if not self.possible((Literal(True, x),))), None)
            if inner is None:
                return place
            seen.add(place := inner)

    def _needed(self, place: str) -> Iterator[str]:
        """Places in the schema at a place of which each value of it has one."""
        schema = self._document.at(place)
        if not isinstance(schema, dict):
            return
        for index in range(len(schema.get("allOf", ()))):
            yield pointer(place, "allOf", index)
        for name in schema.get("required", ()):
            if name in schema.get("properties", {}):
                yield pointer(place, "properties", name)
        least, items = int(schema.get("minItems", 0)), schema.get("items")
        keyword = "items" if isinstance(items, list) else "prefixItems"
        prefix = schema.get(keyword, ())
        for index in range(min(least, len(prefix))):
            yield pointer(place, keyword, index)
        rest = "additionalItems" if isinstance(items, list) else "items"
        if least > len(prefix) and rest in schema:
            yield pointer(place, rest)

    def holds(self, node: Node, value: object) -> bool:
        """See `Nodes`."""
        for facts in self._opened(self.canonical(node)):
            known = [fact for fact in facts if fact.keyword != "unable"]
            if all(fulfils(value, fact, self.holds) for fact in known):
                for fact in facts:
                    if fact.keyword == "unable" and kind_of(value) in fact.kinds:
                        self._note(fact, fact.value)
                return True
        return False

    def count(self) -> None:
        """See `Nodes`."""
        self._steps += 1
        if self._steps > MAX_STEPS:
            refuse("#", "it is too large: too many alternatives combine; use fewer of them")

    def _note(self, fact: Fact, what: str) -> None:
        self.flaws[fact.reason or (fact.place, what)] = None

    def listed(self, node: Node) -> list[object] | None:
        """See `Nodes`."""
        node = self.canonical(node)
        if self.key(node) in self._making or len(self._making) == MAX_NEEDED:
            return None  # its values have values of it inside, or are far within others
        found: list[object] = []
        for case in self.cases(node):
            values = _VALUES.get(case.type, case.parts.get("values"))
            values = _texts(case) if case.type == "string" else values
            if values is None:
                return None
            found.extend(values)
        return [value for value in distinct(found) if self.holds(node, value)]

    def _followed(self, place: str) -> str:
        """Where a schema that only refers leads."""
        seen = set()
        while place not in seen and place != "false":
            seen.add(place)
            schema = self._document.at(place)
            if not isinstance(schema, dict) or not isinstance(schema.get("$ref"), str):
                break
            if any(keyword in _MEANINGFUL for keyword in schema if keyword != "$ref"):
                break
            place = self._document.target(place, schema["$ref"])
        return place

    def _opened(self, node: Node) -> list[Sequence[Fact]]:
        key = self.key(node)
        if key not in self._branches:
            found = []
            place = node[0].place if node else "#"
            for facts in self._branches_of([_Goal(literal) for literal in node]):
                found.append(facts)
                if len(found) > MAX_BRANCHES:
                    refuse(
                        place,
                        f"its alternatives combine in more than {MAX_BRANCHES} ways; use fewer of "
                        "'anyOf', 'oneOf', 'if' and 'dependencies' for one value",
                    )
            self._branches[key] = found
        return self._branches[key]

    def _branches_of(self, goals: list[_Goal]) -> Iterator[Sequence[Fact]]:
        """Every way in which all goals hold, as facts."""
        # A stack and not calls in each other: a node may have more choices than calls may nest.
        left = [iter([_Branch(goals)])]
        while left:
            branch = next(left[-1], None)
            if branch is None:
                left.pop()
            elif (worked := self._worked_in(branch)) is None:
                continue
            elif worked.choices:
                left.append(self._chosen(worked))
            else:
                yield worked.facts

    def _worked_in(self, branch: _Branch) -> _Branch | None:
        """A branch with no goals left but choices; None if it cannot hold."""
        self.count()
        goals, facts, choices = list(branch.goals), list(branch.facts), list(branch.choices)
        opened = set(branch.opened)
        while goals:
            goal = goals.pop(0)
            term = goal.term
            if isinstance(term, Fact):
                facts.append(replace(term, reason=goal.reason) if goal.reason else term)
            elif isinstance(term, Choice):
                choices.append(goal)
            elif term in goal.above:
                refuse(term.place, "it refers to itself, with no property or item in between")
            elif term.negated() in opened:
                return None
            elif term not in opened:
                opened.add(term)
                goals[:0] = self._terms(term, goal)
        return _Branch([], facts, choices, opened) if _may_hold(facts) else None

    def _chosen(self, branch: _Branch) -> Iterator[_Branch]:
        """A branch with each alternative of its first choice as its goals."""
        goal, *others = branch.choices
        for alternative in self._alternatives(goal):
            yield branch._replace(goals=alternative, choices=others)

    def _terms(self, literal: Literal, goal: _Goal) -> list[_Goal]:
        above = goal.above | {literal}
        found = terms(self._document, literal.place)
        if literal.positive:
            return [_Goal(term, above, goal.reason) for term in found]
        broken = Choice(tuple(way for term in found for way in negation(term)))
        return [_Goal(broken, above, goal.reason)]

    def _alternatives(self, goal: _Goal) -> Iterator[list[_Goal]]:
        """The goals of each alternative; those of `oneOf` with the negation of what may overlap."""
        choice = goal.term
        assert isinstance(choice, Choice)
        for index, alternative in enumerate(choice.alternatives):
            goals = [goal._replace(term=term) for term in alternative]
            if choice.exclusive is not None:
                (mine,) = alternative
                reason = goal.reason or (choice.exclusive, _OVERLAP)
                for other, (literal,) in enumerate(choice.alternatives):
                    assert isinstance(literal, Literal)
                    assert isinstance(mine, Literal)
                    if other != index and self.possible((mine, literal)):
                        goals.append(_Goal(literal.negated(), goal.above, reason))
            yield goals


def _ignore(fact: Fact, what: str) -> None:
    """What is left out where only possibility is asked for."""


_OVERLAP: Final = (
    "'oneOf' can be enforced only where its branches cannot overlap (different types, or a "
    "required property with different constants); if any branch may match, write 'anyOf'"
)

_VALUES: Final[dict[str, list[object]]] = {"null": [None], "boolean": [True, False]}

_MEANINGFUL: Final = frozenset(
    {
        *("type", "enum", "const", "allOf", "anyOf", "oneOf", "not", "if"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
        *("minLength", "maxLength", "pattern", "format"),
        *("items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains"),
        *("properties", "patternProperties", "additionalProperties", "required"),
        *("minProperties", "maxProperties", "propertyNames", "unevaluatedItems"),
        *("dependentRequired", "dependentSchemas", "dependencies", "unevaluatedProperties"),
        *("$dynamicRef", "$recursiveRef"),
    }
)
"""Keywords that constrain; beside `$ref` they make a schema more than a reference."""


def _may_hold(facts: Sequence[Fact]) -> bool:
    """Whether facts do not exclude each other at first sight."""
    kinds = KINDS
    for fact in facts:
        if fact.keyword == "type":
            kinds &= fact.value
    return bool(kinds)


def _typed(facts: Sequence[Fact]) -> Sequence[Fact]:
    """The facts with the type that they imply, where none is stated."""
    if any(fact.keyword in ("type", "values") and fact.stated for fact in facts):
        return facts
    about = {fact.kinds for fact in facts if fact.kinds != KINDS}
    left = KINDS.intersection(*(fact.value for fact in facts if fact.keyword == "type"))
    if len(about) == 1:
        (kinds,) = about
        if not kinds & left:
            return facts
        return [*facts, Fact("type", kinds, "#", stated=False)]
    return facts


def _texts(case: Case) -> tuple[str, ...] | None:
    """Texts among which are all of a case of strings, if its first pattern or length says them."""
    first, *_ = case.parts.get("patterns") or (None,)
    low, high = case.parts.get("minLength", 0), case.parts.get("maxLength")
    return texts_with(first, MAX_LISTED, low, high)


def _joined(union: list[Case]) -> list[Case]:
    """Lists of values become one, in the place of the first."""
    lists = [case for case in union if case.type == "values"]
    if len(lists) < 2:
        return union
    first, *others = lists
    values = distinct([value for case in lists for value in case.parts["values"]])
    joined = Case("values", {"values": values}, first.places)
    return [joined if case is first else case for case in union if case not in others]
