"""Schemas are enforced or refused; what is enforced is tried on texts by the real compiler."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from stepweave.structured.grammar import GrammarError, GrammarSpec
from stepweave.structured.json_schema import rewrite_schema
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
        (
            {  # a part with an `$id` is a document of its own
                "$id": "http://x/root",
                "$defs": {
                    "b": STRING,
                    "a": {"$id": "http://x/a", "$defs": {"b": INTEGER}, "$ref": "#/$defs/b"},
                },
                "$ref": "a",
            },
            1,
            "text",
        ),
        (
            {  # unless it has no such part: many write an `$id` and mean the whole document
                "$defs": {"b": STRING, "a": {"$id": "/a", "$ref": "#/$defs/b"}},
                "$ref": "#/$defs/a",
            },
            "text",
            1,
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


def test_values_of_a_list_are_told_apart_by_kind() -> None:
    values = [True, ["boolean", 1], ["boolean", True], 1, [1], [[1]], {"a": 1}]
    written, notes = rewrite_schema(json.dumps({"enum": [*values, 1.0]}), "llguidance")
    assert json.loads(written) == {"enum": values}
    assert notes == ()


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"not": {"pattern": "a"}}, "at #/not: 'not' around 'pattern' cannot"),
        ({"type": "array", "uniqueItems": True}, "'uniqueItems' cannot"),
        ({"type": "array", "contains": STRING}, "'contains' cannot"),
        ({"type": "string", "pattern": "^(ab)+$", "minLength": 3}, "lengths beside 'pattern'"),
        ({"type": "string", "format": "date", "pattern": "a"}, "several patterns or formats"),
        ({"type": "number", "multipleOf": 0.5}, "'multipleOf' can be enforced for 'integer'"),
        ({"type": "integer", "multipleOf": 2, "minimum": 3}, "'multipleOf' can be enforced"),
        ({"oneOf": [INTEGER, {"type": "number"}]}, "'oneOf' can be enforced only where"),
        ({"type": "string", "pattern": "(?=a)b"}, "lookaround cannot .*at character 1 of"),
        ({"type": "integer", "minimum": 2**70}, "'minimum' has more than 63 bits"),
        ({"type": "string", "pattern": "(a"}, "this '\\(' is not closed"),
        ({"enum": ["a"], "const": "b"}, "no value can satisfy it"),
        ({"allOf": [STRING, INTEGER]}, "no value can satisfy it"),
        ({"type": "string", "not": {"const": "a" * 200}}, "'not' around a text of more than 64"),
        ({"propertyNames": INTEGER, "type": "object"}, "'propertyNames' cannot be enforced here"),
        ({"type": "strin"}, "'strin' is no type of JSON \\(did you mean 'string'"),
        ({"$ref": "http://x/y"}, "leads out of the schema"),
        ({"$ref": "#anchor"}, "leads out of the schema"),
        ({"$ref": "#/$defs/b", "$defs": {"bb": 1}}, "leads nowhere.*did you mean '#/\\$defs/bb'"),
        ({"$id": "http://x", "$ref": "//["}, "at #: no name of a schema can be made of"),
        ({"properties": {"a": {"$id": "//[", "$ref": "x"}}}, "at #/properties/a: no name of a"),
        ({"$ref": "#"}, "it refers to itself"),
        ({"allOf": [{"$ref": "#"}, STRING]}, "it refers to itself"),
        ({"properties": {"a": {"items": {"contains": {}}}}}, "at #/properties/a/items: 'cont"),
        ({"anyOf": [STRING, {"prefixItems": [{"contains": {}}]}]}, "anyOf/1/prefixItems/0: 'c"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"contains": {}}}}, "at #/\\$defs/a: 'cont"),
        ({"properties": {"a/b": {"contains": {}}}}, "at #/properties/a~1b: 'contains'"),
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
        {"$ref": 3},
        {"$ref": "#/a", "a": {"$ref": "#/b"}, "b": {"$ref": "#/a"}},
        {"anyOf": [{"$ref": "#/a"}], "type": "string", "a": {"$ref": "#/a"}},
        {"patternProperties": {"(": STRING}, "type": "object"},
    ],
)
def test_a_schema_that_is_none_is_an_ordinary_refusal(
    xgrammar: XGrammarBackend, schema: object
) -> None:
    with pytest.raises(GrammarError):
        xgrammar.compile(GrammarSpec.from_request({"json": schema}))


@pytest.mark.parametrize("library", ["xgrammar", "llguidance"])
@pytest.mark.parametrize(
    ("deep", "what"),
    [
        ({"enum": ["a"], "pattern": "("}, "unterminated subpattern"),
        ({"properties": {"a": INTEGER}, "patternProperties": {"(": INTEGER}}, "unterminated"),
    ],
)
def test_a_malformed_pattern_that_is_looked_for_is_refused_by_place(
    deep: Any, what: str, library: Any
) -> None:
    with pytest.raises(GrammarError, match=f"^json: at #/properties/deep: .*{what}"):
        rewrite_schema(json.dumps({"properties": {"deep": deep}}), library)


@pytest.mark.parametrize("library", ["xgrammar", "llguidance"])
def test_a_listed_number_with_too_many_digits_is_named_by_place(library: Any) -> None:
    schema = {"type": "object", "properties": {"deep": {"const": 12345678901234567890123}}}
    _, (note,) = rewrite_schema(json.dumps(schema), library)
    assert note.startswith("json: at #/properties/deep: the number 12345678901234567890123 has")


def test_a_length_says_no_type_where_strings_are_excluded() -> None:
    written, notes = rewrite_schema(json.dumps({"not": STRING, "minLength": 2}), "llguidance")
    assert notes == ()
    assert set(json.loads(written)["type"]) == {"null", "boolean", "number", "array", "object"}


NOBODY = {"type": "integer", "minimum": 5, "maximum": 3}


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        (NOBODY, "#"),
        (
            {
                "properties": {
                    "other": {"properties": {"b": NOBODY}},
                    "user": {"properties": {"a": NOBODY}, "required": ["a"], "type": "object"},
                },
                "required": ["other", "user"],
                "type": "object",
            },
            "#/properties/user/properties/a",
        ),
        ({"type": "array", "items": {"allOf": [{}, NOBODY]}, "minItems": 1}, "#/items/allOf/1"),
        (
            {"type": "array", "prefixItems": [{"type": "null"}, NOBODY], "minItems": 2},
            "#/prefixItems/1",
        ),
        ({"type": "array", "items": [{"type": "null"}, NOBODY], "minItems": 2.0}, "#/items/1"),
        (
            {"type": "array", "items": [{}], "additionalItems": NOBODY, "minItems": 2},
            "#/additionalItems",
        ),
        ({"allOf": [{"type": "string"}, {"type": "null"}]}, "#"),
    ],
)
def test_the_innermost_place_is_named_that_no_value_satisfies(schema: Any, place: str) -> None:
    with pytest.raises(GrammarError, match=rf"at {re.escape(place)}: no value can satisfy it"):
        rewrite_schema(json.dumps(schema), "xgrammar")


def node_with(**members: Any) -> dict[str, Any]:
    """A schema whose values have other values of it in them, under the names of `members`."""
    return {"type": "object", "properties": members, "required": [*members]}


SELF = {"$ref": "#"}


@pytest.mark.parametrize("library", ["xgrammar", "llguidance"])
@pytest.mark.parametrize(
    "schema",
    [
        node_with(next=SELF),
        node_with(name=STRING, next={"anyOf": [SELF, node_with(inner=SELF)]}),
        {"type": "array", "items": SELF, "minItems": 1},
        {"type": "array", "prefixItems": [STRING, SELF], "minItems": 2},
        {"type": "object", "additionalProperties": SELF, "minProperties": 1},
        {"type": "object", "patternProperties": {"^a": SELF}, "minProperties": 1},
        {**node_with(a=SELF), "required": [], "minProperties": 1},
        {**node_with(a=SELF, b=STRING), "required": ["b"], "minProperties": 2},
        {**node_with(a=SELF, b=SELF, c=STRING), "required": [], "minProperties": 2},
        {
            "allOf": [{"$ref": "#/$defs/a"}],
            "$defs": {
                "a": node_with(b={"$ref": "#/$defs/b"}),
                "b": node_with(a={"$ref": "#/$defs/a"}),
            },
        },
    ],
)
def test_a_schema_of_endless_texts_is_refused(schema: Any, library: Any) -> None:
    with pytest.raises(GrammarError, match=r"at #[^:]*: each value of it has another one in it"):
        rewrite_schema(json.dumps(schema), library)


@pytest.mark.parametrize("library", ["xgrammar", "llguidance"])
@pytest.mark.parametrize(
    "schema",
    [
        {**node_with(next=SELF), "required": []},
        node_with(next={"anyOf": [SELF, {"type": "null"}]}),
        node_with(next={"type": "array", "items": SELF}),
        {"type": "array", "items": SELF},
        {"type": "array", "prefixItems": [STRING, SELF], "minItems": 1},
        {"anyOf": [node_with(next=SELF), STRING]},
        {**node_with(a=SELF, b=STRING), "required": [], "minProperties": 1},
        {**node_with(a=SELF), "required": [], "additionalProperties": STRING, "minProperties": 2},
    ],
)
def test_a_schema_whose_values_may_end_is_not(schema: Any, library: Any) -> None:
    rewritten, _ = rewrite_schema(json.dumps(schema), library)
    assert "$ref" in rewritten, "it still refers to itself"


@pytest.mark.parametrize("library", ["xgrammar", "llguidance"])
def test_what_never_ends_is_left_out_beside_what_ends(library: Any) -> None:
    never = node_with(n={"$ref": "#/$defs/never"})
    to_it = {"$ref": "#/$defs/never"}
    for schema, written in (
        ({"anyOf": [{"type": "null"}, to_it]}, {"type": "null"}),
        ({"type": "array", "items": to_it}, {"type": "array", "items": False}),
        (
            {"type": "array", "prefixItems": [STRING, to_it]},
            {"type": "array", "prefixItems": [STRING], "items": False},
        ),
        (
            {"type": "object", "patternProperties": {"^a": to_it}},
            {"type": "object", "additionalProperties": False},
        ),
    ):
        found, notes = rewrite_schema(json.dumps({**schema, "$defs": {"never": never}}), library)
        assert (json.loads(found), notes) == (written, ())
