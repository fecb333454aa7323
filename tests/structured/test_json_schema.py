"""Schemas are enforced or refused; what is enforced is tried on texts by the real compiler."""

from __future__ import annotations

import json

import pytest
from transformers import PreTrainedTokenizerFast

from stepweave.structured.grammar import GrammarError, GrammarSpec
from stepweave.structured.json_schema import check_schema, pattern_flaw
from stepweave.structured.xgrammar_backend import XGrammarBackend

from .conftest import EOS

INTEGER = {"type": "integer"}
STRING = {"type": "string"}
CAT = {"type": "object", "properties": {"kind": {"const": "cat"}}, "required": ["kind"]}
DOG = {"type": "object", "properties": {"kind": {"const": "dog"}}, "required": ["kind"]}

PETS = {"c": CAT, "d": DOG}


def accepts(
    xgrammar: XGrammarBackend, tokenizer: PreTrainedTokenizerFast, schema: object, value: object
) -> bool:
    matcher = xgrammar.compile(GrammarSpec.from_request({"json": schema})).matcher()
    text = json.dumps(value, ensure_ascii=False)
    return all(matcher.accept(token) for token in [*tokenizer.encode(text), EOS])


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "string", "minLength": 2, "maxLength": 3}, "ab", "abcd"),
        ({"type": "string", "pattern": "^a+$"}, "aa", "ab"),
        ({"type": "string", "format": "date"}, "2020-01-31", "yesterday"),
        ({"type": "string", "format": "password", "minLength": 3}, "abc", "ab"),
        ({"type": "integer", "minimum": 3}, 3, 2),
        ({"type": "integer", "multipleOf": 3}, 6, 4),
        ({"type": "number", "exclusiveMaximum": 3}, 2.5, 3),
        ({"type": ["string", "integer"], "minimum": 3}, 4, 2),
        ({"type": "array", "items": INTEGER, "minItems": 2, "maxItems": 2}, [1, 2], [1]),
        ({"type": "array", "prefixItems": [INTEGER, STRING]}, [1, "a"], ["a", 1]),
        ({"properties": {"a": INTEGER}, "required": ["a"]}, {"a": 1}, {}),
        ({"type": "object", "additionalProperties": INTEGER}, {"x": 1}, {"x": "y"}),
        ({"type": "object", "patternProperties": {"^a$": INTEGER}}, {"a": 1}, {"a": "x"}),
        ({"type": "object", "propertyNames": {"pattern": "^a$"}}, {"a": 1}, {"b": 1}),
        ({"enum": ["a", 1, None]}, None, 2),
        ({"type": "string", "enum": ["a", "b"], "title": "t"}, "b", "c"),
        ({"anyOf": [INTEGER, {"type": "null"}], "default": None}, None, "a"),
        ({"type": ["integer", "null"], "anyOf": [INTEGER, {"type": "null"}]}, 1, "a"),
        ({"oneOf": [INTEGER, STRING]}, "a", None),
        ({"oneOf": [{"const": 1}, {"const": 2}]}, 2, 3),
        (
            {
                "oneOf": [{"$ref": "#/$defs/c"}, {"$ref": "#/$defs/d"}],
                "$defs": {"c": CAT, "d": DOG},
            },
            {"kind": "dog"},
            {"kind": "cow"},
        ),
        ({"allOf": [INTEGER]}, 1, "a"),
        (
            {
                "$ref": "#/$defs/n",
                "$defs": {"n": {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}}},
            },
            {"n": {"n": {}}},
            {"n": 1},
        ),
        ({"type": "integer", "format": "int32", "unknown": {"not": 1}}, 1, "a"),
        ({"$defs": {"unused": {"not": {}}}, "type": "integer"}, 1, "a"),
        (True, [1], None),
    ],
)
def test_what_is_compiled_is_enforced(
    xgrammar: XGrammarBackend,
    tokenizer: PreTrainedTokenizerFast,
    schema: object,
    good: object,
    bad: object,
) -> None:
    assert accepts(xgrammar, tokenizer, schema, good)
    if schema is not True:
        assert not accepts(xgrammar, tokenizer, schema, bad)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"not": STRING}, "at #: 'not' cannot be enforced"),
        ({"type": "array", "uniqueItems": True}, "'uniqueItems' cannot"),
        ({"type": "array", "contains": STRING}, "'contains' cannot"),
        ({"type": "object", "dependentRequired": {"a": ["b"]}}, "'dependentRequired' cannot"),
        ({"if": STRING, "then": {"minLength": 3}}, "'if' cannot"),
        ({"minLength": 3}, "'minLength' is ignored without a type; write 'type': 'string'"),
        ({"required": ["a"]}, "'required' is ignored without a type"),
        ({"type": "object", "required": ["b"]}, "required property 'b' is ignored"),
        ({"type": "object", "propertyNames": {}, "properties": {}}, "'propertyNames' beside"),
        ({"type": "string", "pattern": "a", "minLength": 2}, "lengths beside 'pattern'"),
        ({"type": "string", "format": "date", "maxLength": 2}, "lengths beside 'pattern' or 'f"),
        ({"type": "string", "format": "date", "pattern": "a"}, "'pattern' beside 'format'"),
        ({"type": "number", "multipleOf": 0.5}, "'multipleOf' can be enforced for 'integer'"),
        ({"type": "integer", "multipleOf": 2, "minimum": 3}, "'multipleOf' can be enforced"),
        ({"allOf": [STRING, INTEGER]}, "'allOf' with several schemas"),
        ({"allOf": [STRING], "anyOf": [STRING]}, "'anyOf' beside 'allOf'"),
        ({"anyOf": [INTEGER], "maximum": 3}, "'maximum' beside 'anyOf' is ignored"),
        ({"type": "integer", "anyOf": [{"minimum": 3}]}, "'type' beside 'anyOf' is ignored"),
        ({"type": "integer", "anyOf": [STRING]}, "'type' beside 'anyOf' is ignored"),
        ({"oneOf": [INTEGER, {"type": "number"}]}, "'oneOf' can be enforced only where"),
        ({"oneOf": [CAT, CAT]}, "'oneOf' can be enforced only where"),
        ({"oneOf": [{"$ref": "#"}, STRING]}, "'oneOf' can be enforced only where"),
        ({"type": "string", "enum": ["a", 1]}, "the value 1 is not of the type 'string'"),
        ({"type": "integer", "const": True}, "the value True is not of the type 'integer'"),
        ({"enum": ["a"], "const": "b"}, "'const' is not one of 'enum'"),
        ({"enum": [1, 4], "minimum": 3}, "'minimum' beside 'enum' is ignored"),
        ({"$ref": "#/$defs/a", "$defs": {"a": STRING}, "maxLength": 1}, "beside '\\$ref' is"),
        ({"$ref": "http://x/y"}, "leads out of the schema"),
        ({"$ref": "#anchor"}, "leads out of the schema"),
        ({"$ref": "#/$defs/b"}, "leads nowhere"),
        ({"properties": {"a": {"items": {"not": {}}}}}, "at #/properties/a/items: 'not'"),
        ({"anyOf": [STRING, {"type": "array", "prefixItems": [{"not": {}}]}]}, "anyOf/1/prefixI"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"not": {}}}}, "at #/\\$defs/a: 'not'"),
    ],
)
def test_a_constraint_that_would_be_dropped_is_refused_by_name(
    xgrammar: XGrammarBackend, schema: object, message: str
) -> None:
    with pytest.raises(GrammarError, match=message):
        xgrammar.compile(GrammarSpec.from_request({"json": schema}))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": 3},
        {"enum": 3},
        {"anyOf": 3},
        {"properties": 3, "required": 3},
        {"oneOf": [True, STRING]},
        {"$ref": 3},
        {"$ref": "#/a", "a": {"$ref": "#/b"}, "b": {"$ref": "#/a"}},
        {"anyOf": [{"$ref": "#/a"}], "type": "string", "a": {"$ref": "#/a"}},
        {"items": [STRING]},
        {"patternProperties": {"(": STRING}, "type": "object"},
    ],
)
def test_a_schema_that_is_none_is_an_ordinary_refusal(
    xgrammar: XGrammarBackend, schema: object
) -> None:
    with pytest.raises(GrammarError):
        xgrammar.compile(GrammarSpec.from_request({"json": schema}))


def test_a_schema_that_refers_to_itself_is_looked_at_once() -> None:
    check_schema('{"type": "array", "items": {"$ref": "#"}}')


@pytest.mark.parametrize(
    ("pattern", "flaw"),
    [
        ("^a+$", None),
        ("a|^b$|c", None),
        ("(^a|b$)", None),
        ("[$^]x", None),
        (r"\$a\^", None),
        (r'^[^"\\\n]*$', None),
        ("(?:a)?", None),
        ("a(?=b)", "lookaround"),
        ("(?!a)b", "lookaround"),
        ("(?<!a)b", "lookaround"),
        ("a^b", "anchor"),
        ("a$b", "anchor"),
        ('"', "JSON must escape"),
        ('["a]', "JSON must escape"),
        (r"\\", "JSON must escape"),
        (r"a\n", "JSON must escape"),
        (r"\x1f", "JSON must escape"),
        (r"\u0022", "JSON must escape"),
        ("\t", "JSON must escape"),
    ],
)
def test_patterns_that_one_library_reads_wrong_are_known(pattern: str, flaw: str | None) -> None:
    found = pattern_flaw(pattern)
    assert found is None if flaw is None else found is not None and flaw in found
