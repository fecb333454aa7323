"""Names of properties: what a schema says of a name holds, and no set of names is used up."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from stepweave.structured.backend import CompiledGrammar, GrammarBackend
from stepweave.structured.grammar import GrammarError, GrammarSpec
from stepweave.structured.json_schema import rewrite_schema
from stepweave.structured.llguidance_backend import LLGuidanceBackend
from stepweave.structured.schema_llguidance import MOST_NAMED
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


def test_beside_very_many_characters_of_names_there_is_no_such_pattern() -> None:
    for size, pattern in ((MOST_NAMED, True), (MOST_NAMED + 8, False)):
        names = {f"{index:08}": INTEGER for index in range(size // 8)}
        schema = {"type": "object", "properties": names, "additionalProperties": STRING}
        written, notes = rewrite_schema(json.dumps(schema), "llguidance")
        assert notes == ()
        assert ("patternProperties" in written) == pattern


@pytest.mark.parametrize("name", ["é", "城市", 'a"b', "a\\b"])
def test_xgrammar_does_not_tell_such_a_name_from_others(
    xgrammar: XGrammarBackend, name: str
) -> None:
    schema = {"type": "object", "properties": {name: INTEGER}, "additionalProperties": STRING}
    with pytest.raises(GrammarError, match="cannot be enforced beside others"):
        compiled(xgrammar, schema)
    compiled(xgrammar, {**schema, "additionalProperties": False})
