"""What the decode step needs of a grammar library, and the boundary around every call to it.

The step knows two protocols: a backend compiles a `GrammarSpec`, a matcher follows one request.
Nothing that a matcher raises may leave the request it belongs to: engines have been killed for all
users by one grammar. So `fill_batch` collects failures per row and closes the row that failed.

A library that fills many masks in one call may do so: its matchers say who fills them
(`BatchedMatcher`), and a call that fails is repeated row by row, so that only the guilty row fails.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from .bitmask import Words
from .grammar import GrammarSpec, MatcherFailure
from .refusal import is_library_error
from .trees import fill_tree


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

    def fill_here(self, row: Words) -> bool:
        """Write the mask `[W]` of the current state; False, and `closed_row`, in a dead end.

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

    @property
    def vocab_size(self) -> int:
        """Tokens in the model's output layer, as of the backend."""
        ...

    @property
    def warnings(self) -> tuple[str, ...]:
        """Constraints that are not enforced, each with its place; empty under strict backends."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """Which library serves it, and why not another; empty where there was no choice."""
        ...

    def matcher(self) -> Matcher:
        """A matcher at the start of the grammar."""
        ...


class GrammarAround:
    """A compiled grammar that changes the matchers of another, and is else as that one."""

    inner: CompiledGrammar

    @property
    def spec(self) -> GrammarSpec:
        return self.inner.spec

    @property
    def vocab_size(self) -> int:
        return self.inner.vocab_size

    @property
    def warnings(self) -> tuple[str, ...]:
        return self.inner.warnings

    @property
    def notes(self) -> tuple[str, ...]:
        return self.inner.notes


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

    def cached(self, spec: GrammarSpec) -> CompiledGrammar | None:
        """The grammar if it is ready already; takes microseconds."""
        ...


class Window(NamedTuple):  # made per row and step: a frozen dataclass takes three times as long
    """The rows of one request that are left to a `WindowFiller`."""

    matcher: Matcher
    """Of the filler's own library."""
    drafts: Sequence[int]
    """Fewer than `places`."""
    start: int
    """The first row, counted over the flat mask `[R * (k + 1), W]`."""
    places: int
    """Rows, from `start` on."""
    settled: int = 0
    """Valid drafts in front of this window, counted already."""


class WindowFiller(Protocol):
    """Fills many windows with few calls of its library. Used by one op at a time."""

    @property
    def pays_from(self) -> int:
        """Windows below which `Matcher.fill_window`, row by row, is as fast."""
        ...

    def fill(self, windows: Sequence[Window], flat: Words) -> list[int | MatcherFailure]:
        """Do what `Matcher.fill_window` does, to the bit; per window the valid drafts or why not.

        Args:
            windows: of matchers that neither failed nor terminated, no matcher twice.
            flat: int32, C-contiguous `[R * (k + 1), W]`.

        Raises:
            Exception: the call failed and it is not known for whom. Every matcher that still works
                stands where it stood; those that do not have failed.
        """
        ...


@runtime_checkable
class BatchedMatcher(Protocol):
    """A matcher whose windows can be filled together with those of others."""

    def open_window(self, window: Window, flat: Words) -> int | tuple[WindowFiller, Window]:
        """Fill what needs no library, and say who fills the rest.

        Returns:
            The valid drafts, if nothing is left to fill; else the filler and what is left.

        Raises:
            MatcherFailure: as `Matcher.fill_window`.
        """
        ...


def fill_batch(
    items: Sequence[tuple[Matcher, Sequence[int], int]],
    bitmask: Words,
    trees: Mapping[int, Sequence[int]] = MappingProxyType({}),
) -> tuple[list[int], dict[int, MatcherFailure]]:
    """Fill the windows of all structured rows of a batch; failures stay with their rows.

    Windows are filled together, per library, where their matchers allow it and it pays. Rows that
    are not named are left as they are: the caller has them all ones.

    Args:
        items: (matcher, drafts, row index) per structured request.
        bitmask: int32 `[R, k + 1, W]`, C-contiguous.
        trees: by row index, the window position before each of its drafts; of the drafts of other
            rows it is the last.

    Returns:
        The valid drafts per item, in order, and the failures by row index. A failed row counts no
        valid draft and is closed at all of its positions: its request must be ended.

    Raises:
        IndexError, ValueError: a row index outside the mask, or twice, or a mask of another
            layout. That is a bug of the caller and not of a request; it is found before anything
            is written.
    """
    if not bitmask.flags.c_contiguous:
        raise ValueError("the mask is not C-contiguous: it would be filled in a copy")
    seen: set[int] = set()
    for _, _, row in items:
        if not 0 <= row < len(bitmask):
            raise IndexError(f"mask row {row} is outside the {len(bitmask)} rows of the batch")
        if row in seen:
            raise ValueError(f"mask row {row} is given to two requests")
        seen.add(row)

    counts = [0] * len(items)
    failures: dict[int, MatcherFailure] = {}
    flat = bitmask.reshape(-1, bitmask.shape[-1])
    places = bitmask.shape[1]
    left: dict[int, tuple[WindowFiller, list[tuple[int, Window]]]] = {}

    def fail(index: int, error: BaseException) -> None:
        matcher, _, row = items[index]
        failures[row] = _as_failure(error)
        bitmask[row] = _closed_row(matcher)

    def one(index: int) -> None:
        matcher, drafts, row = items[index]
        try:
            if row in trees:
                counts[index] = fill_tree(matcher, drafts, trees[row], bitmask[row])
            else:
                counts[index] = matcher.fill_window(drafts, bitmask[row])
        except BaseException as error:  # the boundary: it concerns this row only
            if not is_library_error(error):
                raise
            fail(index, error)

    for index, (matcher, drafts, row) in enumerate(items):
        # Asked by name: to ask whether it is a `BatchedMatcher` takes longer than to fill a mask.
        open_window = getattr(matcher, "open_window", None)
        if open_window is None or len(items) == 1 or row in trees:
            one(index)
            continue
        try:
            opened = open_window(Window(matcher, drafts, row * places, places), flat)
        except Exception as error:
            fail(index, error)
            continue
        if isinstance(opened, int):
            counts[index] = opened
        else:
            filler, window = opened
            left.setdefault(id(filler), (filler, []))[1].append((index, window))

    for filler, named in left.values():
        results: list[int | MatcherFailure] | None = None
        if len(named) >= filler.pays_from:
            try:
                results = filler.fill([window for _, window in named], flat)
            except BaseException as error:
                if not is_library_error(error):
                    raise
        if results is None:
            for index, _ in named:
                one(index)
            continue
        for (index, window), result in zip(named, results, strict=True):
            if isinstance(result, MatcherFailure):
                fail(index, result)
            else:
                counts[index] = window.settled + result
    return counts, failures


def _as_failure(error: BaseException) -> MatcherFailure:
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
