"""Which JSON Schemas may be compiled: nothing that would be dropped in silence.

A grammar library ignores the keywords it cannot turn into a grammar, so an output could break the
schema while its user believes that it cannot. Such a schema is refused, naming the place and the
keyword; or, if that is asked for, compiled with a warning that says the same. The rules are what
XGrammar 0.2.8 and llguidance 1.9.1 were found to honour, keyword by keyword, by random outputs
under each. A schema may still be read more strictly than the standard does (properties come in the
order of the schema, and with XGrammar none but those, unless `additionalProperties` says so).

Annotations (title, description, default, examples, unknown keywords, `format` names that the
library does not know) constrain nothing and pass.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NoReturn, cast

from .grammar import GrammarError, GrammarSpec
from .structural_tag import normalise, schemas

Schema = dict[str, object]

_TYPE_OF: Final[dict[str, str]] = {
    "minLength": "string",
    "maxLength": "string",
    "pattern": "string",
    "format": "string",
    "minimum": "number",
    "maximum": "number",
    "exclusiveMinimum": "number",
    "exclusiveMaximum": "number",
    "multipleOf": "number",
    "properties": "object",
    "required": "object",
    "additionalProperties": "object",
    "patternProperties": "object",
    "propertyNames": "object",
    "minProperties": "object",
    "maxProperties": "object",
    "unevaluatedProperties": "object",
    "items": "array",
    "prefixItems": "array",
    "minItems": "array",
    "maxItems": "array",
    "unevaluatedItems": "array",
}
"""The type that each constraining keyword is about."""

_IMPLY_TYPE: Final = ("properties", "additionalProperties", "items", "prefixItems")
"""Keywords from which the library infers the type where it is not written."""

_IGNORED: Final = (
    "not",
    "if",
    "then",
    "else",
    "contains",
    "minContains",
    "maxContains",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "$dynamicRef",
    "$recursiveRef",
)
"""Constraining keywords that the library ignores wherever they stand."""

_FORMATS: Final = (
    *("date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"),
    *("uri", "uri-reference", "uri-template"),
)
"""The formats that the library turns into a pattern. Others are annotations, as in the standard."""

_BROKEN_FORMATS: Final = ("json-pointer", "relative-json-pointer")
"""Formats whose pattern in the library lets control characters through: no JSON any more."""

_BRANCHES: Final = ("anyOf", "oneOf", "allOf")
_BOUNDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


Report = Callable[[str, str], None]
"""Takes the place, as a JSON pointer, and what is not enforced there."""


@dataclass(frozen=True)
class SchemaRules:
    """What one library was found to do with the keywords of JSON Schema."""

    library: str
    ignored: frozenset[str]
    """Constraining keywords that are dropped in silence wherever they stand."""
    combines: bool
    """Whether keywords that are honoured alone are also honoured side by side, without a type,
    and beside references and branches."""


XGRAMMAR: Final = SchemaRules("xgrammar", frozenset(_IGNORED), combines=False)
"""XGrammar 0.2.8, keyword by keyword."""

LLGUIDANCE: Final = SchemaRules(
    "llguidance",
    frozenset(
        {*_IGNORED, "uniqueItems", "propertyNames", "unevaluatedItems", "unevaluatedProperties"}
    ),
    combines=True,
)
"""llguidance 1.9.1. It refuses these by itself; here they get a place. What else it cannot do, as
branches of `oneOf` that may overlap, it says in words of its own."""


def check_sources(
    spec: GrammarSpec, rules: SchemaRules = XGRAMMAR, *, strict: bool = True
) -> tuple[str, ...]:
    """`check_schema` for every schema in a grammar; grammars without schemas have no warnings."""
    if spec.kind == "json":
        return check_schema(spec.source, rules, strict=strict)
    if spec.kind == "structural_tag":
        found: list[str] = []
        for place, schema in schemas(normalise(spec.source)):
            try:
                found += (
                    f"structural_tag: in {place}: {each}"
                    for each in check_schema(schema, rules, strict=strict)
                )
            except GrammarError as error:
                raise GrammarError(f"structural_tag: in {place}: {error}") from error
        return tuple(found)
    return ()


def check_schema(
    source: str, rules: SchemaRules = XGRAMMAR, *, strict: bool = True
) -> tuple[str, ...]:
    """Find the constraints of a schema (as JSON text) that a library would ignore.

    Schemas under `$defs` are looked at where they are referred to.

    Args:
        source: JSON text.
        rules: of the library.
        strict: refuse the schema at the first of them, rather than return what they are.

    Raises:
        GrammarError: names the place as a JSON pointer, the keyword, and what to do. A reference
            that leads nowhere is refused in any case.
    """
    found: list[str] = []

    def report(place: str, what: str) -> None:
        if strict:
            _refuse(place, what)
        found.append(f"json: at {place}: {what}")

    root = cast(object, json.loads(source))
    seen: dict[int, object] = {}  # by identity; holds them, so that no identity comes back
    rest: list[tuple[str, object]] = [("#", root)]
    while rest:
        place, schema = rest.pop()
        if not isinstance(schema, dict) or id(schema) in seen:
            continue  # true allows everything; false, and what is no schema, the compiler refuses
        seen[id(schema)] = schema
        for keyword in schema:
            if keyword in rules.ignored and (keyword, schema[keyword]) != ("uniqueItems", False):
                report(place, f"{keyword!r} cannot be enforced")
        if not rules.combines:
            _check_one(place, schema, root, report)
        rest.extend(_below(place, schema))
        if isinstance(reference := schema.get("$ref"), str):
            rest.append((reference, _resolve(root, reference, place)))
    return tuple(found)


def _check_one(place: str, schema: Schema, root: object, report: Report) -> None:
    if schema.get("uniqueItems") is True:
        report(place, "'uniqueItems' cannot be enforced")

    constraints = [keyword for keyword in schema if keyword in _TYPE_OF]
    branches = [keyword for keyword in _BRANCHES if keyword in schema]
    if "$ref" in schema:
        _alone(
            report,
            place,
            "$ref",
            [*constraints, *branches, *_present(schema, "type", "enum", "const")],
        )
    elif branches:
        if len(branches) > 1:
            report(place, f"{branches[0]!r} beside {branches[1]!r} cannot be enforced")
        _alone(report, place, branches[0], [*constraints, *_present(schema, "enum", "const")])
        _check_branches(place, schema, branches[0], root, report)
    elif "enum" in schema or "const" in schema:
        _alone(report, place, "enum" if "enum" in schema else "const", constraints)
        _check_values(place, schema, report)
    else:
        _check_typed(place, schema, constraints, report)


def _check_branches(place: str, schema: Schema, keyword: str, root: object, report: Report) -> None:
    branches = schema[keyword]
    if not isinstance(branches, list):
        return  # the compiler says what is wrong
    branches = [_behind_references(root, branch, place) for branch in branches]
    if keyword == "allOf" and len(branches) > 1:
        report(place, "'allOf' with several schemas cannot be enforced; merge them into one")
    if "type" in schema:
        outer = _types(schema)
        for branch in branches:
            # The library drops the type beside the branches, so each branch must bring its own.
            inner = _types(branch) if isinstance(branch, dict) else None
            if inner is None or outer is None or not all(_fits(each, outer) for each in inner):
                report(place, f"'type' beside {keyword!r} is ignored; write it in each branch")
    if keyword == "oneOf" and not _disjoint(branches):
        report(
            place,
            "'oneOf' can be enforced only where its branches cannot overlap (different types, or a "
            "required property with different constants); if any branch may match, write 'anyOf'",
        )


def _check_values(place: str, schema: Schema, report: Report) -> None:
    values = schema.get("enum", [])
    if not isinstance(values, list):
        return
    if "const" in schema:
        if "enum" in schema and schema["const"] not in values:
            _refuse(place, "'const' is not one of 'enum', so no value is allowed")
        values = [schema["const"]]
    types = _types(schema)
    if types is not None:
        for value in values:
            if not any(_fits(own, types) for own in _types_of_value(value)):
                report(place, f"the value {value!r} is not of the type {schema['type']!r}")


def _check_typed(place: str, schema: Schema, constraints: list[str], report: Report) -> None:
    types = _types(schema)
    if constraints == ["format"] and schema["format"] not in (*_FORMATS, *_BROKEN_FORMATS):
        return
    if types is None and constraints and not _present(schema, *_IMPLY_TYPE):
        keyword = constraints[0]
        report(place, f"{keyword!r} is ignored without a type; write 'type': {_TYPE_OF[keyword]!r}")

    if (name := schema.get("format")) in _BROKEN_FORMATS:
        report(place, f"'format': {name!r} would let characters through that JSON must escape")
    for keyword, pattern in _patterns(schema):
        if (flaw := pattern_flaw(pattern)) is not None:
            report(place, f"{keyword!r}: {flaw}")
    overlap = _overlap(schema)
    if overlap is not None:
        report(place, f"'patternProperties' is ignored for the property {overlap!r}")
    shaped = schema.get("format") in _FORMATS
    if shaped and "pattern" in schema:
        report(place, "'pattern' beside 'format' cannot be enforced")
    if (shaped or "pattern" in schema) and _present(schema, "minLength", "maxLength"):
        report(place, "lengths beside 'pattern' or 'format' are ignored; put them into a pattern")
    if "multipleOf" in schema and (types != {"integer"} or _present(schema, *_BOUNDS)):
        report(place, "'multipleOf' can be enforced for 'integer' without bounds only")
    if "propertyNames" in schema and "properties" in schema:
        report(place, "'propertyNames' beside 'properties' is ignored")

    required, properties = schema.get("required", []), schema.get("properties", {})
    if isinstance(required, list) and isinstance(properties, dict):
        for name in required:
            if name not in properties:
                report(place, f"required property {name!r} is ignored unless 'properties' has it")


def _patterns(schema: Schema) -> Iterator[tuple[str, str]]:
    if isinstance(pattern := schema.get("pattern"), str):
        yield "pattern", pattern
    if isinstance(keys := schema.get("patternProperties"), dict):
        yield from (("patternProperties", key) for key in keys)


def _overlap(schema: Schema) -> str | None:
    """A named property for which a pattern has a say as well."""
    names, patterns = schema.get("properties"), schema.get("patternProperties")
    if isinstance(names, dict) and isinstance(patterns, dict):
        for name in names:
            for pattern in patterns:
                try:
                    if re.search(pattern, name):
                        return str(name)
                except re.error:
                    continue  # the compiler says what is wrong
    return None


_ESCAPED: Final = re.compile(
    r"""["\x00-\x1f] | \\(?: [\\nrtfv0] | x[01][0-9a-f] | u00[01][0-9a-f] | (?:x|u00)(?:22|5c) )""",
    re.VERBOSE | re.IGNORECASE,
)
"""In a pattern: a character that a JSON string holds only as an escape."""


def pattern_flaw(pattern: str) -> str | None:
    """What XGrammar would do wrong with a pattern for a string; None if nothing is known.

    It takes the pattern for the raw text between the quotes, and knows no assertions.
    """
    if re.search(r"\(\?<?[=!]", pattern):
        return "lookaround is ignored"
    # Negated classes leave out what must be escaped; anchors mean something else in a class.
    without = re.sub(r"(\\.)|\[\^(?:\\.|[^\]\\])*\]", lambda hit: hit[1] or "_", pattern)
    if _ESCAPED.search(without):
        return "it writes characters that JSON must escape"
    outside = re.sub(r"\\.|\[(?:\\.|[^\]\\])*\]", "_", without)
    if re.search(r"[^(|]\^|\$[^)|]", outside):
        return "an anchor inside is ignored"
    return None


def every_schema(root: object) -> Iterator[Schema]:
    """Every schema of a document, those under definitions included; may be changed on the way."""
    rest = [root]
    while rest:
        schema = rest.pop()
        if not isinstance(schema, dict):
            continue
        yield schema
        for keyword in (*_NAMED, "propertyNames", "contains", "not", "if", "then", "else"):
            child = schema.get(keyword)
            rest.extend(
                child.values() if keyword in _NAMED and isinstance(child, dict) else [child]
            )
        rest.extend(child for _, child in _below("", schema))


_NAMED: Final = ("$defs", "definitions", "dependentSchemas")
"""Keywords whose values are schemas by name, beside those of properties."""


def _below(place: str, schema: Schema) -> Iterator[tuple[str, object]]:
    for keyword in ("properties", "patternProperties"):
        children = schema.get(keyword)
        if isinstance(children, dict):
            yield from ((f"{place}/{keyword}/{name}", child) for name, child in children.items())
    for keyword in ("prefixItems", *_BRANCHES):
        children = schema.get(keyword)
        if isinstance(children, list):
            yield from ((f"{place}/{keyword}/{i}", child) for i, child in enumerate(children))
    for keyword in (
        "items",
        "additionalProperties",
        "unevaluatedItems",
        "unevaluatedProperties",
    ):
        if keyword in schema:
            yield f"{place}/{keyword}", schema[keyword]
    names = schema.get("propertyNames")
    if isinstance(names, dict):
        yield f"{place}/propertyNames", {"type": "string", **names}  # names are strings, untold


def _resolve(root: object, reference: str, place: str) -> object:
    if reference != "#" and not reference.startswith("#/"):
        _refuse(place, f"'$ref': {reference!r} leads out of the schema; write '#/…'")
    target = root
    for name in reference.split("/")[1:]:
        if not isinstance(target, dict) or name not in target:
            _refuse(place, f"'$ref': {reference!r} leads nowhere")
        target = target[name]
    return target


def _behind_references(root: object, schema: object, place: str) -> object:
    """What a schema that only refers to another stands for; itself if it refers in a circle."""
    current, seen = schema, set[int]()
    while isinstance(current, dict) and isinstance(reference := current.get("$ref"), str):
        if id(current) in seen:
            return schema
        seen.add(id(current))
        current = _resolve(root, reference, place)
    return current


def _disjoint(branches: list[object]) -> bool:
    """Whether no value can match two of the branches, as far as it is plain to see."""
    schemas = [branch for branch in branches if isinstance(branch, dict)]
    if len(schemas) < len(branches):
        return False
    return all(_apart(one, other) for i, one in enumerate(schemas) for other in schemas[i + 1 :])


def _apart(one: Schema, other: Schema) -> bool:
    if _apart_constants(one, other):
        return True
    types, other_types = _types(one), _types(other)
    if types is None or other_types is None:
        return False
    if not any(_fits(a, other_types) or _fits(b, types) for a in types for b in other_types):
        return True
    return any(
        _apart_constants(mine, theirs)
        for name, mine in _required_properties(one)
        for other_name, theirs in _required_properties(other)
        if name == other_name
    )


def _apart_constants(one: Schema, other: Schema) -> bool:
    values, others = _values(one), _values(other)
    return (
        values is not None
        and others is not None
        and not any(value == other_value for value in values for other_value in others)
    )


def _required_properties(schema: Schema) -> Iterator[tuple[str, Schema]]:
    properties, required = schema.get("properties"), schema.get("required")
    if schema.get("type") == "object" and isinstance(properties, dict):
        for name, child in properties.items():
            if isinstance(required, list) and name in required and isinstance(child, dict):
                yield name, child


def _values(schema: Schema) -> list[object] | None:
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) else None


def _types(schema: Schema) -> set[str] | None:
    """The types that a schema names; None where it names none."""
    types = schema.get("type")
    if isinstance(types, str):
        return {types}
    return {str(each) for each in types} if isinstance(types, list) else None


def _types_of_value(value: object) -> set[str]:
    match value:
        case None:
            return {"null"}
        case bool():
            return {"boolean"}
        case int():
            return {"integer"}
        case float():
            return {"number", "integer"} if value.is_integer() else {"number"}
        case str():
            return {"string"}
        case list():
            return {"array"}
        case _:
            return {"object"}


def _fits(own: str, types: set[str]) -> bool:
    return own in types or (own == "integer" and "number" in types)


def _present(schema: Schema, *keywords: str) -> list[str]:
    return [keyword for keyword in keywords if keyword in schema]


def _alone(report: Report, place: str, keyword: str, others: list[str]) -> None:
    if others:
        report(place, f"{others[0]!r} beside {keyword!r} is ignored; move it inside")


def _refuse(place: str, what: str) -> NoReturn:
    raise GrammarError(f"json: at {place}: {what}")
