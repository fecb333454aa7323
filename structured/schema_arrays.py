"""Facts about arrays as cases: items place by place, few arrays without repetitions listed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from .schema_case import Case, Nodes, Report, add_counts
from .schema_terms import NOTHING, Fact, Slots, opposite
from .schema_values import among, both, item

MAX_UNIQUE: Final = 400
"""Most arrays that stand for `uniqueItems` over a few values."""


def array_cases(facts: Sequence[Fact], nodes: Nodes, report: Report) -> Iterator[Case]:
    case = Case("array")
    some = [fact.value[1] for fact in facts if fact.keyword == "some"]
    if not all(nodes.possible(opposite(node)) for node in some):
        return
    more = [_decided_items(fact, nodes, report) for fact in facts]
    facts = [fact for fact in more if fact is not None]
    if not add_counts(case, facts, "minItems", "maxItems"):
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
