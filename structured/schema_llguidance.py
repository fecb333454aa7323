"""Normal forms for llguidance 1.9.1, and what it does not serve exactly."""

from __future__ import annotations

from typing import Final

from .number_limits import digits, is_double, next_to_bound
from .regex_syntax import Regex, finds
from .regex_text import without_misread_classes
from .schema_case import Case
from .schema_document import Schema
from .schema_terms import BOUNDS, NOTHING, Layer, Node
from .schema_writer import SchemaWriter, whole

LARGEST_STEP: Final = 9999
"""The largest `multipleOf`, whatever its power of ten: the library's work grows with its square,
and at six digits it takes minutes."""


class LLGuidanceWriter(SchemaWriter):
    """The library intersects patterns and lengths, and leaves named properties out of patterns."""

    most_named = 256  # a tenth of a second to write and to compile

    def writes(self, number: int | float) -> bool:
        return is_double(number)

    def number(self, case: Case) -> Schema:
        noted: dict[str, str] = {}
        for keyword in sorted(set(BOUNDS) & set(case.parts)):
            if not is_double(case.parts[keyword]):
                noted[keyword] = "has more digits than can be enforced"
        step = case.parts.get("multipleOf", 1)
        if int("".join(map(str, digits(step)))) > LARGEST_STEP:
            noted["multipleOf"] = f"with more digits than {LARGEST_STEP} has cannot be enforced"
        for keyword, what in noted.items():
            self.note(case, keyword, f"{keyword!r} {what}")
        passed = next_to_bound(case.parts) if case.type == "number" else None
        if passed is not None:
            what = f"{passed!r} cannot be enforced: the other bound is less than 1 away"
            self.note(case, passed, what)
        return self.number_without(case, noted)

    def string(self, case: Case, trees: list[Regex], low: int, high: int | None) -> Schema:
        schema: Schema = {"type": "string"}
        if low:
            schema["minLength"] = low
        if high is not None:
            schema["maxLength"] = high
        patterns = [self.key_pattern(case, each) for each in trees]
        if patterns:
            schema["pattern"] = patterns[0]
        if len(patterns) > 1:
            schema["allOf"] = [{"type": "string", "pattern": each} for each in patterns[1:]]
        return schema

    def key_pattern(self, case: Case, tree: Regex) -> str:
        return whole(without_misread_classes(tree))

    def names(self, case: Case, layer: Layer) -> dict[str, Node]:
        for name in layer.names:
            under = any(finds(pattern, name) for pattern in layer.patterns)
            if under and any(each < " " for each in name):
                what = f"'patternProperties' and the property {name!r}, which has several spellings"
                self.note(case, "patternProperties", f"{what}, cannot be enforced together")
        return layer.names

    def counts(self, case: Case, layer: Layer, schema: Schema) -> None:
        closed = layer.rest in (None, NOTHING) and not layer.patterns
        for keyword in ("minProperties", "maxProperties"):
            if keyword not in case.parts:
                continue
            schema[keyword] = case.parts[keyword]
            if layer.patterns or (layer.names and (keyword == "minProperties" or not closed)):
                what = f"{keyword!r} cannot be enforced beside named properties or patterns"
                self.note(case, keyword, what)
        if case.parts.get("minProperties", 0) > 1:
            what = "'minProperties' cannot be enforced: the same name may come twice"
            self.note(case, "minProperties", what)
