"""The grammars of one engine: which backend compiles them, and what ends a reasoning section."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from ..nodes.bitmask import GrammarOptions
from ..requests.request import RequestError
from ..structured.auto_backend import ORDER, AutoBackend
from ..structured.backend import CompiledGrammar, GrammarBackend
from ..structured.grammar import GrammarError, GrammarSpec
from ..structured.library_backend import BackendOptions
from ..structured.llguidance_backend import LLGuidanceBackend
from ..structured.reasoning import check_marker, with_reasoning
from ..structured.refusal import Cause, Refusal
from ..structured.service import GrammarService, OnCompiled
from ..structured.xgrammar_backend import XGrammarBackend

Backend = AutoBackend | XGrammarBackend | LLGuidanceBackend
BACKENDS: Mapping[str, type[Backend]] = {
    "auto": AutoBackend,
    "xgrammar": XGrammarBackend,
    "llguidance": LLGuidanceBackend,
}

ADVICE: Final[dict[Cause, str]] = {
    "unenforced": "`nodes.bitmask.strict: false` in the pipeline goes on without, with a warning",
    "limit": "`nodes.bitmask.compile_limit_s` is the limit on its time",
}
"""What a pipeline can do about a refusal, by what it comes from."""


@dataclass(frozen=True)
class Advising:
    """A backend whose refusals end with the key of the pipeline that helps, where there is one.

    They are a `GrammarError`, as every backend raises.
    """

    inner: GrammarBackend
    name: str
    """The pipeline's `nodes.bitmask.backend`."""

    @property
    def vocab_size(self) -> int:
        return self.inner.vocab_size

    def cached(self, spec: GrammarSpec) -> CompiledGrammar | None:
        return self.inner.cached(spec)

    def compile(self, spec: GrammarSpec) -> CompiledGrammar:
        try:
            return self.inner.compile(spec)
        except Refusal as refusal:
            advice = self._advice(refusal, spec)
            raise GrammarError("; ".join([str(refusal), *advice])) from refusal

    def _advice(self, refusal: Refusal, spec: GrammarSpec) -> Iterator[str]:
        if self.name != "auto" and refusal.cause != "source":
            others = " and ".join(library for library in ORDER if library != self.name)
            yield f"`nodes.bitmask.backend: auto` tries {others} as well"
        # Of a schema a keyword can be left out; of an expression libraries refuse what we do.
        if refusal.cause in ADVICE and (refusal.cause, spec.kind) != ("unenforced", "regex"):
            yield ADVICE[refusal.cause]


class Grammars:
    """Compiles what requests ask for, beside the engine's loop.

    Raises `GrammarError` where the backend's library is not installed, or the marker that ends a
    section of reasoning cannot be one.
    """

    def __init__(
        self, config: GrammarOptions, tokenizer: Any, vocab_size: int, eos: Collection[int]
    ) -> None:
        self._backend = BACKENDS[config.backend](
            tokenizer,
            vocab_size,
            eos,
            BackendOptions(
                any_whitespace=config.any_whitespace,
                cache_bytes=config.cache_bytes,
                compile_limit_s=config.compile_limit_s,
                compile_processes=config.compile_workers,
                fill_threads=config.fill_threads,
                strict=config.strict,
            ),
        )
        self._service = GrammarService(
            Advising(self._backend, config.backend), config.compile_workers
        )
        self._end: tuple[int, ...] | None = None
        if config.reasoning_end is not None:
            ids = tokenizer(config.reasoning_end, add_special_tokens=False)["input_ids"]
            self._end = tuple(ids)
            check_marker(self._end, vocab_size, eos)
        self._starting: list[threading.Thread] = []
        self._start()

    def compile(self, spec: GrammarSpec, reasoning: bool | None) -> Future[CompiledGrammar]:
        """The compiled grammar, now or later; the future may hold a `GrammarError`.

        `reasoning`: whether a section of reasoning comes before it; None: if the pipeline has one.
        Raises `RequestError` for one in a pipeline that does not say how it ends.
        """
        if reasoning and self._end is None:
            raise RequestError(
                "reasoning: this pipeline does not define the text that ends a reasoning section: "
                "set `nodes.bitmask.reasoning_end`"
            )
        compiled = self._service.submit(spec)
        if self._end is None or reasoning is False:
            return compiled
        wrapped: Future[CompiledGrammar] = Future()
        end = self._end

        def wrap(done: Future[CompiledGrammar]) -> None:
            if not wrapped.set_running_or_notify_cancel():
                return
            try:
                wrapped.set_result(with_reasoning(done.result(), end))
            except BaseException as error:  # it is the answer to this request
                wrapped.set_exception(error)

        wrapped.add_done_callback(lambda done: compiled.cancel() if done.cancelled() else None)
        compiled.add_done_callback(wrap)
        return wrapped

    def on_compiled(self, tell: OnCompiled | None) -> None:
        """Tell of each compilation from now on; None: no more."""
        self._service.on_compiled = tell

    def start_all(self) -> None:
        """Start the processes of every library, beside the caller.

        For a service: calls of tools are compiled by a library that others are tried before, and
        the first of them would wait for its process, which takes seconds to import it.
        """
        self._start(every=True)

    def close(self) -> None:
        """End the workers and their processes."""
        self._backend.close()  # first: a worker waits for what its process is at
        for thread in self._starting:
            thread.join()
        self._backend.close()  # what was being started meanwhile
        self._service.close()

    def _start(self, *, every: bool = False) -> None:
        """A compiling process takes seconds to start: meanwhile models load, and others decode."""

        def start() -> None:
            with suppress(Exception):  # the first compilation will say what is wrong
                self._backend.start(every=every)

        thread = threading.Thread(target=start, name="grammar-start", daemon=True)
        self._starting.append(thread)
        thread.start()
