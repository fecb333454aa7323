"""Whatever a grammar lets be written is what its schema or regular expression says.

Random walks along the masks make texts, byte by byte where the vocabulary has no token; texts are
then changed a little, and what the grammar still takes is asked for as well. The judges share
nothing with the code under test: `jsonschema`, and Python's `re` and its calendar.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from functools import cache
from ipaddress import IPv4Address, IPv6Address
from typing import Any
from uuid import UUID

import jsonschema
import pytest
from transformers import PreTrainedTokenizerFast

from stepweave.structured.backend import CompiledGrammar
from stepweave.structured.grammar import GrammarError, GrammarSpec
from stepweave.structured.xgrammar_backend import XGrammarBackend

from .conftest import BACKENDS, EOS, STOPS, VOCAB, make_backend
from .corpus import PATTERNS, SCHEMAS
from .walking import random_output

_JUDGE = jsonschema.FormatChecker(formats=())
for _name, _read in {
    "date": date.fromisoformat,
    "ipv4": IPv4Address,
    "ipv6": IPv6Address,
    "uuid": UUID,
    "date-time": lambda text: date.fromisoformat(text[:10]),
}.items():
    _JUDGE.checks(_name, raises=ValueError)(lambda text, read=_read: bool(read(text)) or True)


def found(validator: Any, pattern: str, text: object, schema: Any) -> Iterator[Any]:
    """`pattern` with ASCII classes, as ECMA-262 has them."""
    if isinstance(text, str) and not re.search(pattern, text, re.ASCII):
        yield jsonschema.ValidationError(f"{text!r} does not match {pattern!r}")


@cache
def judge_class(draft: Any) -> Any:
    return jsonschema.validators.extend(draft, {"pattern": found})


def judge(schema: dict[str, Any]) -> Any:
    """By the draft in which the schema's keywords mean what they are meant to."""
    old = isinstance(schema.get("items"), list) or schema.get("exclusiveMinimum") is True
    draft = jsonschema.Draft4Validator if old else jsonschema.Draft202012Validator
    return judge_class(draft)(schema, format_checker=_JUDGE)


def spelled(tokenizer: PreTrainedTokenizerFast) -> dict[int, bytes]:
    """The bytes of each token of a byte-level vocabulary."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    table: Any = bytes_to_unicode  # untyped
    byte_of = {text: byte for byte, text in table().items()}
    return {
        index: bytes(byte_of[each] for each in text)
        for text, index in tokenizer.get_vocab().items()
        if index not in tokenizer.all_special_ids and text != "<turn>"
    }


def takes(compiled: CompiledGrammar, letters: dict[bytes, int], text: str) -> bool:
    """Whether a text is one of the grammar, byte by byte."""
    matcher = compiled.matcher()
    tokens = [letters[bytes([byte])] for byte in text.encode()]
    return all(matcher.accept(token) for token in [*tokens, EOS])


def those_taken(
    compiled: CompiledGrammar, tokenizer: PreTrainedTokenizerFast, some: list[str]
) -> list[str]:
    """Of some texts those of the grammar."""
    letters = {text: index for index, text in spelled(tokenizer).items() if len(text) == 1}
    return [text for text in some if takes(compiled, letters, text)]


def changed(value: object, draw: random.Random, names: list[str]) -> object:
    """A JSON value with one thing in it changed."""
    if isinstance(value, dict | list) and value and draw.random() < 0.6:
        key: Any = draw.choice(list(value) if isinstance(value, dict) else range(len(value)))
        copy: Any = dict(value) if isinstance(value, dict) else list(value)
        copy[key] = changed(copy[key], draw, names)
        return copy
    if isinstance(value, dict):
        rest = dict(value)
        if rest and draw.random() < 0.5:
            rest.pop(draw.choice(list(rest)))
        else:
            rest[draw.choice(names)] = draw.choice([1, "x", None, True, [], {}])
        return rest
    if isinstance(value, list):
        return draw.choice([[*value, 1], [*value, *value], value[:-1], [*value, None], value[::-1]])
    if isinstance(value, str):
        at = draw.randrange(len(value) + 1)
        return draw.choice(
            [value + "a", value[:-1], value[1:], value * 2, value[:at] + "-0" + value[at:], 7]
        )
    if isinstance(value, bool) or value is None:
        return draw.choice([True, False, None, 0, "a", [], {}])
    assert isinstance(value, int | float)
    return draw.choice([value + 1, value - 1, -value, value * 10, value + 0.5, 0, str(value)])


def texts(
    compiled: CompiledGrammar, tokens: dict[int, bytes], draw: random.Random, walks: int
) -> Iterator[bytes]:
    for _ in range(walks):
        taken = random_output(compiled.matcher(), draw, limit=90)
        if taken is not None:
            yield b"".join(tokens[token] for token in taken)


def names_in(schema: dict[str, Any]) -> list[str]:
    return [*schema.get("properties", {}), *schema.get("required", []), "a", "x", "x-y", "zz"]


def walk_schemas(name: str, tokenizer: PreTrainedTokenizerFast, indices: list[int]) -> int:
    """Walk under the schemas of these indices; how many texts were judged."""
    backend, tokens = make_backend(name, tokenizer), spelled(tokenizer)
    letters = {text: index for index, text in tokens.items() if len(text) == 1}
    judged = 0
    for index in indices:
        schema = SCHEMAS[index]
        draw = random.Random(index)
        try:
            compiled = backend.compile(GrammarSpec.from_request({"json": schema}))
        except GrammarError:
            continue  # which are refused, and with which words, is for other tests
        validator = judge(schema)
        for text in texts(compiled, tokens, draw, 4):
            value = json.loads(text.decode())
            validator.validate(value)
            judged += 1
            for _ in range(8):
                other = changed(value, draw, names_in(schema))
                if takes(compiled, letters, json.dumps(other, ensure_ascii=False)):
                    validator.validate(other)
                    judged += 1
    return judged


def sample(size: int, of: int, seed: int) -> list[int]:
    return sorted(random.Random(seed).sample(range(of), size))


@pytest.mark.parametrize("name", BACKENDS)
def test_texts_under_a_sample_of_schemas_are_valid(
    name: str, tokenizer: PreTrainedTokenizerFast
) -> None:
    assert walk_schemas(name, tokenizer, sample(60, len(SCHEMAS), 2)) > 200


@pytest.mark.nightly
@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("start", range(0, len(SCHEMAS), 40))
def test_texts_under_every_schema_are_valid(
    name: str, start: int, tokenizer: PreTrainedTokenizerFast
) -> None:
    walk_schemas(name, tokenizer, list(range(len(SCHEMAS)))[start : start + 40])


def walk_patterns(name: str, tokenizer: PreTrainedTokenizerFast, patterns: list[str]) -> int:
    """Walk under regular expressions alone; how many texts were judged."""
    backend, tokens = make_backend(name, tokenizer), spelled(tokenizer)
    judged = 0
    for index, pattern in enumerate(patterns):
        try:
            compiled = backend.compile(GrammarSpec("regex", pattern))
        except GrammarError:
            continue
        expected = re.compile(pattern, re.ASCII)
        for text in texts(compiled, tokens, random.Random(index), 5):
            assert expected.fullmatch(text.decode()), (pattern, text)
            judged += 1
    return judged


@pytest.mark.parametrize("name", BACKENDS)
def test_texts_under_regular_expressions_match_them(
    name: str, tokenizer: PreTrainedTokenizerFast
) -> None:
    assert walk_patterns(name, tokenizer, PATTERNS) > 200


def test_most_of_the_corpus_is_served_by_one_library_or_the_other(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    backends = [make_backend(name, tokenizer) for name in BACKENDS]
    served = 0
    indices = sample(120, len(SCHEMAS), 5)
    for index in indices:
        for backend in backends:
            try:
                backend.compile(GrammarSpec.from_request({"json": SCHEMAS[index]}))
            except GrammarError:
                continue
            served += 1
            break
    assert served > 0.8 * len(indices)


@pytest.mark.parametrize(
    ("pattern", "in_json"),
    [
        (r"^v[0-9](-[a-z]{2,4})?$", True),
        (r"^(x[0-9]{2,3})?y$", True),
        (r"^.{1,200}$", True),
        (r"a$b", True),
        (r"a$b", False),
        (r"^[\^a]$", False),
    ],
)
def test_the_library_needs_this_care(
    tokenizer: PreTrainedTokenizerFast, pattern: str, in_json: bool
) -> None:
    """As a user writes them, without a rewriting. Should this fail, XGrammar reads them right."""
    backend = XGrammarBackend(tokenizer, VOCAB, STOPS)
    compiler, schema = backend._compiler, json.dumps({"type": "string", "pattern": pattern})
    handle = compiler.compile_json_schema(schema) if in_json else compiler.compile_regex(pattern)
    raw = replace(backend.compile(GrammarSpec("regex", "a")), handle=handle)
    walks = list(texts(raw, spelled(tokenizer), random.Random(1), 30))
    assert walks, "no walk finished"
    assert not all(right(pattern, text, in_json) for text in walks)


def right(pattern: str, text: bytes, in_json: bool) -> bool:
    """Whether a text is what a pattern says, as JSON or as a whole."""
    try:
        if in_json:
            return re.search(pattern, json.loads(text.decode())) is not None
        return re.fullmatch(pattern, text.decode()) is not None
    except ValueError:
        return False
