"""The grammars of one model: which backend, what its section of reasoning ends with."""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import Future
from typing import Any

from ..configs.schema import StructuredConfig
from ..structured.backend import CompiledGrammar
from ..structured.grammar import GrammarSpec
from ..structured.xgrammar_backend import XGrammarBackend


class Grammars:
    def __init__(
        self, config: StructuredConfig, tokenizer: Any, vocab_size: int, eos: Collection[int]
    ) -> None:
        self._backend = XGrammarBackend(
            tokenizer, vocab_size, eos, any_whitespace=config.any_whitespace
        )

    def compile(self, spec: GrammarSpec, reasoning: bool | None) -> Future[CompiledGrammar]:
        future: Future[CompiledGrammar] = Future()
        try:
            future.set_result(self._backend.compile(spec))
        except Exception as error:
            future.set_exception(error)
        return future

    def close(self) -> None:
        self._backend.close()
