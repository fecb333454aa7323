"""Grammars that cannot be compiled are refused; they never crash and never compile to nothing."""

from __future__ import annotations

import pytest
from transformers import PreTrainedTokenizerFast

from stepweave.structured.backend import GrammarBackend
from stepweave.structured.grammar import GrammarError, GrammarSpec

from .conftest import BACKENDS, VOCAB, make_backend


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("json", "false"),
        ("json", '{"enum": []}'),
        ("json", '{"type": "integer", "minimum": 5, "maximum": 3}'),
        ("json", '{"type": "string", "minLength": 5, "maxLength": 2}'),
        ("json", '{"type": "foo"}'),
        ("json", '{"$ref": "#/$defs/x"}'),
        ("json", '{"$ref": "#"}'),
        ("json", '{"type": "string", "pattern": "("}'),
        ("json", '{"type": "object", "properties": {"a": false}, "required": ["a"]}'),
        ("regex", "("),
        ("regex", "["),
        ("regex", "a{3,1}"),
        ("regex", "[z-a]"),
        ("regex", "\\"),
        ("regex", "*"),
        ("regex", "(?=a)b"),
        ("regex", "[^\\s\\S]"),
        ("grammar", 'foo ::= "a"'),
        ("grammar", "root ::= x"),
        ("grammar", "root ::= ("),
        ("grammar", "root ::= root"),
    ],
)
def test_what_cannot_be_satisfied_or_read_is_refused_at_compile_time(
    backend: GrammarBackend, kind: str, source: str
) -> None:
    with pytest.raises(GrammarError) as refusal:
        backend.compile(GrammarSpec(kind, source))  # type: ignore[arg-type]
    message = str(refusal.value)
    assert message.startswith(f"{kind}: ")
    assert ".cc:" not in message, "file names of the library help nobody"


def test_the_deepest_schema_that_is_allowed_compiles_quickly(backend: GrammarBackend) -> None:
    schema: dict[str, object] = {"type": "string"}
    for _ in range(31):  # 31 objects and their `properties`, and the string: 63 levels
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    matcher = backend.compile(GrammarSpec.from_request({"json": schema})).matcher()
    assert not matcher.terminated


def test_equal_specs_share_one_compilation_and_no_state(backend: GrammarBackend) -> None:
    spec = GrammarSpec("regex", "hello")
    first, second = backend.compile(spec).matcher(), backend.compile(spec).matcher()
    token = next(t for t in range(VOCAB) if first.accept(t))
    assert second.accept(token), "the second matcher did not move with the first"


@pytest.mark.parametrize("name", BACKENDS)
def test_a_backend_without_a_usable_end_token_is_refused(
    name: str,
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    with pytest.raises(ValueError, match="eos_token_ids is empty"):
        make_backend(name, tokenizer, stops=[])
    with pytest.raises(ValueError, match="outside the vocabulary"):
        make_backend(name, tokenizer, stops=[VOCAB])


@pytest.mark.parametrize("name", BACKENDS)
def test_a_model_with_fewer_tokens_than_its_tokenizer_never_allows_the_missing_ones(
    name: str,
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    backend = make_backend(name, tokenizer, 280, stops=[0])
    matcher = backend.compile(GrammarSpec("grammar", "root ::= [\\x00-\\U0010FFFF]*")).matcher()
    assert not any(matcher.accept(token) for token in range(280, len(tokenizer)))
    assert matcher.accept(279)
