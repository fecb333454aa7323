"""The keywords of one schema as terms of a small logic, which can be negated and combined.

Every keyword of JSON Schema says one of three things: a *fact* about values of certain kinds
(`maxLength`), that another schema holds too, or does not (a *literal*: `$ref`, `allOf`, `not`), or
that one of several alternatives holds (`anyOf`, `oneOf`, `if`, dependencies). A schema is the
conjunction of its terms. A *node* is a conjunction of literals: what a property or an item must be.

Keywords of older drafts are read as the same facts (`exclusiveMinimum: true`, `items` as a list,
`dependencies`). Keywords beside `$ref` hold too, as since draft 2019-09; before, they were ignored.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import combinations
from typing import Any, Final, NamedTuple

from .schema_document import Document, Schema, pointer, refuse

KINDS: Final = frozenset({"null", "boolean", "integer", "fraction", "string", "array", "object"})
"""What a JSON value is, exactly one of them; a fraction is a number that is no integer."""

NUMBERS: Final = frozenset({"integer", "fraction"})
STRINGS: Final = frozenset({"string"})
ARRAYS: Final = frozenset({"array"})
OBJECTS: Final = frozenset({"object"})
_TYPES: Final = {
    **{kind: frozenset({kind}) for kind in KINDS - {"fraction"}},
    "number": NUMBERS,
}


class Literal(NamedTuple):
    """The schema at a place holds, or does not."""

    positive: bool
    place: str

    def negated(self) -> Literal:
        return Literal(not self.positive, self.place)


Node = tuple[Literal, ...]
"""All of these; () allows everything."""

NOTHING: Final[Node] = (Literal(True, "false"),)
"""Allows nothing."""


@dataclass(frozen=True)
class Layer:
    """`properties`, `patternProperties` and `additionalProperties` of one schema, which belong
    together: the last speaks of the names that the others do not."""

    names: dict[str, Node]
    patterns: dict[str, Node] = field(default_factory=dict)
    rest: Node | None = None
    """None where it is not stated, which allows everything."""


class Slots(NamedTuple):
    """`prefixItems` and `items` of one schema."""

    prefix: tuple[Node, ...]
    rest: Node | None


@dataclass(frozen=True)
class Fact:
    """A constraint on values of some kinds; values of other kinds fulfil it.

    `keyword` is one of JSON Schema, as draft 2020-12 has them, or one of these: "values" (a list
    that the value is in), "excluded" (a list that it is not in), "members" (a `Layer`), "slots"
    (`Slots`), "extra" (a `Layer`: some property is under `rest` and breaks it), "differs" (a
    pattern that is not found), "unable" (text: a constraint that cannot be written as a grammar).
    """

    keyword: str
    value: Any
    place: str
    kinds: frozenset[str] = KINDS
    stated: bool = True
    """Whether it comes from a keyword of this name; off for negations."""
    reason: tuple[str, str] | None = None
    """Place and words to name, should it be impossible to enforce; else its own."""


@dataclass(frozen=True)
class Choice:
    """At least one alternative holds, each a conjunction."""

    alternatives: tuple[tuple[Term, ...], ...]
    exclusive: str | None = None
    """For `oneOf`: the place of the schema that says that only one alternative may hold; each is
    one literal. Who combines terms adds what keeps the alternatives apart."""


Term = Fact | Literal | Choice

COUNTS: Final = {
    "minLength": STRINGS,
    "maxLength": STRINGS,
    "minItems": ARRAYS,
    "maxItems": ARRAYS,
    "minProperties": OBJECTS,
    "maxProperties": OBJECTS,
}
BOUNDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_APPLICATORS: Final = ("$ref", "allOf", "anyOf", "oneOf", "if", "dependentSchemas", "dependencies")
"""Keywords through which other schemas have a say about the same value."""


def terms(document: Document, place: str) -> list[Term]:
    """The schema at a place as terms, all of which hold.

    Raises:
        GrammarError: what stands there is no schema, or a reference leads nowhere.
    """
    if place == "false":
        return [Fact("type", frozenset(), place)]
    schema = document.at(place)
    if schema is True:
        return []
    if schema is False:
        return [Fact("type", frozenset(), place)]
    if not isinstance(schema, dict):
        refuse(place, f"a schema is an object or a boolean, not {type(schema).__name__}")
    found: list[Term] = [
        *_values(place, schema),
        *_numbers(place, schema),
        *_strings(place, schema),
        *_arrays(place, schema),
        *_objects(place, schema),
        *_dependencies(place, schema),
        *_others(document, place, schema),
    ]
    return found


def _values(place: str, schema: Schema) -> list[Term]:
    found: list[Term] = []
    if "type" in schema:
        types = schema["type"]
        names = types if isinstance(types, list) else [types]
        for name in names:
            if not isinstance(name, str) or name not in _TYPES:
                near = get_close_matches(str(name), _TYPES, n=1)
                guess = f" (did you mean {near[0]!r}?)" if near else ""
                refuse(place, f"'type': {name!r} is no type of JSON{guess}")
        kinds: frozenset[str] = frozenset().union(*(_TYPES[str(name)] for name in names))
        found.append(Fact("type", kinds, place))
    if "enum" in schema:
        if not isinstance(schema["enum"], list):
            refuse(place, "'enum' needs a list of values")
        found.append(Fact("values", schema["enum"], place))
    if "const" in schema:
        found.append(Fact("values", [schema["const"]], place))
    return found


def _numbers(place: str, schema: Schema) -> list[Term]:
    found: list[Term] = []
    for keyword in BOUNDS:
        if keyword not in schema:
            continue
        value = schema[keyword]
        if isinstance(value, bool) and keyword.startswith("exclusive"):
            continue  # draft 4: it speaks of the bound beside it
        bound = _number(place, keyword, value)
        open_ = f"exclusive{keyword[0].upper()}{keyword[1:]}"
        name = open_ if schema.get(open_) is True else keyword
        found.append(Fact(name, bound, place, NUMBERS))
    if "multipleOf" in schema:
        step = _number(place, "multipleOf", schema["multipleOf"])
        if step <= 0:
            refuse(place, "'multipleOf' needs a number above 0")
        found.append(Fact("multipleOf", step, place, NUMBERS))
    return found


def _strings(place: str, schema: Schema) -> list[Term]:
    found: list[Term] = [
        Fact(keyword, _count(place, keyword, schema[keyword]), place, kinds)
        for keyword, kinds in COUNTS.items()
        if keyword in schema
    ]
    for keyword in ("pattern", "format"):
        if keyword in schema:
            if not isinstance(schema[keyword], str):
                refuse(place, f"{keyword!r} needs a string")
            found.append(Fact(keyword, schema[keyword], place, STRINGS))
    return found


def _arrays(place: str, schema: Schema) -> list[Term]:
    found: list[Term] = []
    listed = "prefixItems" if "prefixItems" in schema else "items"
    prefix: object = schema.get(listed)
    after = "items" if "prefixItems" in schema or not isinstance(prefix, list) else None
    rest = _node(place, schema, after or "additionalItems")
    nodes: tuple[Node, ...] = ()
    if isinstance(prefix, list):
        nodes = tuple(
            (Literal(True, pointer(place, listed, index)),) for index in range(len(prefix))
        )
    elif listed == "prefixItems":
        refuse(place, "'prefixItems' needs a list of schemas")
    if "unevaluatedItems" in schema and rest is None:
        if _applicators(schema) or "contains" in schema:
            found.append(_unable(place, "unevaluatedItems", ARRAYS))
        else:
            rest = _node(place, schema, "unevaluatedItems")
    if nodes or rest is not None:
        found.append(Fact("slots", Slots(nodes, rest), place, ARRAYS))
    if schema.get("uniqueItems") is True:
        found.append(Fact("uniqueItems", True, place, ARRAYS))
    if "contains" in schema and (schema.get("minContains"), "maxContains" in schema) != (0, False):
        found.append(_unable(place, "contains", ARRAYS))
    return found


def _objects(place: str, schema: Schema) -> list[Term]:
    found: list[Term] = []
    named: dict[str, dict[str, Node]] = {
        keyword: {
            name: (Literal(True, pointer(place, keyword, name)),)
            for name in _mapping(place, keyword, schema)
        }
        for keyword in ("properties", "patternProperties")
    }
    rest = _node(place, schema, "additionalProperties")
    if "unevaluatedProperties" in schema and rest is None:
        if _applicators(schema):
            found.append(_unable(place, "unevaluatedProperties", OBJECTS))
        else:
            rest = _node(place, schema, "unevaluatedProperties")
    if named["properties"] or named["patternProperties"] or rest is not None:
        layer = Layer(named["properties"], named["patternProperties"], rest)
        found.append(Fact("members", layer, place, OBJECTS))
    elif "properties" in schema:
        found.append(Fact("members", Layer({}), place, OBJECTS))
    for name in _names(place, "required", schema.get("required", [])):
        found.append(Fact("required", name, place, OBJECTS))
    if (names := _node(place, schema, "propertyNames")) is not None:
        found.append(Fact("propertyNames", names, place, OBJECTS))
    return found


def _dependencies(place: str, schema: Schema) -> list[Term]:
    found: list[Term] = []
    for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
        for name, needs in _mapping(place, keyword, schema).items():
            then: list[Term] = []
            if isinstance(needs, list) and keyword != "dependentSchemas":
                for each in _names(pointer(place, keyword, name), keyword, needs):
                    then.append(Fact("required", each, place, OBJECTS))
            elif keyword != "dependentRequired":
                then.append(Literal(True, pointer(place, keyword, name)))
            else:
                refuse(place, "'dependentRequired' needs a list of names for each name")
            if then:
                present = Fact("required", name, place, OBJECTS)
                found.append(Choice(((_absent(place, name),), (present, *then))))
    return found


def _others(document: Document, place: str, schema: Schema) -> list[Term]:
    """Literals and choices of other schemas."""
    found: list[Term] = []
    if "$ref" in schema:
        if not isinstance(schema["$ref"], str):
            refuse(place, "'$ref' needs a string")
        found.append(Literal(True, document.target(place, schema["$ref"])))
    for keyword in ("$dynamicRef", "$recursiveRef"):
        if keyword in schema:
            found.append(_unable(place, keyword, KINDS))
    for keyword in ("allOf", "anyOf", "oneOf"):
        if keyword not in schema:
            continue
        branches = schema[keyword]
        if not isinstance(branches, list) or not branches:
            refuse(place, f"{keyword!r} needs a list of schemas")
        literals = [Literal(True, pointer(place, keyword, index)) for index in range(len(branches))]
        if keyword == "allOf":
            found.extend(literals)
        else:
            one = place if keyword == "oneOf" else None
            found.append(Choice(tuple((literal,) for literal in literals), one))
    if "not" in schema:
        found.append(Literal(False, pointer(place, "not")))
    if "if" in schema and ("then" in schema or "else" in schema):
        condition = Literal(True, pointer(place, "if"))
        outcomes = [
            (Literal(True, pointer(place, keyword)),) if keyword in schema else ()
            for keyword in ("then", "else")
        ]
        found.append(
            Choice(((condition, *outcomes[0]), (condition.negated(), *outcomes[1]))),
        )
    return found


def negation(term: Term) -> tuple[tuple[Term, ...], ...]:
    """Alternatives, one of which holds exactly where the term does not."""
    if isinstance(term, Literal):
        return ((term.negated(),),)
    if isinstance(term, Fact):
        return _fact_negation(term)
    alternatives = term.alternatives
    # None of them: each conjunction is broken in one of its terms.
    none = tuple(
        Choice(tuple(way for each in conjunction for way in negation(each)))
        for conjunction in alternatives
    )
    if term.exclusive is None:
        return (none,)
    # `oneOf` is broken by two that hold, too.
    pairs = tuple((*one, *other) for one, other in combinations(alternatives, 2))
    return (none, *pairs)


def _fact_negation(fact: Fact) -> tuple[tuple[Term, ...], ...]:
    place, value = fact.place, fact.value

    def case(*facts: tuple[str, Any]) -> tuple[Term, ...]:
        """The value is of the fact's kinds, and these hold."""
        kind = Fact("type", fact.kinds, place, stated=False)
        return (kind, *(Fact(k, v, place, fact.kinds, stated=False) for k, v in facts))

    match fact.keyword:
        case "type":
            return ((Fact("type", KINDS - value, place, stated=False),),)
        case "values":
            return ((Fact("excluded", value, place, stated=False),),)
        case "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum":
            return (case((_OPPOSITE[fact.keyword], value)),)
        case "minLength" | "minItems" | "minProperties":
            return (case((fact.keyword.replace("min", "max"), value - 1)),) if value else ()
        case "maxLength" | "maxItems" | "maxProperties":
            return (case((fact.keyword.replace("max", "min"), value + 1)),)
        case "pattern":
            return (case(("differs", value)),)
        case "required":
            return ((Fact("type", OBJECTS, place, stated=False), _absent(place, value)),)
        case "slots":
            return tuple(case(*each) for each in _broken_slots(value))
        case "members":
            return tuple(case(*each) for each in _broken_members(value))
        case _:
            return (case(("unable", f"'not' around {fact.keyword!r} cannot be enforced")),)


_OPPOSITE: Final = {
    "minimum": "exclusiveMaximum",
    "exclusiveMaximum": "minimum",
    "maximum": "exclusiveMinimum",
    "exclusiveMinimum": "maximum",
}


def opposite(node: Node) -> Node:
    """Not the schema that a keyword names, which is one literal."""
    if node in (NOTHING, ()):
        return NOTHING if node == () else ()
    (literal,) = node
    return (literal.negated(),)


def _broken_slots(slots: Slots) -> list[list[tuple[str, Any]]]:
    ways: list[list[tuple[str, Any]]] = []
    for index, node in enumerate(slots.prefix):
        broken = Slots((*((),) * index, opposite(node)), None)
        ways.append([("minItems", index + 1), ("slots", broken)])
    if slots.rest is not None:
        ways.append([("some", (len(slots.prefix), slots.rest))])
    return ways


def _broken_members(layer: Layer) -> list[list[tuple[str, Any]]]:
    ways: list[list[tuple[str, Any]]] = []
    for name, node in layer.names.items():
        ways.append([("required", name), ("members", Layer({name: opposite(node)}))])
    for _ in layer.patterns:
        ways.append([("unable", "'not' around 'patternProperties' cannot be enforced")])
    if layer.rest is not None:
        ways.append([("extra", layer)])
    return ways


def _absent(place: str, name: str) -> Fact:
    """An object does not have a property of this name."""
    return Fact("members", Layer({name: NOTHING}), place, OBJECTS, stated=False)


def _unable(place: str, keyword: str, kinds: frozenset[str]) -> Fact:
    return Fact("unable", f"{keyword!r} cannot be enforced", place, kinds)


def _applicators(schema: Schema) -> bool:
    return any(keyword in schema for keyword in _APPLICATORS)


def _node(place: str, schema: Schema, keyword: str) -> Node | None:
    """The one literal that a keyword names; None where the keyword is missing."""
    return (Literal(True, pointer(place, keyword)),) if keyword in schema else None


def _mapping(place: str, keyword: str, schema: Schema) -> dict[str, object]:
    value = schema.get(keyword, {})
    if not isinstance(value, dict):
        refuse(place, f"{keyword!r} needs an object of names")
    return value


def _names(place: str, keyword: str, value: object) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        refuse(place, f"{keyword!r} needs a list of names")
    return value


def _number(place: str, keyword: str, value: object) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        refuse(place, f"{keyword!r} needs a number, not {value!r}")
    return value


def _count(place: str, keyword: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
        refuse(place, f"{keyword!r} needs a whole number, not {value!r}")
    if value < 0:
        refuse(place, f"{keyword!r} needs a number of at least 0")
    return int(value)
