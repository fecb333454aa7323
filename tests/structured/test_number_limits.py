"""Numbers that a library reads otherwise: another serves them, or they are refused by name."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from transformers import PreTrainedTokenizerFast

from stepweave.structured.auto_backend import AutoBackend
from stepweave.structured.backend import GrammarBackend
from stepweave.structured.grammar import GrammarError, GrammarSpec
from stepweave.structured.number_limits import decimals, is_double, next_to_bound, numbers_in

from .conftest import EOS, STOPS, VOCAB, make_backend

BETWEEN = {"minimum": 9007199254740993, "maximum": 9007199254740999}


@pytest.fixture(scope="module")
def auto(tokenizer: PreTrainedTokenizerFast) -> AutoBackend:
    return AutoBackend(tokenizer, VOCAB, STOPS)


def accepts(
    backend: GrammarBackend, tokenizer: PreTrainedTokenizerFast, schema: object, text: str
) -> bool:
    matcher = backend.compile(GrammarSpec.from_request({"json": schema})).matcher()
    return all(matcher.accept(token) for token in [*tokenizer.encode(text), EOS])


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"const": 1234567890123456789}, "1234567890123456789", "1234567890123456768"),
        ({"enum": [[1234567890123456789]]}, "[1234567890123456789]", "[1234567890123456768]"),
        ({"const": 123456789.12345679}, "123456789.12345679", "123456789.1234568"),
        ({"type": "integer", **BETWEEN}, "9007199254740993", "9007199254740992"),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}, "0.5", "0"),
        ({"type": "number", "exclusiveMinimum": 1, "exclusiveMaximum": 1.5}, "1.25", "1"),
        ({"type": "number", "minimum": -0.5, "exclusiveMaximum": 0}, "-0.5", "-0"),
        ({"type": "number", "minimum": 1e-7, "maximum": 2e-7}, "0.0000001", ""),
    ],
    ids=str,
)
def test_numbers_are_those_of_the_schema(
    auto: AutoBackend, tokenizer: PreTrainedTokenizerFast, schema: Any, good: str, bad: str
) -> None:
    valid = jsonschema.Draft202012Validator(schema).is_valid
    assert valid(json.loads(good))
    assert not bad or not valid(json.loads(bad))
    assert accepts(auto, tokenizer, schema, good)
    assert not accepts(auto, tokenizer, schema, bad)


@pytest.mark.parametrize(
    ("library", "schema", "said"),
    [
        ("xgrammar", {"const": 12345678901234567890123}, "the number 12345678901234567890123 has"),
        ("xgrammar", {"type": "number", "maximum": 2.0**60}, "'maximum' has more digits"),
        ("xgrammar", {"type": "number", "minimum": 1e-7}, "'minimum' has more digits"),
        ("llguidance", {"enum": [{"a": [2**53 + 1]}]}, "the number 9007199254740993 has"),
        ("llguidance", {"type": "integer", "minimum": 2**53 + 1}, "'minimum' has more digits"),
        (
            "llguidance",
            {"type": "number", "exclusiveMaximum": 3, "minimum": 2.5},
            "'exclusiveMaximum' cannot be enforced: the other bound is less than 1 away",
        ),
    ],
)
def test_a_library_that_reads_one_otherwise_refuses_it_by_name(
    tokenizer: PreTrainedTokenizerFast, library: str, schema: Any, said: str
) -> None:
    backend = make_backend(library, tokenizer)
    with pytest.raises(GrammarError, match=said):
        backend.compile(GrammarSpec.from_request({"json": schema}))


@pytest.mark.parametrize("library", ["xgrammar", "llguidance"])
@pytest.mark.parametrize(
    "bounds",
    [
        {"minimum": 0, "maximum": 2**64 - 1},
        {"minimum": -(2**63), "maximum": 2**63 - 1},
        {"minimum": 0, "maximum": 2**63},
    ],
)
def test_bounds_that_are_not_enforced_are_not_in_the_way(
    tokenizer: PreTrainedTokenizerFast, library: str, bounds: Any
) -> None:
    backend = make_backend(library, tokenizer, VOCAB, strict=False)
    schema = {"type": "integer", **bounds}
    compiled = backend.compile(GrammarSpec.from_request({"json": schema}))
    assert all("has more" in warning for warning in compiled.warnings)
    assert accepts(backend, tokenizer, schema, "12345")


def test_digits_of_numbers() -> None:
    assert [is_double(each) for each in (2**53, 2**53 + 1, 0.1, 1e300)] == [True, False, True, True]
    assert not is_double(123456789.12345679)
    assert [decimals(each) for each in (3, 100.0, 0.25, 1e-7)] == [0, 0, 2, 7]
    assert list(numbers_in([1, {"a": [2.5, True, "3"]}, None])) == [1, 2.5]


def test_a_whole_bound_beside_another_in_the_same_unit() -> None:
    assert next_to_bound({"exclusiveMinimum": 0, "maximum": 0.5}) == "exclusiveMinimum"
    assert next_to_bound({"minimum": -0.5, "exclusiveMaximum": 0}) == "exclusiveMaximum"
    assert next_to_bound({"exclusiveMinimum": 0, "exclusiveMaximum": 1}) is None
    assert next_to_bound({"exclusiveMinimum": 0.25, "maximum": 0.5}) is None
    assert next_to_bound({"exclusiveMinimum": 0}) is None
