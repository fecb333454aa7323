"""Facts about objects as cases: members of all schemas joined, names and counts worked out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from .regex_language import MAX_LISTED, texts_with
from .regex_syntax import finds
from .schema_case import Case, Nodes, Report, add_counts
from .schema_terms import NOTHING, OBJECTS, Fact, Layer, Node, opposite
from .schema_values import both, child, writable


def object_cases(facts: Sequence[Fact], nodes: Nodes, report: Report) -> Iterator[Case]:
    facts, extras = _without_exclusions(facts, report)
    if not all(nodes.possible(opposite(fact.value.rest or ())) for fact in extras):
        return  # whatever the other properties are, they are right
    case = Case("object")
    if not add_counts(case, facts, "minProperties", "maxProperties"):
        return
    layers = [fact.value for fact in facts if fact.keyword == "members"]
    required = {fact.value: fact.place for fact in facts if fact.keyword == "required"}
    if not all(map(writable, required)):
        return
    merged = with_listed_names(_merged_layers(layers, list(required), facts, report))
    merged = replace(merged, names={n: node for n, node in merged.names.items() if writable(n)})
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


def with_listed_names(merged: Layer) -> Layer:
    """Patterns of few names as these names: a library that leaves named properties out of a pattern
    would have none left for it under way."""
    names, patterns = dict(merged.names), dict(merged.patterns)
    for pattern in merged.patterns:
        listed = texts_with(pattern, MAX_LISTED + len(names))
        if listed is not None and len(set(listed) - set(names)) <= MAX_LISTED:
            names |= {name: child(merged, name) for name in listed}
            del patterns[pattern]
    return Layer(names, patterns, merged.rest)


def _with_extras(
    facts: list[Fact], extras: list[Fact], merged: Layer, nodes: Nodes, report: Report
) -> Iterator[Case]:
    """Some property beyond a layer breaks its rest: which one, where the names are known."""
    fact, *others = extras
    layer: Layer = fact.value
    if merged.rest != NOTHING or merged.patterns:
        report(fact, "'not' around 'additionalProperties' cannot be enforced")
        yield from object_cases([*facts, *others], nodes, report)
        return
    broken = opposite(layer.rest or ())
    for name in merged.names:
        if name in layer.names or any(finds(pattern, name) for pattern in layer.patterns):
            continue
        nodes.count()
        must = [
            Fact("required", name, fact.place, OBJECTS, stated=False),
            Fact("members", Layer({name: broken}), fact.place, OBJECTS, stated=False),
        ]
        yield from object_cases([*facts, *must, *others], nodes, report)


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
