"""The characters that JSON escapes are in a string where its pattern has them, and only there."""

from __future__ import annotations

import json
import re

import pytest
from transformers import PreTrainedTokenizerFast

from stepweave.structured.grammar import GrammarSpec
from stepweave.structured.llguidance_backend import LLGuidanceBackend

from .test_walks import spelled, takes, those_taken

CHARACTERS = [*map(chr, range(0x100)), "\u2028", "\ufeff", "😀"]


def forms(character: str) -> set[str]:
    """The ways to write a character in JSON."""
    found = {json.dumps(character), json.dumps(character, ensure_ascii=False)}
    if ord(character) < 0x10000:
        found |= {f'"\\u{ord(character):04x}"', f'"\\u{ord(character):04X}"'}
    return found


@pytest.mark.parametrize(
    "pattern",
    [
        '^[^"]*$',
        r"^[^\\]*$",
        r'^[^"\\]$',
        "^[^ -~]$",
        '^[^a-z"]*$',
        r"^[\x00-!]$",
        r'^([^"]|\x00)$',
    ],
)
def test_a_class_without_the_quote_or_the_backslash_lets_neither_in(
    llguidance: LLGuidanceBackend, tokenizer: PreTrainedTokenizerFast, pattern: str
) -> None:
    letters = {text: index for index, text in spelled(tokenizer).items() if len(text) == 1}
    schema = {"type": "string", "pattern": pattern}
    compiled = llguidance.compile(GrammarSpec.from_request({"json": schema}))
    for character in CHARACTERS[1:]:  # NUL is left out of such a class
        taken = any(takes(compiled, letters, form) for form in forms(character))
        assert taken == bool(re.fullmatch(pattern, character)), ascii(character)


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "string", "not": {"const": '"'}}, ['"a"', '"\\\\"'], ['"\\""']),
        ({"type": "string", "not": {"enum": ["\\"]}}, ['"a"', '"\\""'], ['"\\\\"']),
        ({"allOf": [{"pattern": '^[^"]+$'}, {"pattern": "b"}]}, ['"ab"'], ['"b\\""']),
        (
            {"type": "object", "patternProperties": {'^[^"]+$': {"type": "integer"}}},
            ['{"a": 1}', '{"\\\\": 1}'],
            ['{"\\"": 1}'],
        ),
        (
            {"type": "object", "propertyNames": {"pattern": r"^[^\\]+$"}},
            ['{"a": 1}', '{"\\"": 1}'],
            ['{"\\\\": 1}'],
        ),
    ],
)
def test_nor_does_any_other_keyword(
    llguidance: LLGuidanceBackend,
    tokenizer: PreTrainedTokenizerFast,
    schema: object,
    good: list[str],
    bad: list[str],
) -> None:
    compiled = llguidance.compile(GrammarSpec.from_request({"json": schema}))
    assert those_taken(compiled, tokenizer, good + bad) == good
