"""Facts about numbers as cases: the tightest bounds, the common multiple."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from math import ceil, floor
from typing import Final

from .schema_case import Case, Report
from .schema_terms import NUMBERS, Fact
from .schema_values import common_multiple, exact, plain

MAX_MULTIPLES: Final = 256
"""Most integers that stand for `multipleOf` between two bounds."""


LARGEST_STEP: Final = 10**300
"""The largest common multiple that is a JSON number everywhere."""


def number_cases(facts: Sequence[Fact], kinds: frozenset[str], report: Report) -> Iterator[Case]:
    relevant = [fact for fact in facts if kinds & NUMBERS & fact.kinds and fact.keyword != "type"]
    whole = "fraction" not in kinds
    if "integer" not in kinds:
        fact = next(f for f in facts if f.keyword == "type" and "integer" not in f.value)
        report(fact, "'not' around 'integer' cannot be enforced for numbers")
    excluded = sorted(
        {exact(v) for f in relevant if f.keyword == "excluded" for v in f.value if _is_number(v)}
    )
    case = _number_case(relevant, whole, report)
    for low, high in zip([None, *excluded], [*excluded, None], strict=True):
        between = _between(case, low, high)
        if between is not None:
            yield from _multiples(between)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_LOWER: Final = ("minimum", "exclusiveMinimum")
_UPPER: Final = ("maximum", "exclusiveMaximum")


def _number_case(facts: Sequence[Fact], whole: bool, report: Report) -> Case:
    """Bounds as fractions, at most one of each side."""
    case = Case("integer" if whole else "number")
    for fact in facts:
        if fact.keyword in (*_LOWER, *_UPPER):
            _bound(case, fact.keyword, exact(fact.value), fact.place)
        elif fact.keyword == "multipleOf":
            before = case.parts.get("multipleOf", exact(fact.value))
            case.parts["multipleOf"] = common_multiple(before, exact(fact.value))
            case.places["multipleOf"] = fact.place
    if case.parts.get("multipleOf", 0) > LARGEST_STEP:
        what = "'multipleOf': its numbers have a common multiple with too many digits"
        report(next(f for f in facts if f.keyword == "multipleOf"), what)
        del case.parts["multipleOf"]
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
