"""What every library's matcher has in common: counting, ending, windows, and the boundary.

Grammar libraries throw, or fall silent for good, where an engine cannot afford it: a mask asked of
a finished matcher, a roll back too far, a grammar without a way on. `LibraryMatcher` gives every
call a defined answer. A library is bound by four short methods.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from .backend import Window, WindowFiller
from .bitmask import Words, row_allowing
from .grammar import GrammarError, MatcherFailure
from .refusal import is_library_error, reason

DEAD_END = "no token can follow: the grammar has reached a dead end"


@dataclass(frozen=True)
class MaskShape:
    """The vocabulary of a model, as its mask rows need it."""

    vocab_size: int
    stop_tokens: frozenset[int]
    closed_row: Words
    """`[W]`, read-only: allows the stop tokens and nothing else."""
    last_word: np.int32
    """The bits of the last word that stand for ids of the vocabulary."""

    @classmethod
    def of(cls, vocab_size: int, stop_tokens: frozenset[int]) -> MaskShape:
        """Raises `ValueError`: no stop token, or one outside the vocabulary."""
        if not stop_tokens:
            raise ValueError("eos_token_ids is empty: a finished grammar would allow no token")
        closed_row = row_allowing(stop_tokens, vocab_size)
        return cls(
            vocab_size, stop_tokens, closed_row, row_allowing(range(vocab_size), vocab_size)[-1]
        )


class LibraryMatcher(ABC):
    """Follows one request; see `Matcher` for what each call promises.

    The library is never asked anything once the grammar has ended. Stop tokens accepted after the
    first (a request that ignores the end of sequence keeps getting them) are only counted here,
    and undone here.

    Args:
        kind: of the grammar, for messages.
        shape: of the mask rows.
        filler: fills the windows of many requests at once.
    """

    def __init__(self, kind: str, shape: MaskShape, filler: WindowFiller) -> None:
        self.kind = kind
        self._shape = shape
        self._filler = filler
        self._accepted: list[int] = []  # what the library's matcher stands behind
        self._after_end = 0  # stop tokens after the one that ended the grammar
        self._terminated = False
        self._failure: MatcherFailure | None = None

    @abstractmethod
    def _take(self, token: int) -> bool:
        """Advance the library's matcher by an id of the vocabulary; False and no change if not."""

    @abstractmethod
    def _ended(self) -> bool:
        """Whether the stop token just taken has ended the grammar."""

    @abstractmethod
    def _undo(self, count: int) -> None:
        """Take back the last `count` of `_accepted`, which still holds them."""

    @abstractmethod
    def _write(self, row: Words) -> bool:
        """Write the mask `[W]` of the current state; False if nothing is allowed."""

    @abstractmethod
    def _forced(self) -> bytes:
        """The bytes that must come next, of a grammar that has not ended."""

    @property
    def terminated(self) -> bool:
        return self._terminated

    @property
    def failed(self) -> bool:
        return self._failure is not None

    @property
    def closed_row(self) -> Words:
        return self._shape.closed_row

    def accept(self, token: int) -> bool:
        with self._boundary():
            return self._accept(token)

    def rollback(self, count: int) -> None:
        with self._boundary():
            self._rollback(count)

    def advance(self, tokens: Sequence[int]) -> None:
        with self._boundary():
            for index, token in enumerate(tokens):
                if not self._accept(token):
                    self._rollback(index)
                    raise refused_token(self.kind, token, index, len(tokens))

    def open_window(self, window: Window, flat: Words) -> int | tuple[WindowFiller, Window]:
        """See `BatchedMatcher`."""
        if self._failure or self._terminated or window.places <= len(window.drafts):
            rows = flat[window.start : window.start + window.places]
            return self.fill_window(window.drafts, rows)
        return self._filler, window

    def fill_window(self, drafts: Sequence[int], rows: Words) -> int:
        """See `Matcher`. Raises `MatcherFailure` in a dead end, `ValueError` for too few rows."""
        with self._boundary():
            if len(rows) <= len(drafts):
                raise ValueError(f"{len(drafts)} drafts need {len(drafts) + 1} rows, {len(rows)}")
            start = self._depth
            valid = 0
            try:
                if not self._fill(rows[0]):
                    raise MatcherFailure(f"{self.kind}: {self._dead_end()}")
                for draft in drafts:
                    if self._terminated or not self._accept(draft):
                        break
                    valid += 1
                    if not self._fill(rows[valid]):
                        # Only if this draft is accepted does the request stand in the dead end,
                        # as it would have without drafts; until then it has not failed.
                        rows[valid] = self.closed_row
                        break
            finally:
                self._rollback(self._depth - start)
            rows[valid + 1 :] = self.closed_row
            return valid

    def fill_here(self, row: Words) -> bool:
        """See `Matcher`."""
        with self._boundary():
            filled = self._fill(row)
            if not filled:
                row[:] = self.closed_row
            return filled

    def forced_text(self) -> bytes:
        """See `ForcingMatcher`."""
        with self._boundary():
            return b"" if self._terminated else self._forced()

    def fail(self, failure: MatcherFailure) -> MatcherFailure:
        """Remember a failure: every further call raises."""
        self._failure = failure
        return failure

    @property
    def _depth(self) -> int:
        return len(self._accepted) + self._after_end

    def _accept(self, token: int) -> bool:
        if self._terminated:
            if token not in self._shape.stop_tokens:
                return False
            self._after_end += 1
            return True
        if not 0 <= token < self._shape.vocab_size or not self._take(int(token)):
            return False
        self._accepted.append(int(token))
        # Asked of the library only where it can be true: the call costs as much as an accept.
        if token in self._shape.stop_tokens:
            self._terminated = self._ended()
        return True

    def _rollback(self, count: int) -> None:
        if not 0 <= count <= self._depth:
            raise ValueError(f"cannot undo {count} tokens, {self._depth} were accepted")
        outside = min(count, self._after_end)
        self._after_end -= outside
        inside = count - outside
        if inside:
            self._undo(inside)
            del self._accepted[-inside:]
            self._terminated = False

    def _fill(self, row: Words) -> bool:
        if self._terminated:
            row[:] = self.closed_row
            return True
        return self._write(row)

    def _dead_end(self) -> str:
        return DEAD_END

    @contextmanager
    def _boundary(self) -> Iterator[None]:
        """Turn whatever escapes into this request's failure, and remember it.

        After an exception of the library nothing is known about its state, so it is not asked
        again. A refused committed token is no such case: the matcher stands where it stood.
        """
        if self._failure is not None:
            raise MatcherFailure(f"the matcher failed before: {self._failure}") from self._failure
        try:
            yield
        except GrammarError:
            raise
        except MatcherFailure as error:
            self.fail(error)
            raise
        except BaseException as error:
            if not is_library_error(error):
                raise
            raise self.fail(MatcherFailure(f"{self.kind}: {reason(error)}")) from error


def refused_token(kind: str, token: int, index: int, count: int) -> GrammarError:
    """The error of `Matcher.advance`."""
    return GrammarError(
        f"{kind}: committed token {token} at index {index} of {count} is not allowed by the "
        "grammar; the row was sampled without its mask"
    )
