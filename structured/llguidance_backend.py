"""Grammars by llguidance: derivatives of regular expressions below an Earley parser, all lazy.

Compilation takes milliseconds and is limited by the library itself, in steps and not in time; the
work is done when masks are filled. A matcher of the library that meets an error is silent from then
on: it answers with a mask that only stops. So its error state is asked after every call, and since
it cannot leave that state, a fresh copy takes its place where the request itself has not failed.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ..graph.immutable import immutable
from .backend import Window
from .bitmask import Words, allows_any
from .grammar import GrammarSpec, MatcherFailure
from .job import Job
from .library_backend import DEFAULTS, BackendOptions, LibraryBackend
from .llguidance_compile import compile_grammar, library, make_tokenizer
from .matcher import DEAD_END, LibraryMatcher, MaskShape
from .vocabulary import tokenizer_info

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BYTES_PER_CHARACTER: Final = 64
BYTES_PER_GRAMMAR: Final = 64 * 1024
"""What a kept grammar is charged for: the library does not say how much memory it takes."""

BATCH_FROM: Final = 2
"""Windows from which one batched call on several threads is made, rather than calls row by row.

On one thread there is none: the library's batched call hands the work to a thread of its own, and
asks more of each row. Measured over 50,000 tokens, 16 masks at structural positions take 120 us one
by one and 220 us together, inside strings 300 and 510 us; windows of three drafts are level, and on
a machine whose cores are busy the other thread may come milliseconds late.
"""


class LLGuidanceBackend(LibraryBackend["LLGrammar"]):
    """Compiles grammars for one tokenizer; compiled ones are kept, least recently used go first.

    Args:
        tokenizer: a Hugging Face tokenizer.
        vocab_size: tokens in the model's output layer. Where it exceeds the tokenizer's, the ids
            that the tokenizer does not know are never allowed.
        eos_token_ids: the tokens that end an output; at least one.
        options: what holds for either library. A compilation has one thread.

    Raises:
        GrammarError: llguidance is not installed.
        ValueError: no end token, or one outside the vocabulary.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        vocab_size: int,
        eos_token_ids: Collection[int],
        options: BackendOptions = DEFAULTS,
    ) -> None:
        llguidance = library()
        shape = MaskShape.of(vocab_size, frozenset(eos_token_ids))
        tokens = list(tokenizer_info(tokenizer, vocab_size, eos_token_ids).decoded_vocab)
        stops = sorted(shape.stop_tokens)
        for stop in stops:
            tokens[stop] = b""
        special = [index for index, token in enumerate(tokens) if not token]
        super().__init__(
            shape,
            "llguidance",
            options,
            lambda: {
                "tokens": [base64.b64encode(token).decode() for token in tokens],
                "special": special,
                "stop_tokens": stops,
            },
        )
        self._tokenizer = make_tokenizer(tokens, special, stops)
        self._filler = LLGuidanceFiller(
            shape, llguidance.LLExecutor(threads) if (threads := options.fill_threads) > 1 else None
        )

    def _run(self, spec: GrammarSpec, job: Job) -> tuple[LLGrammar, int]:
        prototype = compile_grammar(self._tokenizer, job.source)
        warnings = job.warnings + tuple(
            f"{spec.kind}: {each}"
            for each in prototype.get_grammar_warnings()
            if not each.startswith("Unimplemented keys")  # those are in already, with places
        )
        compiled = LLGrammar(spec, prototype, self._shape, self._filler, warnings)
        return compiled, BYTES_PER_GRAMMAR + BYTES_PER_CHARACTER * len(job.source)


@immutable
@dataclass(frozen=True)
class LLGrammar:
    """One compiled grammar of `LLGuidanceBackend`."""

    spec: GrammarSpec
    prototype: Any
    shape: MaskShape
    filler: LLGuidanceFiller
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def vocab_size(self) -> int:
        return self.shape.vocab_size

    def matcher(self) -> LLGuidanceMatcher:
        return LLGuidanceMatcher(self)


class LLGuidanceMatcher(LibraryMatcher):
    """Follows one request; see `Matcher` for what each call promises.

    The library never sees a stop token: whether one may follow it says, and that it did is counted
    here.
    """

    def __init__(self, grammar: LLGrammar) -> None:
        super().__init__(grammar.spec.kind, grammar.shape, grammar.filler)
        self._prototype = grammar.prototype
        self._inner = grammar.prototype.deep_copy()

    def _take(self, token: int) -> bool:
        if token in self._shape.stop_tokens:
            taken = bool(self._inner.is_accepting())
        else:
            taken = self._inner.try_consume_tokens([token]) == 1
        if self._inner.is_error():
            raise RuntimeError(self._error())
        return taken

    def _ended(self) -> bool:
        return True

    def _undo(self, count: int) -> None:
        if self._inner.is_error():
            self._stand_after(self._accepted[:-count])
            return
        count -= self._terminated  # the stop token
        if count and not self._inner.rollback(count):
            raise RuntimeError(self._error())

    def _write(self, row: Words) -> bool:
        self._inner.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        row[-1] &= self._shape.last_word
        return not self._inner.is_error() and allows_any(row)

    def _forced(self) -> bytes:
        return bytes(self._inner.compute_ff_bytes())

    def _dead_end(self) -> str:
        return self._error() if self._inner.is_error() else DEAD_END

    def _error(self) -> str:
        return str(self._inner.get_error()).strip().split("\n", 1)[0]

    def restore(self) -> None:
        """Bring the library's matcher back to where this one stands, from wherever it is."""
        try:
            with self._boundary():
                self._stand_after(self._accepted)
        except MatcherFailure:
            pass  # remembered: this matcher has failed

    def _stand_after(self, tokens: Sequence[int]) -> None:
        self._inner = self._prototype.deep_copy()
        if tokens and not self._inner.consume_tokens(list(tokens)):
            raise RuntimeError(self._error())


class LLGuidanceFiller:
    """Fills the windows of all matchers in one call of the library, given threads for it."""

    def __init__(self, shape: MaskShape, executor: Any) -> None:
        self._shape = shape
        self._executor = executor

    @property
    def pays_from(self) -> int:
        return BATCH_FROM if self._executor is not None else sys.maxsize

    def fill(self, windows: Sequence[Window], flat: Words) -> list[int | MatcherFailure]:
        """See `WindowFiller.fill`."""
        vocab_size, stops = self._shape.vocab_size, self._shape.stop_tokens
        jobs = []
        for window in windows:
            assert isinstance(window.matcher, LLGuidanceMatcher), "of this library"
            chain = []
            for draft in window.drafts:
                if not 0 <= draft < vocab_size or draft in stops:
                    break
                chain.append(int(draft))
            # Closed before, should the library end a walk sooner than its own masks say.
            flat[window.start + 1 : window.start + window.places] = self._shape.closed_row
            jobs.append((window.matcher._inner, window.start, chain))
        try:
            self._executor.unsafe_compute_mask_ptr_with_draft_token(
                jobs, flat.ctypes.data, flat.shape[1] * flat.itemsize, len(flat)
            )
        except BaseException:
            for window in windows:
                window.matcher.restore()  # type: ignore[attr-defined]
            raise
        return [self._settle(window, flat) for window in windows]

    def _settle(self, window: Window, flat: Words) -> int | MatcherFailure:
        """Count the valid drafts of one window by its masks, and close what is behind."""
        matcher = window.matcher
        assert isinstance(matcher, LLGuidanceMatcher)
        rows = flat[window.start : window.start + window.places]
        valid, stopped = 0, False
        for draft in window.drafts:
            if stopped or not 0 <= draft < self._shape.vocab_size:
                break
            if not rows[valid, draft // 32] >> (draft % 32) & 1:
                break
            valid += 1
            stopped = draft in self._shape.stop_tokens
        rows[valid + (not stopped) :] = self._shape.closed_row
        rows[: valid + 1, -1] &= self._shape.last_word
        if matcher._inner.is_error() or not all(map(allows_any, rows[: valid + 1])):
            # The first mask that failed is not known; row by row it is.
            matcher.restore()
            try:
                return matcher.fill_window(window.drafts, rows)
            except MatcherFailure as failure:
                return failure
        return valid
