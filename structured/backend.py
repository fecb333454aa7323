"""What the decode step needs of a grammar library, and the boundary around every call to it.

The step knows two protocols: a backend compiles a `GrammarSpec`, a matcher follows one request.
Nothing that a matcher raises may leave the request it belongs to: engines have been killed for all
users by one grammar; see `filling.fill_batch`.

A library that fills many masks in one call may do so: its matchers say who fills them
(`BatchedMatcher`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

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
