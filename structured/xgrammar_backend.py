"""Grammars by XGrammar (Dong et al. 2024, arXiv:2411.15100)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import xgrammar as xgr

from ..graph.immutable import immutable
from .backend import Window
from .bitmask import Words, allows_any, row_allowing, words
from .grammar import GrammarSpec, MatcherFailure
from .job import Job
from .library_backend import DEFAULTS, BackendOptions, LibraryBackend
from .matcher import DEAD_END, LibraryMatcher, MaskShape
from .surrogates import Surrogates
from .vocabulary import tokenizer_info
from .xgrammar_compile import compile_job

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BATCH_FROM: Final = 8
"""Windows from which batched calls are faster than calls row by row.

Measured on one core over 50,000 tokens, without drafts: at structural positions 4 windows take
20 us one by one and 22 us together, 16 take 70 and 52 us, 64 take 297 and 183 us. With three drafts
a window, or inside strings, the library's own work (25 us a mask there, milliseconds where the
length is bounded) leaves a tenth or less to be won.
"""


class XGrammarBackend(LibraryBackend["XGrammar"]):
    """Compiles grammars for one tokenizer; compiled ones are kept, least recently used go first.

    Args:
        tokenizer: a Hugging Face tokenizer.
        vocab_size: tokens in the model's output layer. Where it exceeds the tokenizer's, the ids
            that the tokenizer does not know are never allowed.
        eos_token_ids: the tokens that end an output; at least one, since they are all that a
            finished grammar allows.
        options: what holds for either library.

    Raises:
        ValueError: no end token, or one outside the vocabulary.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        vocab_size: int,
        eos_token_ids: Collection[int],
        options: BackendOptions = DEFAULTS,
    ) -> None:
        shape = MaskShape.of(vocab_size, frozenset(eos_token_ids))
        self._info = tokenizer_info(tokenizer, vocab_size, eos_token_ids)
        super().__init__(
            shape,
            "xgrammar",
            options,
            lambda: {"tokenizer": self._info.serialize_json(), "vocab_size": vocab_size},
        )
        spelled = (
            self._info.decoded_vocab
        )  # made anew by each look: a quarter of a second of 128,000
        # Compact JSON holds no control character anywhere, strings included.
        self._without_controls = row_allowing(
            (
                token
                for token, text in enumerate(spelled)
                if token in shape.stop_tokens or not any(byte < 0x20 for byte in text)
            ),
            vocab_size,
        )
        self._filler = XGrammarFiller(
            self._shape,
            options.fill_threads,
            Surrogates(spelled),
            frozenset(self._info.special_token_ids),
        )
        self._compiler = xgr.GrammarCompiler(
            self._info, max_threads=options.compile_threads, cache_enabled=False
        )

    def _run(self, spec: GrammarSpec, job: Job) -> tuple[XGrammar, int]:
        handle: Any = compile_job(self._compiler, job)
        allowed = self._without_controls if job.without_controls else None
        compiled = XGrammar(spec, handle, self._shape, self._filler, job.warnings, allowed=allowed)
        # The library compiles grammars that no text can satisfy; their first mask is empty.
        compiled.matcher().fill_window((), np.zeros((1, words(self.vocab_size)), np.int32))
        return compiled, int(handle.memory_size_bytes)


@immutable
@dataclass(frozen=True)
class XGrammar:
    """One compiled grammar of `XGrammarBackend`."""

    spec: GrammarSpec
    handle: Any
    shape: MaskShape
    filler: XGrammarFiller
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    allowed: Words | None = None  # tokens that may come at all, where the library lets in others

    @property
    def vocab_size(self) -> int:
        return self.shape.vocab_size

    def matcher(self) -> XGrammarMatcher:
        return XGrammarMatcher(self)


class XGrammarMatcher(LibraryMatcher):
    """Follows one request; see `Matcher` for what each call promises."""

    def __init__(self, grammar: XGrammar) -> None:
        super().__init__(grammar.spec.kind, grammar.shape, grammar.filler)
        self._allowed = grammar.allowed
        self._silent = grammar.filler.silent
        self._surrogates = grammar.filler.surrogates
        self._inner = xgr.GrammarMatcher(
            grammar.handle, override_stop_tokens=sorted(grammar.shape.stop_tokens)
        )

    def allows(self, token: int, drafts: Sequence[int] = ()) -> bool:
        """Whether a token may come after drafts, by what the library does not check.

        Of tokens that spell nothing it knows, but it writes a line to standard error for each.
        """
        if token in self._silent:
            return False
        if self._allowed is not None and not self._allowed[token // 32] >> (token % 32) & 1:
            return False
        return self._surrogates.allow(token, self._last(drafts))

    def narrow(self, row: Words, drafts: Sequence[int] = ()) -> None:
        """Take what may not come after drafts out of a mask row of the library."""
        if self._allowed is not None:
            row &= self._allowed
        self._surrogates.narrow(row, self._last(drafts))

    def _last(self, drafts: Sequence[int]) -> int | None:
        """The token that was taken last, the drafts after what was accepted."""
        return drafts[-1] if drafts else self._accepted[-1] if self._accepted else None

    def _take(self, token: int) -> bool:
        return self.allows(token) and bool(self._inner.accept_token(token))

    def _ended(self) -> bool:
        return bool(self._inner.is_terminated())

    def _undo(self, count: int) -> None:
        self._inner.rollback(count)

    def _write(self, row: Words) -> bool:
        self._inner.fill_next_token_bitmask(row[None])
        # The library sets the bits behind the vocabulary when nearly everything is allowed. They
        # would hide that a row allows nothing, and reach anyone who reads the row by words.
        row[-1] &= self._shape.last_word
        self.narrow(row)
        return allows_any(row)

    def _forced(self) -> bytes:
        try:
            return str(self._inner.find_jump_forward_string()).encode()
        except UnicodeDecodeError as error:  # it begins or ends inside of a character
            return error.object

    def restore(self) -> None:
        """Bring the library's matcher back to where this one stands, from wherever it is."""
        try:
            with self._boundary():
                self._inner.reset()
                for token in self._accepted:
                    if not self._inner.accept_token(token):
                        raise RuntimeError(f"token {token} was accepted once and is no more")
        except MatcherFailure:
            pass  # remembered: this matcher has failed


class XGrammarFiller:
    """Walks the windows of all matchers side by side: one library call fills the masks of all at
    one draft position, another accepts all their drafts there, a last one rolls all back.

    Against a tree traversal per row, which the library has as well, this saves the calls of all
    rows but one. A library call that throws leaves nobody knows whose state; then all matchers
    that may have moved are brought back from the tokens that they had accepted.
    """

    def __init__(
        self, shape: MaskShape, threads: int, surrogates: Surrogates, silent: frozenset[int]
    ) -> None:
        self._shape = shape
        self.surrogates = surrogates
        self.silent = silent  # tokens that spell nothing, and end no output: the library's own list
        self._batch = xgr.BatchGrammarMatcher(max_threads=threads)

    @property
    def pays_from(self) -> int:
        return BATCH_FROM

    def fill(self, windows: Sequence[Window], flat: Words) -> list[int | MatcherFailure]:
        """See `WindowFiller.fill`."""
        matchers = [_ours(window.matcher) for window in windows]
        inner = [each._inner for each in matchers]
        valid = [0] * len(windows)
        taken = [0] * len(windows)
        results: list[int | MatcherFailure] = [0] * len(windows)
        closed = self._shape.closed_row
        walking = list(range(len(windows)))
        ended: set[int] = set()  # stand in a dead end
        longest = max(len(window.drafts) for window in windows)
        moved = False
        place = 0
        try:
            while walking:
                rows = [windows[index].start + place for index in walking]
                self._batch.batch_fill_next_token_bitmask(
                    [inner[index] for index in walking], flat, rows
                )
                flat[rows, -1] &= self._shape.last_word
                for index, row in zip(walking, rows, strict=True):
                    matchers[index].narrow(flat[row], windows[index].drafts[:place])
                    if not allows_any(flat[row]):
                        if place == 0:
                            results[index] = self._dead_end(windows[index])
                        flat[row] = closed
                        ended.add(index)
                if place == longest:
                    break
                candidates = [
                    index
                    for index in walking
                    if place < len(drafts := windows[index].drafts)
                    and 0 <= drafts[place] < self._shape.vocab_size
                    and index not in ended
                    and matchers[index].allows(int(drafts[place]), drafts[:place])
                ]
                if not candidates:
                    break
                moved = True
                accepted = xgr.BatchGrammarMatcher.batch_accept_token(
                    [inner[index] for index in candidates],
                    [int(windows[index].drafts[place]) for index in candidates],
                )
                walking = []
                place += 1
                for index, okay in zip(candidates, accepted, strict=True):
                    if not okay:
                        continue
                    taken[index] += 1
                    valid[index] += 1
                    token = windows[index].drafts[place - 1]
                    if token in self._shape.stop_tokens and inner[index].is_terminated():
                        flat[windows[index].start + place] = closed
                    else:
                        walking.append(index)
            if back := [index for index in range(len(windows)) if taken[index]]:
                xgr.BatchGrammarMatcher.batch_rollback(
                    [inner[index] for index in back], [taken[index] for index in back]
                )
        except Exception:
            if moved:
                for each in matchers:
                    each.restore()
            raise
        for index, window in enumerate(windows):
            if valid[index] + 1 < window.places:
                flat[window.start + valid[index] + 1 : window.start + window.places] = closed
            if not isinstance(results[index], MatcherFailure):
                results[index] = valid[index]
        return results

    @staticmethod
    def _dead_end(window: Window) -> MatcherFailure:
        matcher = _ours(window.matcher)
        return matcher.fail(MatcherFailure(f"{matcher.kind}: {DEAD_END}"))


def _ours(matcher: object) -> XGrammarMatcher:
    assert isinstance(matcher, XGrammarMatcher), "of this library"
    return matcher
