"""Normal forms for XGrammar 0.2.8, and what it does not serve exactly."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from .number_limits import EXACT, decimals
from .regex_syntax import Regex, finds, literal
from .regex_text import json_text, longest_count, with_copies
from .schema_case import Case
from .schema_document import Schema
from .schema_terms import BOUNDS, NOTHING, Layer, Node
from .schema_writer import SchemaWriter, whole

LONGEST_PATTERN: Final = 128
"""The longest repetition that may be a pattern. From some 130 on the library's masks let tokens
through that end the string and go on wrongly, which its matcher then refuses (seen in 0.2.8)."""

LARGEST_STEP: Final = 1024
"""The largest `multipleOf` that the library does not drop."""

_INTEGERS: Final = range(-(2**63) + 1, 2**63 - 1)


DECIMALS: Final = 6
"""Most digits behind the point of a bound. With more the library loses numbers, and may take the
empty text for one (seen in 0.2.8)."""


def _bounds_numbers(bound: int | float) -> bool:
    return abs(bound) <= EXACT and decimals(bound) <= DECIMALS


class XGrammarWriter(SchemaWriter):
    """What the library reads wrong is noted: found by random outputs, form by form."""

    most_named = 64  # with 256 the library takes ten times as long as without

    def writes(self, number: int | float) -> bool:
        return not isinstance(number, int) or number in _INTEGERS  # a double with all its digits

    def number(self, case: Case) -> Schema:
        bounds = set(BOUNDS) & set(case.parts)
        noted: dict[str, str] = {}
        if "multipleOf" in case.parts and (case.type != "integer" or bounds):
            noted["multipleOf"] = "can be enforced for 'integer' without bounds only"
        elif case.parts.get("multipleOf", 1) > LARGEST_STEP:
            noted["multipleOf"] = f"above {LARGEST_STEP} cannot be enforced"
        for keyword in sorted(bounds):
            if case.type == "integer" and case.parts[keyword] not in _INTEGERS:
                noted[keyword] = "has more than 63 bits"
            if case.type == "number" and not _bounds_numbers(case.parts[keyword]):
                noted[keyword] = "has more digits than can be enforced"
        for keyword, what in noted.items():
            self.note(case, keyword, f"{keyword!r} {what}")
        return self.number_without(case, noted)

    def string(self, case: Case, trees: list[Regex], low: int, high: int | None) -> Schema:
        schema: Schema = {"type": "string"}
        keyword = next((each for each in ("pattern", "format") if each in case.places), "not")
        if len(trees) > 1:
            what = "several patterns or formats for one string cannot be enforced"
            self.note(case, keyword, what)
        if trees and (low or high is not None):
            what = f"lengths beside {keyword!r} are ignored; put them into the pattern"
            self.note(case, keyword, what)
        if trees:
            schema["pattern"] = self._pattern(case, keyword, trees[0])
        elif low or high is not None:
            schema |= {"minLength": low} if low else {}
            schema |= {} if high is None else {"maxLength": high}
        return schema

    def key_pattern(self, case: Case, tree: Regex) -> str:
        return self._pattern(case, "patternProperties", tree)

    def _pattern(self, case: Case, keyword: str, tree: Regex) -> str:
        text = json_text(tree)
        if text is None:
            self.note(case, keyword, f"{keyword!r}: it writes characters that JSON must escape")
            return whole(tree)
        if longest_count(text) > LONGEST_PATTERN:
            what = f"a repetition above {LONGEST_PATTERN} cannot be enforced"
            self.note(case, keyword, f"{keyword!r}: {what}")
            return whole(text)
        return whole(with_copies(text))

    def members(self, case: Case, layer: Layer) -> Layer:
        return layer if layer.patterns else super().members(case, layer)

    def mistaken(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if json_text(literal(name)) is not None]

    def names(self, case: Case, layer: Layer) -> dict[str, Node]:
        closed = layer.rest is None or layer.rest == NOTHING
        for name in self.mistaken(layer.names):
            if any(finds(pattern, name) for pattern in layer.patterns):
                what = f"'patternProperties' is ignored for the property {name!r}"
                self.note(case, "patternProperties", what)
        if layer.patterns and not closed:
            what = "'patternProperties' beside 'additionalProperties' cannot be enforced"
            self.note(case, "patternProperties", what)
        if len(layer.patterns) > 1:
            what = "several 'patternProperties' may overlap, which cannot be enforced"
            self.note(case, "patternProperties", what)
        return {name: node for name, node in layer.names.items() if self.has_values(node)}

    def counts(self, case: Case, layer: Layer, schema: Schema) -> None:
        open_ = layer.rest is not None and layer.rest != NOTHING
        if not layer.names and not layer.patterns and layer.rest is None:
            if not {"minProperties", "maxProperties"} & set(case.parts):
                return
            schema["additionalProperties"] = open_ = True
        for keyword in ("minProperties", "maxProperties"):
            if keyword not in case.parts:
                continue
            schema[keyword] = case.parts[keyword]
            if layer.patterns or (open_ and layer.names):
                what = f"{keyword!r} can be enforced only where all properties have names"
                self.note(case, keyword, what)
        if case.parts.get("minProperties", 0) > 1 and open_:
            what = "'minProperties' cannot be enforced: the same name may come twice"
            self.note(case, "minProperties", what)
