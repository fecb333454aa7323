"""A small tokenizer with every trap in it, and a backend for a model wider than it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from stepweave.structured import xgrammar_backend
from stepweave.structured.backend import GrammarBackend
from stepweave.structured.library_backend import BackendOptions
from stepweave.structured.llguidance_backend import LLGuidanceBackend
from stepweave.structured.xgrammar_backend import XGrammarBackend

EOS, PAD, TURN = 0, 1, 2
STOPS = (EOS, TURN)
VOCAB = 333
"""Wider than the tokenizer and not a multiple of 32: ids and bits that nothing stands for."""

_TEXTS = [
    '{"name": "ann", "age": 12, "ok": true, "none": null}',
    "[1, 2, 30]",
    "hello world yes no maybe",
    "überall 😀 naïve",
] * 20


def wrapped(model: Tokenizer, **special: str) -> PreTrainedTokenizerFast:
    """As a Hugging Face tokenizer whose end token is "<eos>"."""
    wrap: Any = PreTrainedTokenizerFast  # its constructor has no types
    result: PreTrainedTokenizerFast = wrap(tokenizer_object=model, eos_token="<eos>", **special)
    return result


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE over 300 ids; three control tokens, two of which end an output."""
    model = Tokenizer(models.BPE())
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<eos>", "<pad>", "<turn>"],
        show_progress=False,
    )
    model.train_from_iterator(_TEXTS, trainer)
    return wrapped(model, pad_token="<pad>")


def make_backend(
    name: str, tokenizer: PreTrainedTokenizerFast, vocab: int = VOCAB, **options: Any
) -> GrammarBackend:
    """One of the two backends; with them every promise of the interface is tried."""
    kind: Any = {"xgrammar": XGrammarBackend, "llguidance": LLGuidanceBackend}[name]
    stops = options.pop("stops", STOPS)
    made: GrammarBackend = kind(tokenizer, vocab, stops, BackendOptions(**options))
    return made


BACKENDS = ("xgrammar", "llguidance")


@pytest.fixture(scope="session", autouse=True)
def fills_together() -> Iterator[None]:
    """Batches are filled by the libraries' batched calls, however few rows they have."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(xgrammar_backend, "BATCH_FROM", 1)
        yield


@pytest.fixture(scope="session")
def xgrammar(tokenizer: PreTrainedTokenizerFast) -> XGrammarBackend:
    return XGrammarBackend(tokenizer, VOCAB, STOPS, BackendOptions(compile_threads=1))


@pytest.fixture(scope="session")
def llguidance(tokenizer: PreTrainedTokenizerFast) -> LLGuidanceBackend:
    return LLGuidanceBackend(tokenizer, VOCAB, STOPS, BackendOptions(fill_threads=2))


@pytest.fixture(scope="session", params=BACKENDS)
def backend(
    request: pytest.FixtureRequest, xgrammar: XGrammarBackend, llguidance: LLGuidanceBackend
) -> GrammarBackend:
    return xgrammar if request.param == "xgrammar" else llguidance
