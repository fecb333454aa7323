"""JSON values as JSON Schema sees them: their kind, their equality, and whether a fact holds."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from fractions import Fraction
from math import lcm
from typing import Any

from .formats import format_pattern
from .regex_syntax import finds
from .schema_terms import Fact, Layer, Node, Slots

Holds = Callable[[Node, object], bool]


def kind_of(value: object) -> str:
    """The kind of a JSON value, one of `KINDS`; 2.0 is an integer."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "integer" if value.is_integer() else "fraction"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def identity(value: object) -> Hashable:
    """Equal for JSON values that are equal: for 1 and 1.0, but not for 1 and true."""
    match value:
        case bool():
            return ("boolean", value)
        case list():
            return ("array", *map(identity, value))
        case dict():
            return frozenset((key, identity(each)) for key, each in value.items())
    return value  # null, a number or a string


def distinct(values: Iterable[object]) -> list[object]:
    """The values in order, each once."""
    found: dict[Hashable, object] = {}
    for value in values:
        found.setdefault(identity(value), value)
    return list(found.values())


def among(value: object, values: Iterable[object]) -> bool:
    """Whether a list of JSON values has an equal one."""
    wanted = identity(value)
    return any(identity(each) == wanted for each in values)


def writable(value: object) -> bool:
    """Whether JSON text in UTF-8 can say a value: no text has a lone surrogate."""
    if isinstance(value, list):
        return all(map(writable, value))
    if isinstance(value, dict):
        return all(map(writable, [*value, *value.values()]))
    return not isinstance(value, str) or not any("\ud800" <= each <= "\udfff" for each in value)


def exact(number: int | float) -> Fraction:
    """The number that its decimal digits say."""
    return Fraction(number) if isinstance(number, int) else Fraction(repr(number))


def plain(number: Fraction) -> int | float:
    """The JSON number of a fraction that came from JSON numbers."""
    return int(number) if number.denominator == 1 else float(number)


def common_multiple(one: Fraction, other: Fraction) -> Fraction:
    """The smallest positive number that is a multiple of both."""
    denominator = lcm(one.denominator, other.denominator)
    return Fraction(lcm(int(one * denominator), int(other * denominator)), denominator)


def child(layer: Layer, name: str) -> Node:
    """What a layer says about the property of one name."""
    nodes = [layer.names[name]] if name in layer.names else []
    nodes += [node for pattern, node in layer.patterns.items() if finds(pattern, name)]
    if not nodes:
        return layer.rest or ()
    return both(*nodes)


def item(slots: Slots, index: int) -> Node:
    """What is said about the item at one index."""
    return slots.prefix[index] if index < len(slots.prefix) else slots.rest or ()


def both(*nodes: Node) -> Node:
    """All of several nodes."""
    return tuple(dict.fromkeys(literal for node in nodes for literal in node))


def fulfils(value: object, fact: Fact, holds: Holds) -> bool:
    """Whether a value fulfils a fact. Facts that nothing can decide are not asked about."""
    kind = kind_of(value)
    if fact.keyword == "type":
        return kind in fact.value
    if fact.keyword == "values":
        return among(value, fact.value)
    if fact.keyword == "excluded":
        return not among(value, fact.value)
    if kind not in fact.kinds:
        return True
    if isinstance(value, str):
        return _string_fulfils(value, fact)
    if isinstance(value, list):
        return _array_fulfils(value, fact, holds)
    if isinstance(value, dict):
        return _object_fulfils(value, fact, holds)
    assert isinstance(value, int | float), "no facts are about null and booleans alone"
    return _number_fulfils(exact(value), fact)


def _number_fulfils(value: Fraction, fact: Fact) -> bool:
    bound = exact(fact.value)
    match fact.keyword:
        case "minimum":
            return value >= bound
        case "maximum":
            return value <= bound
        case "exclusiveMinimum":
            return value > bound
        case "exclusiveMaximum":
            return value < bound
        case _:
            return (value / bound).denominator == 1


def _string_fulfils(value: str, fact: Fact) -> bool:
    match fact.keyword:
        case "minLength":
            return len(value) >= int(fact.value)
        case "maxLength":
            return len(value) <= int(fact.value)
        case "pattern":
            return finds(fact.value, value)
        case "differs":
            return not finds(fact.value, value)
        case _:
            pattern = format_pattern(fact.value)
            return pattern is None or finds(pattern, value)


def _array_fulfils(value: list[Any], fact: Fact, holds: Holds) -> bool:
    match fact.keyword:
        case "minItems":
            return len(value) >= int(fact.value)
        case "maxItems":
            return len(value) <= int(fact.value)
        case "uniqueItems":
            return not any(among(each, value[:index]) for index, each in enumerate(value))
        case "some":
            start, node = fact.value
            return not all(holds(node, each) for each in value[start:])
        case _:
            return all(holds(item(fact.value, index), each) for index, each in enumerate(value))


def _object_fulfils(value: dict[str, Any], fact: Fact, holds: Holds) -> bool:
    match fact.keyword:
        case "minProperties":
            return len(value) >= int(fact.value)
        case "maxProperties":
            return len(value) <= int(fact.value)
        case "required":
            return str(fact.value) in value
        case "propertyNames":
            return all(holds(fact.value, name) for name in value)
        case "extra":
            layer: Layer = fact.value
            others = [each for name, each in value.items() if not _named(layer, name)]
            return not all(holds(layer.rest or (), each) for each in others)
        case _:
            return all(holds(child(fact.value, name), each) for name, each in value.items())


def _named(layer: Layer, name: str) -> bool:
    """Whether `properties` or `patternProperties` speak of a name, so that the rest does not."""
    return name in layer.names or any(finds(pattern, name) for pattern in layer.patterns)
