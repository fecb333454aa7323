"""No mask leads to the bytes of a surrogate, which are no UTF-8, however tokens split them."""

from __future__ import annotations

import random

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from stepweave.structured.bitmask import words
from stepweave.structured.filling import fill_batch
from stepweave.structured.grammar import GrammarSpec
from stepweave.structured.surrogates import Surrogates
from stepweave.structured.xgrammar_backend import XGrammarBackend

from .conftest import VOCAB
from .test_walks import spelled
from .walking import next_tokens

ANY = GrammarSpec("regex", "[^a]*")
STRING = GrammarSpec.from_request({"json": {"type": "string"}})
EBNF = GrammarSpec("grammar", "root ::= [^a]*")


@pytest.mark.parametrize("spec", [ANY, STRING, EBNF], ids=lambda spec: spec.kind)
def test_the_second_byte_of_a_surrogate_is_never_allowed(
    xgrammar: XGrammarBackend, tokenizer: PreTrainedTokenizerFast, spec: GrammarSpec
) -> None:
    tokens = {text: index for index, text in spelled(tokenizer).items()}
    matcher = xgrammar.compile(spec).matcher()
    matcher.advance([tokens[b'"'], tokens[b"\xed"]])
    second = {byte for byte in range(256) if tokens[bytes([byte])] in next_tokens(matcher)}
    assert second == set(range(0x80, 0xA0))
    assert not matcher.accept(tokens[b"\xa0"])
    assert matcher.accept(tokens[b"\x95"])
    assert tokens[b"\x9c"] in next_tokens(matcher), "U+D55C is a letter"


def test_windows_of_drafts_end_before_a_surrogate(
    xgrammar: XGrammarBackend, tokenizer: PreTrainedTokenizerFast
) -> None:
    tokens = {text: index for index, text in spelled(tokenizer).items()}
    drafts = [tokens[b'"'], tokens[b"\xed"], tokens[b"\xa0"], tokens[b"\x80"]]
    compiled = xgrammar.compile(STRING)
    bits = np.zeros((9, 5, words(VOCAB)), np.int32)
    rows = [(compiled.matcher(), drafts, index) for index in range(9)]
    counts, failures = fill_batch(rows, bits)
    assert (counts, failures) == ([2] * 9, {})
    alone = np.zeros((5, words(VOCAB)), np.int32)
    assert compiled.matcher().fill_window(drafts, alone) == 2
    assert (bits == alone).all()


def test_tokens_with_surrogates_inside_are_found() -> None:
    draw = random.Random(1)
    tokens = [
        bytes(draw.choices([0x61, 0xED, 0x9F, 0xA0, 0xBF, 0x80], k=draw.randrange(4)))
        for _ in range(96)
    ]
    rules = Surrogates(tokens)
    for before in (None, *range(96)):
        start = b"" if before is None else tokens[before][-1:]
        row = np.full(3, -1, np.int32)
        rules.narrow(row, before)
        for index, token in enumerate(tokens):
            pairs = list(zip(start + token, (start + token)[1:], strict=False))
            wrong = any(first == 0xED and 0xA0 <= second <= 0xBF for first, second in pairs)
            assert bool(row[index // 32] >> (index % 32) & 1) is not wrong
            assert rules.allow(index, before) is not wrong
