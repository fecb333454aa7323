"""What facts about one value come to, type by type: bounds that merge, members that join.

A `Case` is a schema for values of one type, or a list of values. Facts that exclude each other make
no case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import ceil, floor
from typing import Any, Final, Protocol

from .regex_syntax import finds
from .schema_terms import KINDS, NOTHING, NUMBERS, OBJECTS, Fact, Layer, Node, Slots, opposite
from .schema_values import (
    among,
    both,
    child,
    common_multiple,
    distinct,
    exact,
    fulfils,
    item,
    kind_of,
    plain,
)

MAX_MULTIPLES: Final = 256
"""Most integers that stand for `multipleOf` between two bounds."""

MAX_UNIQUE: Final = 400
"""Most arrays that stand for `uniqueItems` over a few values."""


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


def cases(facts: Sequence[Fact], nodes: Nodes, report: Report) -> list[Case]:
    """The cases in which all facts hold.

    Args:
        facts: about one value.
        nodes: answers about the nodes in them.
        report: called for what cannot be written as a schema without `not` and its like.
    """
    kinds = _kinds(facts)
    if any(fact.keyword == "values" for fact in facts):
        return _listed(facts, kinds, nodes, report)
    found: list[Case] = []
    for kind in ("null", "boolean"):
        if kind in kinds:
            found.extend(_constants(kind, facts))
    if kinds & NUMBERS:
        found.extend(_numbers(facts, kinds, report))
    for kind, make in (("string", _strings), ("array", _arrays), ("object", _objects)):
        if kind in kinds:
            relevant = [fact for fact in facts if kind in fact.kinds and fact.keyword != "type"]
            _report_unable(relevant, report)
            found.extend(make(relevant, nodes, report))
    return found


def _kinds(facts: Sequence[Fact]) -> frozenset[str]:
    kinds = KINDS
    for fact in facts:
        if fact.keyword == "type":
            kinds &= fact.value
    return kinds


def _report_unable(facts: Sequence[Fact], report: Report) -> None:
    for fact in facts:
        if fact.keyword == "unable":
            report(fact, fact.value)


def _listed(
    facts: Sequence[Fact], kinds: frozenset[str], nodes: Nodes, report: Report
) -> list[Case]:
    """Values that the schema lists, less those that break another fact."""
    first = next(fact for fact in facts if fact.keyword == "values")
    kept: list[object] = []
    for value in distinct(first.value):
        kind = kind_of(value)
        if kind not in kinds:
            continue
        relevant = [fact for fact in facts if kind in fact.kinds and fact is not first]
        _report_unable(relevant, report)
        if all(fulfils(value, fact, nodes.holds) for fact in relevant if fact.keyword != "unable"):
            kept.append(value)
    return [Case("values", {"values": kept}, {"enum": first.place})] if kept else []


def _constants(kind: str, facts: Sequence[Fact]) -> Iterator[Case]:
    values: list[object] = [None] if kind == "null" else [True, False]
    excluded = [value for fact in facts if fact.keyword == "excluded" for value in fact.value]
    kept = [value for value in values if not among(value, excluded)]
    if len(kept) == len(values):
        yield Case(kind)
    elif kept:
        yield Case("values", {"values": kept})


# Numbers


def _numbers(facts: Sequence[Fact], kinds: frozenset[str], report: Report) -> Iterator[Case]:
    relevant = [fact for fact in facts if kinds & NUMBERS & fact.kinds and fact.keyword != "type"]
    whole = "fraction" not in kinds
    _report_unable(relevant, report)
    if "integer" not in kinds:
        fact = next(f for f in facts if f.keyword == "type" and "integer" not in f.value)
        report(fact, "'not' around 'integer' cannot be enforced for numbers")
    excluded = sorted(
        {exact(v) for f in relevant if f.keyword == "excluded" for v in f.value if _is_number(v)}
    )
    case = _number_case(relevant, whole)
    for low, high in zip([None, *excluded], [*excluded, None], strict=True):
        between = _between(case, low, high)
        if between is not None:
            yield from _multiples(between)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_LOWER: Final = ("minimum", "exclusiveMinimum")
_UPPER: Final = ("maximum", "exclusiveMaximum")


def _number_case(facts: Sequence[Fact], whole: bool) -> Case:
    """Bounds as fractions, at most one of each side."""
    case = Case("integer" if whole else "number")
    for fact in facts:
        if fact.keyword in (*_LOWER, *_UPPER):
            _bound(case, fact.keyword, exact(fact.value), fact.place)
        elif fact.keyword == "multipleOf":
            before = case.parts.get("multipleOf", exact(fact.value))
            case.parts["multipleOf"] = common_multiple(before, exact(fact.value))
            case.places["multipleOf"] = fact.place
    step: Fraction | None = case.parts.get("multipleOf")
    if step is not None and whole:
        step = case.parts["multipleOf"] = common_multiple(step, Fraction(1))
    if step is not None and step.denominator == 1:
        case.type = "integer"  # no other number is a multiple
    if step == 1:
        del case.parts["multipleOf"]
    return case


def _bound(case: Case, keyword: str, value: Fraction, place: str) -> None:
    """Add a bound unless the case has a tighter one."""
    lower = keyword in _LOWER
    for own in _LOWER if lower else _UPPER:
        if own in case.parts:
            known = case.parts[own]
            if (known > value if lower else known < value) or (
                known == value and own.startswith("exclusive")
            ):
                return
            del case.parts[own]
    case.parts[keyword] = value
    case.places[keyword] = place


def _between(case: Case, low: Fraction | None, high: Fraction | None) -> Case | None:
    """The case between two excluded numbers, its bounds as JSON numbers; None if none is left."""
    case = Case(case.type, dict(case.parts), dict(case.places))
    if low is not None:
        _bound(case, "exclusiveMinimum", low, "#")
    if high is not None:
        _bound(case, "exclusiveMaximum", high, "#")
    parts = case.parts
    if case.type == "integer":
        if "minimum" in parts:
            parts["minimum"] = Fraction(ceil(parts["minimum"]))
        if "exclusiveMinimum" in parts:
            parts["minimum"] = Fraction(floor(parts.pop("exclusiveMinimum")) + 1)
        if "maximum" in parts:
            parts["maximum"] = Fraction(floor(parts["maximum"]))
        if "exclusiveMaximum" in parts:
            parts["maximum"] = Fraction(ceil(parts.pop("exclusiveMaximum")) - 1)
    lower = next((parts[each] for each in _LOWER if each in parts), None)
    upper = next((parts[each] for each in _UPPER if each in parts), None)
    if lower is not None and upper is not None:
        closed = "minimum" in parts and "maximum" in parts
        if lower > upper or (lower == upper and not closed):
            return None
        if lower == upper:
            step = parts.get("multipleOf")
            if step is not None and (lower / step).denominator != 1:
                return None
            return Case("values", {"values": [plain(lower)]}, case.places)
    case.parts = {keyword: plain(value) for keyword, value in parts.items()}
    return case


def _multiples(case: Case) -> Iterator[Case]:
    """Few multiples are listed: no library is needed to find them."""
    parts = case.parts
    if case.type == "integer" and {"multipleOf", "minimum", "maximum"} <= set(parts):
        step = parts["multipleOf"]
        first = -(-parts["minimum"] // step) * step
        count = max(0, (parts["maximum"] - first) // step + 1)
        if count == 0:
            return
        if count <= MAX_MULTIPLES:
            values = [first + index * step for index in range(count)]
            yield Case("values", {"values": values}, case.places)
            return
    yield case


# Strings


def _strings(facts: Sequence[Fact], nodes: Nodes, report: Report) -> Iterator[Case]:
    case = Case("string")
    if not _counts(case, facts, "minLength", "maxLength"):
        return
    for keyword, part in (("pattern", "patterns"), ("format", "formats"), ("differs", "differs")):
        values = [fact for fact in facts if fact.keyword == keyword]
        if values:
            case.parts[part] = list(dict.fromkeys(fact.value for fact in values))
            case.places[keyword] = values[0].place
    others = [fact for fact in facts if fact.keyword == "excluded"]
    texts = [value for fact in others for value in fact.value if isinstance(value, str)]
    if texts:
        case.parts["excluded"] = list(dict.fromkeys(texts))
        case.places["not"] = others[0].place
    yield case


def _counts(case: Case, facts: Sequence[Fact], least: str, most: str) -> bool:
    """Put the tightest counts into a case; False if they exclude each other."""
    for fact in facts:
        known = case.parts.get(fact.keyword)
        if fact.keyword == least and fact.value and (known is None or fact.value > known):
            case.parts[least], case.places[least] = fact.value, fact.place
        if fact.keyword == most and (known is None or fact.value < known):
            case.parts[most], case.places[most] = fact.value, fact.place
    low = case.parts.get(least, 0)
    return bool(low <= case.parts.get(most, low))


# Arrays


def _arrays(facts: Sequence[Fact], nodes: Nodes, report: Report) -> Iterator[Case]:
    case = Case("array")
    some = [fact.value[1] for fact in facts if fact.keyword == "some"]
    if not all(nodes.possible(opposite(node)) for node in some):
        return
    more = [_decided_items(fact, nodes, report) for fact in facts]
    facts = [fact for fact in more if fact is not None]
    if not _counts(case, facts, "minItems", "maxItems"):
        return
    slots = [fact.value for fact in facts if fact.keyword == "slots"]
    merged = _merged_slots(slots)
    most = case.parts.get("maxItems")
    for index, node in enumerate(merged.prefix):
        if not nodes.possible(node):
            most = index if most is None else min(most, index)
            break
    if merged.rest is not None and not nodes.possible(merged.rest):
        most = len(merged.prefix) if most is None else min(most, len(merged.prefix))
    if most is not None:
        if case.parts.get("minItems", 0) > most:
            return
        merged = Slots(merged.prefix[:most], merged.rest)
        if most <= len(merged.prefix):
            merged = Slots(merged.prefix, NOTHING)
            case.parts.pop("maxItems", None)
        else:
            case.parts["maxItems"] = most
    if merged.prefix or merged.rest is not None:
        case.parts["slots"] = merged
        case.places["items"] = next((f.place for f in facts if f.keyword == "slots"), "#")
    unique = next((fact for fact in facts if fact.keyword == "uniqueItems"), None)
    if unique is not None and (most is None or most > 1):
        case.places["uniqueItems"] = unique.place
        listed = _unique(case, nodes, most)
        if listed is not None:
            if listed:
                yield Case("values", {"values": listed}, case.places)
            return
        case.parts["uniqueItems"] = True
    yield case


def _decided_items(fact: Fact, nodes: Nodes, report: Report) -> Fact | None:
    """Negations about items as bounds on their number, where they can be."""
    if fact.keyword == "some":
        start, node = fact.value
        if not nodes.possible(node):
            return replace(fact, keyword="minItems", value=start + 1)
        report(fact, "'not' around 'items' cannot be enforced")
        return None
    if fact.keyword == "excluded":
        if [] in fact.value:
            fact = replace(fact, value=[each for each in fact.value if each != []])
            if not any(isinstance(each, list) for each in fact.value):
                return replace(fact, keyword="minItems", value=1)
        elif not any(isinstance(each, list) for each in fact.value):
            return None
        report(fact, "'not' around an array cannot be enforced")
        return None
    return fact


def _merged_slots(slots: list[Slots]) -> Slots:
    longest = max((len(each.prefix) for each in slots), default=0)
    prefix = tuple(both(*(item(each, index) for each in slots)) for index in range(longest))
    rests = [each.rest for each in slots if each.rest is not None]
    return Slots(prefix, both(*rests) if rests else None)


def _unique(case: Case, nodes: Nodes, most: int | None) -> list[object] | None:
    """All arrays without repetitions over few values; None if they are too many to list."""
    slots = case.parts.get("slots", Slots((), None))
    values = None if slots.prefix or slots.rest is None else nodes.listed(slots.rest)
    if values is None:
        return None
    longest = len(values) if most is None else min(most, len(values))
    arrays: list[list[object]] = [[]]
    found: list[object] = []
    for length in range(longest + 1):
        if length >= case.parts.get("minItems", 0):
            found.extend(arrays)
        if len(found) > MAX_UNIQUE:
            return None
        arrays = [
            [*array, value] for array in arrays for value in values if not among(value, array)
        ]
        if len(arrays) > MAX_UNIQUE:
            return None if length < longest else found
    return found


# Objects


def _objects(facts: Sequence[Fact], nodes: Nodes, report: Report) -> Iterator[Case]:
    facts, extras = _without_exclusions(facts, report)
    if not all(nodes.possible(opposite(fact.value.rest or ())) for fact in extras):
        return  # whatever the other properties are, they are right
    case = Case("object")
    if not _counts(case, facts, "minProperties", "maxProperties"):
        return
    layers = [fact.value for fact in facts if fact.keyword == "members"]
    required = {fact.value: fact.place for fact in facts if fact.keyword == "required"}
    merged = _merged_layers(layers, list(required), facts, report)
    if merged.rest is not None and not nodes.possible(merged.rest):
        merged = replace(merged, rest=NOTHING)
    if extras:
        yield from _with_extras(facts, extras, merged, nodes, report)
        return
    for keyword in ("properties", "patternProperties", "additionalProperties"):
        case.places[keyword] = next((f.place for f in facts if f.keyword == "members"), "#")
    names: list[Node] = [fact.value for fact in facts if fact.keyword == "propertyNames"]
    if names:
        case.places["propertyNames"] = next(f.place for f in facts if f.keyword == "propertyNames")
        merged = _with_names(case, merged, both(*names), nodes)
    for name, place in required.items():
        if not nodes.possible(child(merged, name)):
            return
        case.places.setdefault("required", place)
    if required:
        case.parts["required"] = list(required)
    if merged.names or merged.patterns or merged.rest is not None:
        case.parts["members"] = merged
    if _settle_counts(case, merged, nodes):
        yield case


def _without_exclusions(facts: Sequence[Fact], report: Report) -> tuple[list[Fact], list[Fact]]:
    """Facts without excluded objects, and the facts about properties that there must be."""
    kept: list[Fact] = []
    for fact in facts:
        if fact.keyword != "excluded":
            kept.append(fact)
            continue
        objects = [each for each in fact.value if isinstance(each, dict)]
        if objects == [{}]:
            kept.append(replace(fact, keyword="minProperties", value=1))
        elif objects:
            report(fact, "'not' around an object cannot be enforced")
    extras = [fact for fact in kept if fact.keyword == "extra"]
    return [fact for fact in kept if fact.keyword != "extra"], extras


def _merged_layers(
    layers: list[Layer], required: list[str], facts: Sequence[Fact], report: Report
) -> Layer:
    """One layer that says what all say. Names that only patterns speak of stay with them."""
    if len(layers) == 1:
        layer = layers[0]
        extra = {name: child(layer, name) for name in required if name not in layer.names}
        named = {name: child(layer, name) for name in layer.names}
        return Layer({**named, **extra}, layer.patterns, layer.rest)
    names = dict.fromkeys([*(name for layer in layers for name in layer.names), *required])
    patterns: dict[str, Node] = {}
    for layer in layers:
        for pattern, node in layer.patterns.items():
            parts = [patterns.get(pattern, ()), node]
            for other in layers:
                if other is layer or other.rest is None or pattern in other.patterns:
                    continue
                if other.patterns:
                    report(
                        next(f for f in facts if f.value is other),
                        "'patternProperties' beside 'additionalProperties' cannot be combined with "
                        "the 'patternProperties' of another schema for the same object",
                    )
                parts.append(other.rest)
            patterns[pattern] = both(*parts)
    rests = [layer.rest for layer in layers if layer.rest is not None]
    return Layer(
        {name: both(*(child(layer, name) for layer in layers)) for name in names},
        patterns,
        both(*rests) if rests else None,
    )


def _with_extras(
    facts: list[Fact], extras: list[Fact], merged: Layer, nodes: Nodes, report: Report
) -> Iterator[Case]:
    """Some property beyond a layer breaks its rest: which one, where the names are known."""
    fact, *others = extras
    layer: Layer = fact.value
    if merged.rest != NOTHING or merged.patterns:
        report(fact, "'not' around 'additionalProperties' cannot be enforced")
        yield from _objects([*facts, *others], nodes, report)
        return
    broken = opposite(layer.rest or ())
    for name in merged.names:
        if name in layer.names or any(finds(pattern, name) for pattern in layer.patterns):
            continue
        must = [
            Fact("required", name, fact.place, OBJECTS, stated=False),
            Fact("members", Layer({name: broken}), fact.place, OBJECTS, stated=False),
        ]
        yield from _objects([*facts, *must, *others], nodes, report)


def _with_names(case: Case, merged: Layer, names: Node, nodes: Nodes) -> Layer:
    """`propertyNames` taken into the members: named ones are asked, listed ones become named."""
    kept = {
        name: node if nodes.holds(names, name) else NOTHING for name, node in merged.names.items()
    }
    listed = nodes.listed(names)
    if merged.rest == NOTHING and not merged.patterns:
        return replace(merged, names=kept)
    if listed is not None:
        for name in listed:
            if isinstance(name, str) and name not in kept:
                kept[name] = child(merged, name)
        return Layer(kept, {}, NOTHING)
    case.parts["propertyNames"] = names
    return replace(merged, names=kept)


def _settle_counts(case: Case, merged: Layer, nodes: Nodes) -> bool:
    """Drop counts of properties that hold anyway; False if they cannot hold."""
    closed = merged.rest == NOTHING and not merged.patterns
    most = sum(map(nodes.possible, merged.names.values())) if closed else None
    required = len(case.parts.get("required", ()))
    if case.parts.get("minProperties", 0) <= required:
        case.parts.pop("minProperties", None)
    if most is not None:
        if case.parts.get("minProperties", 0) > most:
            return False
        if case.parts.get("maxProperties", most) >= most:
            case.parts.pop("maxProperties", None)
    return bool(case.parts.get("maxProperties", required) >= required)
