"""What one library lets a random walk write, the other accepts, and so does the definition."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import jsonschema
import pytest
from transformers import PreTrainedTokenizerFast

from stepweave.structured.backend import CompiledGrammar
from stepweave.structured.grammar import GrammarError, GrammarSpec
from stepweave.structured.llguidance_backend import LLGuidanceBackend
from stepweave.structured.xgrammar_backend import XGrammarBackend

from .conftest import BACKENDS, EOS, make_backend
from .test_structural_tag import TWO
from .walking import next_tokens, random_output

WALKS = 12
INTEGER: dict[str, Any] = {"type": "integer"}
STRING: dict[str, Any] = {"type": "string"}


def outputs(
    compiled: CompiledGrammar, tokenizer: PreTrainedTokenizerFast, seed: int, count: int = WALKS
) -> list[str]:
    """Texts of finished random walks."""
    rng = random.Random(seed)
    walks = (random_output(compiled.matcher(), rng, limit=80) for _ in range(count))
    return [str(tokenizer.decode(tokens)) for tokens in walks if tokens is not None]


SCHEMAS: list[dict[str, Any]] = [
    {"type": "string", "minLength": 2, "maxLength": 3},
    {"type": "string", "minLength": 2},
    {"type": "string", "pattern": "^a+b?$"},
    {"type": "string", "pattern": "^[^a]$"},
    {"type": "string", "format": "date"},
    {"type": "string", "format": "uuid"},
    {"type": "string", "format": "ipv4"},
    {"type": "string", "format": "password"},
    {"type": "integer", "minimum": 3, "maximum": 12},
    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    {"type": ["string", "integer"], "minimum": 3, "maxLength": 4},
    {"type": "array", "items": INTEGER, "minItems": 1, "maxItems": 2},
    {"type": "array", "prefixItems": [INTEGER, {"type": "null"}], "items": False},
    {"type": "object", "properties": {"a": INTEGER, "b": STRING}, "required": ["b"]},
    {"type": "object", "additionalProperties": INTEGER},
    {
        "type": "object",
        "patternProperties": {"^a": INTEGER},
        "properties": {"b": {"type": "null"}},
        "additionalProperties": False,
    },
    {"enum": ["a", 1, None, {"b": [True]}]},
    {"anyOf": [INTEGER, {"type": "null"}]},
    {"oneOf": [INTEGER, {"type": "boolean"}]},
    {"$ref": "#/$defs/n", "$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}}}},
]


@pytest.mark.parametrize("index", range(len(SCHEMAS)))
def test_what_is_written_under_a_schema_is_valid_under_it(
    xgrammar: XGrammarBackend,
    llguidance: LLGuidanceBackend,
    tokenizer: PreTrainedTokenizerFast,
    index: int,
) -> None:
    schema = SCHEMAS[index]
    validator = jsonschema.Draft202012Validator(
        schema, format_checker=jsonschema.FormatChecker(["date", "uuid", "ipv4"])
    )
    spec = GrammarSpec.from_request({"json": schema})
    for backend in (xgrammar, llguidance):
        texts = outputs(backend.compile(spec), tokenizer, index)
        assert texts, "no walk finished"
        for text in texts:
            validator.validate(json.loads(text))


OBJECT: dict[str, Any] = {"type": "object"}
UNSOUND: list[tuple[dict[str, Any], set[str]]] = [
    ({**STRING, "not": {"pattern": "a"}}, {"xgrammar", "llguidance"}),
    ({"type": "array", "items": INTEGER, "uniqueItems": True}, {"xgrammar", "llguidance"}),
    ({"type": "array", "items": INTEGER, "contains": {"const": 1}}, {"xgrammar", "llguidance"}),
    ({"oneOf": [INTEGER, {"type": "number"}]}, {"xgrammar", "llguidance"}),
    ({**OBJECT, "minProperties": 2}, {"xgrammar", "llguidance"}),
    ({**OBJECT, "properties": {"a": INTEGER}, "minProperties": 1}, {"llguidance"}),
    ({**STRING, "pattern": "a(?=b)"}, {"xgrammar", "llguidance"}),
    ({**STRING, "pattern": "a\\b"}, {"xgrammar", "llguidance"}),
    ({**STRING, "pattern": "^(a+b)*$", "maxLength": 3}, {"xgrammar"}),
    ({**STRING, "pattern": '^a"b$'}, {"xgrammar"}),
    ({**STRING, "pattern": "^.{1,200}$"}, {"xgrammar"}),
    ({**STRING, "format": "date", "pattern": "^2"}, {"xgrammar"}),
    ({"type": "number", "multipleOf": 0.5}, {"xgrammar"}),
    (
        {**OBJECT, "patternProperties": {"^a": INTEGER}, "additionalProperties": STRING},
        {"xgrammar"},
    ),
    (
        {**OBJECT, "patternProperties": {"^a": INTEGER, "b$": {"maximum": 3}}},
        {"xgrammar"},
    ),
    ({**OBJECT, "additionalProperties": INTEGER, "properties": {"a": False}}, set()),
    (
        {
            **OBJECT,
            "properties": {"a": INTEGER},
            "patternProperties": {"^a": {**INTEGER, "maximum": 3}},
            "additionalProperties": False,
        },
        {"xgrammar"},
    ),
]
"""Schemas of which some library ignores a constraint, and which."""


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("index", range(len(UNSOUND)))
def test_what_would_be_ignored_is_refused_or_named(
    tokenizer: PreTrainedTokenizerFast, name: str, index: int
) -> None:
    schema, ignoring = UNSOUND[index]
    spec = GrammarSpec.from_request({"json": schema})
    strict = make_backend(name, tokenizer)
    if name not in ignoring:
        try:
            compiled = strict.compile(spec)
        except GrammarError:
            return  # a library may refuse more than it must
        assert compiled.warnings == ()
        for text in outputs(compiled, tokenizer, index):
            jsonschema.validate(json.loads(text), schema)
        return
    with pytest.raises(GrammarError, match="json: "):
        strict.compile(spec)
    lenient = make_backend(name, tokenizer, strict=False).compile(spec)
    assert lenient.warnings
    assert all(each.startswith("json: ") for each in lenient.warnings)
    assert next_tokens(lenient.matcher())


REGEXES = ["(hello|he)?( world)*[0-9]{0,2}", "\\d+|\\w{2,3}", "[^a-z]\\s?", "a/b\\.c", "^a|b$"]


@pytest.mark.parametrize("regex", REGEXES)
def test_what_is_written_under_a_regex_matches_it(
    xgrammar: XGrammarBackend,
    llguidance: LLGuidanceBackend,
    tokenizer: PreTrainedTokenizerFast,
    regex: str,
) -> None:
    for backend in (xgrammar, llguidance):
        compiled = backend.compile(GrammarSpec("regex", regex))
        for text in outputs(compiled, tokenizer, 1):
            if "\ufffd" not in text:  # bytes that are no character: the pattern has no say
                assert re.fullmatch(regex, text), text


BOTH = {
    "object": GrammarSpec("json_object", ""),
    "schema": GrammarSpec.from_request({"json": {**SCHEMAS[13], "additionalProperties": False}}),
    "bounded": GrammarSpec.from_request({"json": SCHEMAS[0]}),
    "regex": GrammarSpec("regex", REGEXES[0]),
    "recursive": GrammarSpec("grammar", 'root ::= "[" root "]" | "maybe" | ""'),
    "rules": GrammarSpec(
        "grammar", 'root ::= word (" " word){0,3}\nword ::= [a-c\\u00e9]+ | "\\"x"'
    ),
    "choice": GrammarSpec.from_request({"choice": ["yes", "yes no", 'q"\\\n/', "é😀", ""]}),
    "tags": GrammarSpec.from_request({"structural_tag": TWO}),
}


@pytest.mark.parametrize("name", BOTH)
def test_each_library_accepts_what_the_other_lets_be_written(
    xgrammar: XGrammarBackend,
    llguidance: LLGuidanceBackend,
    tokenizer: PreTrainedTokenizerFast,
    name: str,
) -> None:
    rng = random.Random(2)
    finished = 0
    for writer, reader in ((xgrammar, llguidance), (llguidance, xgrammar)):
        writing, reading = writer.compile(BOTH[name]), reader.compile(BOTH[name])
        for _ in range(WALKS):
            tokens = random_output(writing.matcher(), rng, limit=80)
            # Surrogates and the delete character are where the two read JSON differently.
            if tokens is None or {"\ufffd", "\x7f"} & set(str(tokenizer.decode(tokens))):
                continue
            finished += 1
            reading.matcher().advance([*tokens, EOS])
    assert finished >= 4, "too few finished for the test to say anything"
