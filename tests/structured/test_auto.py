"""The library is chosen per grammar, and named; a grammar that none serves gets one sentence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from stepweave.structured.auto_backend import AutoBackend
from stepweave.structured.backend import (
    GrammarBackend,
)
from stepweave.structured.bitmask import words
from stepweave.structured.filling import fill_batch
from stepweave.structured.grammar import GrammarError, GrammarSpec
from stepweave.structured.library_backend import BackendOptions
from stepweave.structured.llguidance_backend import LLGrammar
from stepweave.structured.refusal import Refusal
from stepweave.structured.xgrammar_backend import XGrammar

from .conftest import STOPS, VOCAB
from .walking import next_tokens


@pytest.fixture(scope="module")
def auto(tokenizer: PreTrainedTokenizerFast) -> AutoBackend:
    return AutoBackend(tokenizer, VOCAB, STOPS)


def spec(**request: Any) -> GrammarSpec:
    return GrammarSpec.from_request(request)


SEQUENCE = spec(
    structural_tag={
        "type": "structural_tag",
        "format": {
            "type": "sequence",
            "elements": [{"type": "const_string", "value": "a"}, {"type": "regex", "pattern": "b"}],
        },
    }
)
"""A structural tag that llguidance has no equal for."""

UNIQUE = spec(json={"type": "array", "items": {"type": "integer"}, "uniqueItems": True})


@pytest.mark.parametrize(
    ("asked", "kind", "note"),
    [
        (spec(json={"type": "integer"}), LLGrammar, "json: served by llguidance"),
        (spec(json_object=True), LLGrammar, "json_object: served by llguidance"),
        (spec(regex="a+"), LLGrammar, "regex: served by llguidance"),
        (spec(choice=["a", "b"]), LLGrammar, "choice: served by llguidance"),
        (spec(grammar='root ::= "a" root | "b"'), XGrammar, "grammar: served by xgrammar"),
        (
            SEQUENCE,
            XGrammar,
            "structural_tag: served by xgrammar; llguidance refuses it: llguidance has no equal "
            "for format 'sequence'; it has triggered tags around JSON Schemas only",
        ),
    ],
)
def test_a_grammar_says_who_serves_it_and_what_the_first_choice_has_against_it(
    auto: AutoBackend, asked: GrammarSpec, kind: type, note: str
) -> None:
    compiled = auto.compile(asked)
    assert isinstance(compiled, kind)
    assert compiled.notes == (note,)
    assert auto.compile(asked) is compiled, "it is kept"
    assert auto.cached(asked) is compiled
    assert next_tokens(compiled.matcher())


def test_what_every_library_refuses_for_one_reason_is_refused_for_that_reason(
    auto: AutoBackend,
) -> None:
    with pytest.raises(Refusal) as error:
        auto.compile(UNIQUE)
    assert str(error.value) == "json: at #: 'uniqueItems' cannot be enforced"


def test_a_reason_that_all_share_goes_before_one_that_only_one_has(
    auto: AutoBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(*reasons: str, cause: Any = "unenforced") -> Any:
        def make(*given: object, **options: object) -> None:
            raise Refusal(cause, reasons)

        return make

    asked = spec(regex="never")
    first, second = auto._backends["llguidance"], auto._backends["xgrammar"]
    for one, other, said in (
        (refusing("own", "shared"), refusing("other", "shared"), "shared"),
        (refusing("own"), refusing("other"), "own"),
        (refusing("its words", cause="library"), refusing("ours"), "ours"),
        (
            refusing("no equal", cause="foreign"),
            refusing("its words", cause="library"),
            "its words",
        ),
    ):
        monkeypatch.setattr(first, "make", one)
        monkeypatch.setattr(second, "make", other)
        with pytest.raises(Refusal) as error:
            auto.compile(asked)
        assert str(error.value) == said


def test_a_grammar_that_is_wrong_itself_is_not_tried_with_the_other_library(
    auto: AutoBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []
    other = auto._backends["xgrammar"]
    monkeypatch.setattr(other, "make", lambda *given, **options: tried.append("xgrammar"))
    with pytest.raises(GrammarError, match="leads nowhere"):
        auto.compile(spec(json={"$ref": "#/nowhere"}))
    assert tried == []


def test_not_strict_still_prefers_the_library_that_enforces_everything(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    loose = AutoBackend(tokenizer, VOCAB, STOPS, BackendOptions(strict=False))
    warned = loose.compile(UNIQUE)
    assert any("uniqueItems" in warning for warning in warned.warnings)
    exact = loose.compile(SEQUENCE)
    assert isinstance(exact, XGrammar)
    assert exact.warnings == ()


def test_grammars_of_both_libraries_are_kept_under_one_limit(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    asked = [spec(regex="a"), spec(grammar='root ::= "a"')]
    both = AutoBackend(tokenizer, VOCAB, STOPS)
    sizes = [
        both._backends[name].make(one, strict=True)[1]  # type: ignore[index]
        for name, one in zip(("llguidance", "xgrammar"), asked, strict=True)
    ]
    tight = AutoBackend(tokenizer, VOCAB, STOPS, BackendOptions(cache_bytes=sum(sizes) - 1))
    for each in asked:
        tight.compile(each)
    assert [tight.cached(each) is not None for each in asked] == [False, True]


def test_rows_of_both_libraries_are_filled_in_one_batch(auto: AutoBackend) -> None:
    asked = [spec(regex="[ab]+"), spec(grammar='root ::= [cd] root | "c"')] * 2
    grammars = [auto.compile(each) for each in asked]
    matchers = [grammar.matcher() for grammar in grammars]
    mask = np.full((len(asked), 1, words(VOCAB)), -1, dtype=np.int32)
    counts, failures = fill_batch(
        [(matcher, (), row) for row, matcher in enumerate(matchers)], mask
    )
    assert (counts, failures) == ([0] * 4, {})
    for row, grammar in enumerate(grammars):
        bits = np.flatnonzero(np.unpackbits(mask[row].view(np.uint8), bitorder="little"))
        assert bits.tolist() == next_tokens(grammar.matcher())


@pytest.mark.parametrize(
    ("schema", "written", "open_"),
    [
        ({"type": "object", "properties": {"a": {"type": "integer"}}}, '{"a": 1, "b": 2}', False),
        ({"type": "object", "patternProperties": {"^a": {"type": "integer"}}}, '{"b": 2}', False),
        (
            {"properties": {"a": {"type": "integer"}}, "additionalProperties": True},
            '{"b": 2}',
            True,
        ),
        ({"type": "object"}, '{"b": 2}', True),
    ],
)
def test_both_libraries_write_the_properties_that_are_named_and_no_others(
    backend: GrammarBackend,
    tokenizer: PreTrainedTokenizerFast,
    schema: dict[str, Any],
    written: str,
    open_: bool,
) -> None:
    matcher = backend.compile(spec(json=schema)).matcher()
    tokens = [*tokenizer(written)["input_ids"], STOPS[0]]
    assert all(map(matcher.accept, tokens)) is open_
