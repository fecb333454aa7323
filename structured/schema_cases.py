"""What facts about one value come to, type by type. Facts that exclude each other make no case."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .formats import format_pattern
from .regex_language import nothing, search_language, with_lengths
from .regex_syntax import RegexError
from .schema_arrays import array_cases
from .schema_case import Case, Nodes, Report, add_counts
from .schema_numbers import number_cases
from .schema_objects import object_cases
from .schema_terms import KINDS, NUMBERS, Fact
from .schema_values import among, distinct, fulfils, kind_of, writable


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
        _report_unable([fact for fact in facts if kinds & NUMBERS & fact.kinds], report)
        found.extend(number_cases(facts, kinds, report))
    for kind, make in (("string", _strings), ("array", array_cases), ("object", object_cases)):
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
        if kind not in kinds or not writable(value):
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


def _strings(facts: Sequence[Fact], nodes: Nodes, report: Report) -> Iterator[Case]:
    case = Case("string")
    if not add_counts(case, facts, "minLength", "maxLength"):
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
    if _may_fit(case):
        yield case


def _may_fit(case: Case) -> bool:
    """Whether there are strings of these patterns and lengths, as far as that is plain."""
    low, high = case.parts.get("minLength", 0), case.parts.get("maxLength")
    if high == 0 and "" in case.parts.get("excluded", ()):
        return False
    for pattern in (
        *case.parts.get("patterns", ()),
        *map(format_pattern, case.parts.get("formats", ())),
    ):
        try:
            fitted = None if pattern is None else with_lengths(search_language(pattern), low, high)
        except RegexError:
            continue
        if fitted is not None and nothing(fitted):
            return False
    return True
