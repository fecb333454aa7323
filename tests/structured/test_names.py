"""Names of properties: what a schema says of a name holds, and no set of names is used up."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from stepweave.structured.backend import CompiledGrammar, GrammarBackend
from stepweave.structured.grammar import GrammarSpec
from stepweave.structured.json_schema import rewrite_schema
from stepweave.structured.llguidance_backend import LLGuidanceBackend
from stepweave.structured.schema_llguidance import LLGuidanceWriter
from stepweave.structured.xgrammar_backend import XGrammarBackend

from .test_walks import judge, spelled, texts, those_taken

INTEGER = {"type": "integer"}
STRING = {"type": "string"}
AB = {"type": "object", "properties": {"a": INTEGER, "b": INTEGER}}


def compiled(backend: GrammarBackend, schema: object) -> CompiledGrammar:
    return backend.compile(GrammarSpec.from_request({"json": schema}))


@pytest.mark.parametrize(
    "schema",
    [
        {**AB, "patternProperties": {"^[ab]$": {"minimum": 0}}, "additionalProperties": False},
        {"type": "object", "patternProperties": {"^x$": INTEGER}, "required": ["x"]},
        {"type": "object", "patternProperties": {"^(x|y)$": INTEGER}, "required": ["x", "y"]},
        {"type": "object", "propertyNames": {"pattern": "^[ab]$"}, "required": ["a", "b"]},
        {"type": "object", "propertyNames": {"maxLength": 0}, "required": [""]},
    ],
)
def test_names_that_a_pattern_has_few_of_are_never_used_up(
    backend: GrammarBackend, tokenizer: PreTrainedTokenizerFast, schema: dict[str, Any]
) -> None:
    grammar, tokens = compiled(backend, schema), spelled(tokenizer)
    for text in texts(grammar, tokens, random.Random(0), 20):  # raises in a dead end
        judge(schema).validate(json.loads(text))


@pytest.mark.parametrize("library", ["xgrammar", "llguidance"])
def test_a_pattern_of_names_that_are_all_named_is_left_out(library: Any) -> None:
    some = [f"n{index}" for index in range(70)]
    schema = {
        "type": "object",
        "propertyNames": {"pattern": f"^({'|'.join(some)})$"},
        "required": some,
    }
    written, notes = rewrite_schema(json.dumps(schema), library)
    assert notes == ()
    assert "patternProperties" not in written
    assert list(json.loads(written)["properties"]) == some


def test_each_such_name_comes_once(
    backend: GrammarBackend, tokenizer: PreTrainedTokenizerFast
) -> None:
    schema = {"type": "object", "patternProperties": {"^[ab]$": INTEGER, "^a$": {"maximum": 5}}}
    grammar = compiled(backend, schema)
    some = ['{"a": 1}', '{"a": 1, "b": 7}', '{"a": 7}', '{"a": 1, "a": 2}', '{"c": 1}']
    assert those_taken(grammar, tokenizer, some) == some[:2]


def test_two_patterns_for_the_same_names_both_hold(
    llguidance: LLGuidanceBackend, tokenizer: PreTrainedTokenizerFast
) -> None:
    schema = {
        "type": "object",
        "patternProperties": {"^a": {**INTEGER, "maximum": 3}, "^(a)": INTEGER},
        "additionalProperties": False,
    }
    some = ['{"a": 2}', '{"a": 9}']
    assert those_taken(compiled(llguidance, schema), tokenizer, some) == some[:1]


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (
            {"type": "object", "properties": {"a": INTEGER}, "additionalProperties": STRING},
            ['{"a": 1}', '{"b": "x"}', '{"a": 1, "aa": "x"}', '{"": "x"}', '{"\\"": "x"}'],
            ['{"a": "x"}', '{"\\u0061": "x"}', '{"a": 1, "\\u0061": "x"}'],
        ),
        (
            {
                "type": "object",
                "properties": {"é": INTEGER, 'a"b': INTEGER},
                "additionalProperties": STRING,
            },
            ['{"é": 1}', '{"e": "x"}', '{"a\\"b": 1}'],
            ['{"é": "x"}', '{"\\u00e9": "x"}', '{"a\\"b": "x"}', '{"a\\u0022b": "x"}'],
        ),
        (
            {
                "type": "object",
                "properties": {"card": INTEGER},
                "additionalProperties": True,
                "dependentRequired": {"card": ["address"]},
            },
            ['{"x": 1}', '{"card": 1, "address": 2}'],
            ['{"card": 1}', '{"c\\u0061rd": 1}'],
        ),
        (
            {
                "type": "object",
                "properties": {"id": INTEGER},
                "patternProperties": {"^x-": STRING},
                "additionalProperties": True,
            },
            ['{"id": 1}', '{"x-a": "s"}', '{"ix": 1}', '{"y": [1]}', '{"x": 1}'],
            ['{"\\u0069d": "s"}', '{"x-a": 1}', '{"\\u0078-a": 1}', '{"x\\u002da": 1}'],
        ),
        (
            {"type": "object", "not": {"required": ["a"]}},
            ['{"b": 1}', "{}", '{"aa": 1}'],
            ['{"a": 1}', '{"\\u0061": 1}'],
        ),
        (
            {"type": "object", "if": {"required": ["vip"]}, "then": {"required": ["code"]}},
            ['{"x": 1}', '{"vip": 1, "code": 2}'],
            ['{"vip": 1}', '{"vi\\u0070": 1}'],
        ),
        (
            {
                "type": "object",
                "properties": {f"property_number_{index:02}": INTEGER for index in range(16)},
                "additionalProperties": True,
            },
            ['{"property_number_00": 1}', '{"property_number": "s"}'],
            ['{"property_number_00": "s"}', '{"\\u0070roperty_number_00": "s"}'],
        ),
    ],
)
def test_a_name_with_escapes_is_no_other_name(
    llguidance: LLGuidanceBackend,
    tokenizer: PreTrainedTokenizerFast,
    schema: object,
    good: list[str],
    bad: list[str],
) -> None:
    assert those_taken(compiled(llguidance, schema), tokenizer, good + bad) == good


def test_a_pattern_that_begins_with_anything_leaves_no_others_that_can_be_told_apart() -> None:
    schema = {"type": "object", "patternProperties": {"x$": STRING}, "additionalProperties": True}
    _, (note,) = rewrite_schema(json.dumps(schema), "llguidance")
    assert "'additionalProperties' beside a pattern that may begin with any character" in note


def test_a_name_with_several_spellings_is_not_told_from_a_pattern() -> None:
    schema = {
        "type": "object",
        "properties": {"a\nb": INTEGER},
        "patternProperties": {"^a": {}},
        "additionalProperties": False,
    }
    _, (note,) = rewrite_schema(json.dumps(schema), "llguidance")
    assert "the property 'a\\nb', which has several spellings, cannot be enforced" in note
    _, notes = rewrite_schema(json.dumps({**schema, "patternProperties": {"^b": {}}}), "llguidance")
    assert notes == ()


def test_beside_very_many_characters_of_names_others_begin_in_another_way(
    llguidance: LLGuidanceBackend,
    tokenizer: PreTrainedTokenizerFast,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(LLGuidanceWriter, "most_named", 64)  # as many as there may be take long
    size = LLGuidanceWriter.most_named // 8
    for count, told_apart in ((size, True), (size + 1, False)):
        names = {f"{chr(0x4E00 + index)}propert": INTEGER for index in range(count)}
        schema = {"type": "object", "properties": names, "additionalProperties": STRING}
        some = ['{"x": "y"}', '{"\u4e00propert": "y"}', '{"\u4e00properx": "y"}']
        good = [some[0], some[2]] if told_apart else [some[0]]
        assert those_taken(compiled(llguidance, schema), tokenizer, some) == good


@pytest.mark.parametrize("name", ["name", "é", "城市", 'a"b', "a\\b", "a\nb"])
def test_xgrammar_tells_such_a_name_from_others(
    xgrammar: XGrammarBackend, tokenizer: PreTrainedTokenizerFast, name: str
) -> None:
    schema = {"type": "object", "properties": {name: INTEGER}, "additionalProperties": STRING}
    grammar, key = compiled(xgrammar, schema), json.dumps(name, ensure_ascii=False)
    escaped = "".join(f"\\u{ord(each):04x}" for each in name)
    good = [f"{{{key}: 1}}", f'{{{key}: 1, "b": "x"}}', '{"a": "x"}']
    bad = [
        f'{{{key}: "x"}}',
        f'{{"{escaped}": "x"}}',
        f'{{{key}: 1, "{escaped}": "x"}}',
        '{"a": 1}',
    ]
    assert those_taken(grammar, tokenizer, good + bad) == good
    for text in texts(grammar, spelled(tokenizer), random.Random(0), 10):
        judge(schema).validate(json.loads(text))
