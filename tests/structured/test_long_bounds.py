"""Strings with long bounds: every token of a mask may really come, and JSON stays JSON."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from stepweave.structured import xgrammar_compile
from stepweave.structured.bitmask import words
from stepweave.structured.filling import fill_batch
from stepweave.structured.grammar import GrammarError, GrammarSpec
from stepweave.structured.library_backend import BackendOptions
from stepweave.structured.xgrammar_backend import XGrammarBackend

EOS = 0
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "string", "maxLength": 300}, "b": {"type": "string"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


@cache
def tokenizer_of_code() -> PreTrainedTokenizerFast:
    """Tokens as code has them: quotes in the middle, long runs of one sign, line ends."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=3000,
        special_tokens=["<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    sources = sorted(Path(json.__file__).parent.parent.glob("*.py"))[:60]
    tokenizer.train([str(path) for path in sources], trainer)
    wrap: Any = PreTrainedTokenizerFast
    wrapped: PreTrainedTokenizerFast = wrap(tokenizer_object=tokenizer, eos_token="<eos>")
    return wrapped


def backend(**options: bool) -> XGrammarBackend:
    tokenizer = tokenizer_of_code()
    return XGrammarBackend(tokenizer, len(tokenizer), (EOS,), BackendOptions(**options))


def refused(backend: XGrammarBackend, walks: int) -> int:
    """How many tokens of masks along random walks the matcher refuses."""
    vocab = backend.vocab_size
    compiled = backend.compile(GrammarSpec.from_request({"json": SCHEMA}))
    draw, wrong = random.Random(0), 0
    for _ in range(walks):
        matcher = compiled.matcher()
        for _ in range(14):
            row = np.zeros((1, words(vocab)), np.int32)
            matcher.fill_window((), row)
            allowed = [token for token in range(vocab) if row[0, token // 32] >> (token % 32) & 1]
            for token in draw.sample(allowed, min(50, len(allowed))):
                if matcher.accept(token):
                    matcher.rollback(1)
                else:
                    wrong += 1
            if not matcher.accept(draw.choice(allowed)):
                break
    return wrong


def test_every_token_of_a_mask_is_one_that_the_matcher_takes() -> None:
    assert refused(backend(), walks=6) == 0


def test_the_library_needs_this_care(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xgrammar_compile, "LONGEST_PATTERN", 10_000)
    assert refused(backend(), walks=6) > 0, "mended in the library: patterns will do for all bounds"


def test_control_characters_stay_out_of_long_strings_in_batches_too() -> None:
    ours = backend()
    compiled = ours.compile(GrammarSpec.from_request({"json": SCHEMA}))
    tokenizer = tokenizer_of_code()
    controls = [t for t in range(1, 300) if any(c < " " for c in tokenizer.decode([t]))]
    assert len(controls) > 20
    bits = np.zeros((12, 2, words(ours.vocab_size)), np.int32)
    matchers = [compiled.matcher() for _ in range(12)]
    for matcher in matchers:
        matcher.advance(tokenizer('{"a": "x')["input_ids"])
    counts, failures = fill_batch(
        [(matcher, [controls[0]], index) for index, matcher in enumerate(matchers)], bits
    )
    assert (counts, failures) == ([0] * 12, {})
    for token in controls:
        assert not (bits[:, 0, token // 32] >> (token % 32) & 1).any()
        assert not matchers[0].accept(token)
    assert all(matchers[0].accept(token) for token in tokenizer('y", "b": "z"}')["input_ids"])
    jsonschema.validate({"a": "xy", "b": "z"}, SCHEMA)


def test_where_they_cannot_be_kept_out_it_is_refused_or_said() -> None:
    spec = GrammarSpec.from_request({"json": SCHEMA})
    with pytest.raises(GrammarError, match="control characters"):
        backend(any_whitespace=True).compile(spec)
    lenient = backend(any_whitespace=True, strict=False).compile(spec)
    assert any("control characters" in warning for warning in lenient.warnings)
