"""What the decode step needs of a grammar library, and the boundary around every call to it.

The step knows two protocols: a backend compiles a `GrammarSpec`, a matcher follows one request.
Nothing that a matcher raises may leave the request it belongs to: engines have been killed for all
users by one grammar. So `fill_batch` collects failures per row and closes the row that failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from .bitmask import Words
from .grammar import GrammarSpec, MatcherFailure


@runtime_checkable
class Matcher(Protocol):
    """Where one request stands in its grammar.

    Used by one op at a time (the plan orders the fill against both commits); no lock inside.
    """

    @property
    def terminated(self) -> bool:
        """Whether a stop token was accepted. From then on exactly the stop tokens are allowed."""
        ...

    @property
    def failed(self) -> bool:
        """Whether an earlier call failed. Every further call raises `MatcherFailure`."""
        ...

    @property
    def closed_row(self) -> Words:
        """`[W]`: the mask row that lets a request do nothing but stop. Read-only."""
        ...

    def accept(self, token: int) -> bool:
        """Advance by one token if the grammar allows it; False and no change if not.

        Any integer may be asked about: -1 and ids beyond the vocabulary are simply not allowed.

        Raises:
            MatcherFailure: the library failed.
        """
        ...

    def rollback(self, count: int) -> None:
        """Undo the last `count` accepted tokens, over the end of the grammar too.

        Raises:
            MatcherFailure: more than were accepted, a negative count, or the library failed.
        """
        ...

    def advance(self, tokens: Sequence[int]) -> None:
        """Advance by tokens that are committed.

        Raises:
            GrammarError: one of them is not allowed, which is a bug upstream (a row sampled
                without its mask). The matcher then stands before the first of `tokens`.
            MatcherFailure: the library failed.
        """
        ...

    def fill_window(self, drafts: Sequence[int], rows: Words) -> int:
        """Fill one mask row per position of a draft window; the number of valid drafts.

        Row 0 is the mask at the current state, row j + 1 the mask after `drafts[: j + 1]`. The
        first draft that the grammar does not allow, that is -1 or out of range, or that follows
        the end of the grammar ends the window; the rows behind it are `closed_row` (fail closed:
        they are never sampled, and if they were the request would end). No row is ever empty.

        The matcher stands where it stood when this returns or raises.

        Args:
            drafts: at most k token ids.
            rows: int32, C-contiguous `[k + 1, W]`, overwritten whole.

        Raises:
            MatcherFailure: the library failed, or no token can follow the current state.
        """
        ...


@runtime_checkable
class CompiledGrammar(Protocol):
    """A grammar made ready for one vocabulary; shared by all requests that ask for it."""

    @property
    def spec(self) -> GrammarSpec: ...

    def matcher(self) -> Matcher:
        """A matcher at the start of the grammar."""
        ...


@runtime_checkable
class GrammarBackend(Protocol):
    """Compiles grammars for one tokenizer and one model vocabulary."""

    @property
    def vocab_size(self) -> int:
        """Tokens in the model's output layer, padding included: the width of a mask row."""
        ...

    def compile(self, spec: GrammarSpec) -> CompiledGrammar:
        """Make the grammar ready. Takes milliseconds to seconds: not on the engine's thread.

        Raises:
            GrammarError: malformed, not supported, or a grammar that no output can satisfy.
        """
        ...


def fill_batch(
    items: Sequence[tuple[Matcher, Sequence[int], int]], bitmask: Words
) -> tuple[list[int], dict[int, MatcherFailure]]:
    """Fill the windows of all structured rows of a batch; failures stay with their rows.

    Rows that are not named are left as they are: the caller has them all ones.

    Args:
        items: (matcher, drafts, row index) per structured request.
        bitmask: int32 `[R, k + 1, W]`, C-contiguous.

    Returns:
        The valid drafts per item, in order, and the failures by row index. A failed row counts no
        valid draft and is closed at all of its positions: its request must be ended.

    Raises:
        IndexError, ValueError: a row index outside the mask, or twice. That is a bug of the
            caller and not of a request; it is found before anything is written.
    """
    seen: set[int] = set()
    for _, _, row in items:
        if not 0 <= row < len(bitmask):
            raise IndexError(f"mask row {row} is outside the {len(bitmask)} rows of the batch")
        if row in seen:
            raise ValueError(f"mask row {row} is given to two requests")
        seen.add(row)

    counts: list[int] = []
    failures: dict[int, MatcherFailure] = {}
    for matcher, drafts, row in items:
        try:
            counts.append(matcher.fill_window(drafts, bitmask[row]))
        except Exception as error:  # the boundary: whatever it is, it concerns this row only
            counts.append(0)
            failures[row] = _as_failure(error)
            bitmask[row] = _closed_row(matcher)
    return counts, failures


def _as_failure(error: Exception) -> MatcherFailure:
    if isinstance(error, MatcherFailure):
        return error
    failure = MatcherFailure(f"{type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure


def _closed_row(matcher: Matcher) -> Words | np.int32:
    try:
        return matcher.closed_row
    except Exception:
        return np.int32(0)  # nothing allowed at all: still closed
