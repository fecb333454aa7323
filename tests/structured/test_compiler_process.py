"""Compilation in a process of its own: the same grammars, and an end to the ones that never end."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from stepweave.structured.bitmask import Words, words
from stepweave.structured.grammar import GrammarError, GrammarSpec
from stepweave.structured.llguidance_backend import LLGuidanceBackend
from stepweave.structured.xgrammar_backend import XGrammarBackend

from .conftest import STOPS, VOCAB

ENDLESS = GrammarSpec.from_request(
    {
        "json": {
            "type": "object",
            "properties": {f"p{index}": {"type": "integer"} for index in range(4000)},
        }
    }
)
"""4000 optional properties: all pairs of them are compiled."""


@pytest.fixture(scope="module")
def guarded(tokenizer: PreTrainedTokenizerFast) -> Iterator[XGrammarBackend]:
    backend = XGrammarBackend(tokenizer, VOCAB, STOPS, compile_threads=1, compile_limit_s=1.0)
    yield backend
    backend.close()


def first_mask(backend: XGrammarBackend, spec: GrammarSpec) -> Words:
    row = np.zeros((1, words(VOCAB)), dtype=np.int32)
    backend.compile(spec).matcher().fill_window((), row)
    return row


def test_a_compilation_that_takes_too_long_is_stopped_and_the_next_one_works(
    guarded: XGrammarBackend, xgrammar: XGrammarBackend
) -> None:
    plain = GrammarSpec.from_request({"choice": ["é\n", "yes"]})
    np.testing.assert_array_equal(first_mask(guarded, plain), first_mask(xgrammar, plain))
    start = time.monotonic()
    with pytest.raises(GrammarError, match="json: compiling took longer than 1 s"):
        guarded.compile(ENDLESS)
    assert time.monotonic() - start < 5
    for spec in (GrammarSpec("json", '{"type":"string"}'), GrammarSpec("json_object", "")):
        np.testing.assert_array_equal(first_mask(guarded, spec), first_mask(xgrammar, spec))


def test_a_refusal_reads_the_same_as_without_a_process(
    guarded: XGrammarBackend, xgrammar: XGrammarBackend
) -> None:
    def refusal(by: XGrammarBackend) -> str:
        with pytest.raises(GrammarError) as error:
            by.compile(GrammarSpec("regex", "a("))
        return str(error.value)

    assert refusal(guarded) == refusal(xgrammar)


def test_a_process_that_dies_fails_one_compilation_only(guarded: XGrammarBackend) -> None:
    guarded.compile(GrammarSpec("regex", "a"))
    child = child_of(guarded)
    child.kill()
    child.wait()
    guarded.compile(GrammarSpec("regex", "b"))


def child_of(backend: XGrammarBackend | LLGuidanceBackend) -> subprocess.Popen[bytes]:
    assert backend._processes is not None
    child = backend._processes._all[0]._process
    assert child is not None, "not started"
    return child


def test_what_is_cached_needs_no_process(guarded: XGrammarBackend) -> None:
    spec = GrammarSpec("regex", "hello")
    first = guarded.compile(spec)
    guarded.close()
    assert guarded.compile(spec).handle is first.handle
