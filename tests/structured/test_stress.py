"""Schemas that have brought servers down: each compiles, is refused or is stopped, none crashes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from stepweave.structured.backend import GrammarBackend
from stepweave.structured.grammar import GrammarError, GrammarSpec
from stepweave.structured.library_backend import BackendOptions
from stepweave.structured.llguidance_backend import LLGuidanceBackend
from stepweave.structured.xgrammar_backend import XGrammarBackend

from .conftest import STOPS, VOCAB
from .walking import next_tokens

LIMIT_S = 1.0


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def schema(value: object) -> GrammarSpec:
    return GrammarSpec.from_request({"json": value})


STRESS = {
    **{f"length_{n}": schema({"type": "string", "maxLength": n}) for n in (8, 32, 256, 2048)},
    "enum_4000": schema({"enum": [f"value number {index}" for index in range(4000)]}),
    "choice_4000": GrammarSpec.from_request({"choice": [f"{index:05}" for index in range(4000)]}),
    "nested_30": schema(nested(30)),
    "optional_1000": schema(
        {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(1000)}}
    ),
    "pattern_200": schema({"type": "string", "pattern": "^([a-z]{1,200}-){1,200}$"}),
    "regex_200": GrammarSpec("regex", "((a|b){1,200}c?){1,200}"),
    "left_recursion": GrammarSpec("grammar", 'root ::= root "a" | "b" | root root'),
}


@pytest.fixture(scope="module", params=["xgrammar", "llguidance"])
def guarded(
    request: pytest.FixtureRequest, tokenizer: PreTrainedTokenizerFast
) -> Iterator[XGrammarBackend | LLGuidanceBackend]:
    """A backend as it is set up where requests come from strangers."""
    kind = XGrammarBackend if request.param == "xgrammar" else LLGuidanceBackend
    backend = kind(tokenizer, VOCAB, STOPS, BackendOptions(compile_limit_s=LIMIT_S))
    yield backend
    backend.close()


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", STRESS)
def test_it_compiles_is_refused_or_is_stopped(guarded: GrammarBackend, name: str) -> None:
    try:
        matcher = guarded.compile(STRESS[name]).matcher()
    except GrammarError:
        return
    rng = random.Random(0)
    for _ in range(6):
        tokens = next_tokens(matcher)
        assert tokens, "no mask is ever empty"
        assert matcher.accept(rng.choice(tokens))
        if matcher.terminated:
            break
    matcher.rollback(1)
    assert not matcher.failed


def test_a_request_after_all_of_these_is_served(guarded: GrammarBackend) -> None:
    matcher = guarded.compile(schema({"type": "null"})).matcher()
    assert not matcher.terminated
