"""A section of free text before the structured one: models that think before they answer.

Until the end marker has been generated everything is allowed, after it the grammar holds. With
drafts the marker may lie inside a window, so where the section ends is decided per position, not
per step: rows up to the marker are free, rows behind it are the grammar's. Engines that switched
once a step let drafts through unmasked behind the marker, or masked reasoning as if it were JSON.

The marker is a sequence of token ids, found by the automaton of Knuth, Morris and Pratt (1977): a
marker that overlaps itself, after a beginning that led nowhere, is still found where it ends first.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

from ..graph.immutable import immutable
from .backend import CompiledGrammar, GrammarAround, Matcher, Window, WindowFiller
from .bitmask import ALL_ALLOWED, Words
from .grammar import GrammarError, MatcherFailure
from .matcher import refused_token


class MarkerAutomaton:
    """How much of a marker the tokens so far end in.

    Args:
        marker: token ids, at least one.
    """

    def __init__(self, marker: Sequence[int]) -> None:
        self._marker = tuple(marker)
        # borders[n]: the longest proper beginning of marker[:n] that is also its end.
        self._borders = [0, 0]
        for token in self._marker[1:]:
            self._borders.append(self.step(self._borders[-1], token))

    @property
    def end(self) -> int:
        """The state in which the whole marker has been seen."""
        return len(self._marker)

    def step(self, state: int, token: int) -> int:
        """The state after one more token; `state` is below `end`."""
        while state and self._marker[state] != token:
            state = self._borders[state]
        return state + 1 if self._marker[state] == token else 0


def with_reasoning(compiled: CompiledGrammar, end: Sequence[int]) -> ReasonedGrammar:
    """The grammar, to hold only behind the first occurrence of a marker.

    Args:
        compiled: any backend's.
        end: ids of the marker's tokens, as the model generates them. They belong to the reasoning.

    Raises:
        GrammarError: an empty marker, an id outside the vocabulary, or one that ends the output.
    """
    stops = compiled.matcher().closed_row
    inside = [token for token in end if 0 <= token < compiled.vocab_size]
    ending = {token for token in inside if stops[token // 32] >> (token % 32) & 1}
    check_marker(end, compiled.vocab_size, ending)
    return ReasonedGrammar(compiled, MarkerAutomaton(end))


def check_marker(end: Sequence[int], vocab_size: int, ending: Container[int]) -> None:
    """Raise `GrammarError` for what cannot be a marker. `ending`: tokens that end an output."""
    if not end:
        raise GrammarError("reasoning: the end marker has no tokens, so the section would not end")
    for token in end:
        if not 0 <= token < vocab_size:
            raise GrammarError(
                f"reasoning: token {token} of the end marker is not in the vocabulary"
            )
        if token in ending:
            raise GrammarError(f"reasoning: token {token} of the end marker ends the whole output")


@immutable
@dataclass(frozen=True)
class ReasonedGrammar(GrammarAround):
    """A compiled grammar behind a section of reasoning."""

    inner: CompiledGrammar
    marker: MarkerAutomaton

    def matcher(self) -> ReasoningMatcher:
        return ReasoningMatcher(self)


class ReasoningMatcher:
    """Follows one request through both sections; see `Matcher` for what each call promises.

    Inside the reasoning a stop token is a token like any other, as in a request without grammar:
    it is the engine that ends the request there. `terminated` is about the grammar only.
    """

    def __init__(self, grammar: ReasonedGrammar) -> None:
        self._kind = grammar.spec.kind
        self._inner: Matcher = grammar.inner.matcher()
        self._marker = grammar.marker
        self._vocab_size = grammar.vocab_size
        self._states = [0]  # of the marker, after each token of the reasoning
        self._inside = 0  # tokens that the grammar has accepted
        self._failure: MatcherFailure | None = None

    @property
    def reasoning(self) -> bool:
        """Whether the end marker is still to come."""
        return self._states[-1] < self._marker.end

    @property
    def terminated(self) -> bool:
        return self._inner.terminated

    @property
    def failed(self) -> bool:
        return self._failure is not None or self._inner.failed

    @property
    def closed_row(self) -> Words:
        return self._inner.closed_row

    def accept(self, token: int) -> bool:
        self._check()
        if not self.reasoning:
            if not self._inner.accept(token):
                return False
            self._inside += 1
            return True
        if not 0 <= token < self._vocab_size:
            return False
        self._states.append(self._marker.step(self._states[-1], token))
        return True

    def rollback(self, count: int) -> None:
        self._check()
        accepted = self._inside + len(self._states) - 1
        if not 0 <= count <= accepted:
            self._failure = MatcherFailure(
                f"{self._kind}: cannot undo {count} tokens, {accepted} were accepted"
            )
            raise self._failure
        inside = min(count, self._inside)
        if inside:
            self._inner.rollback(inside)
            self._inside -= inside
        if outside := count - inside:
            del self._states[-outside:]

    def advance(self, tokens: Sequence[int]) -> None:
        self._check()
        for index, token in enumerate(tokens):
            if not self.accept(token):
                self.rollback(index)
                raise refused_token(self._kind, token, index, len(tokens))

    def fill_window(self, drafts: Sequence[int], rows: Words) -> int:
        self._check()
        if len(rows) <= len(drafts):
            self._failure = MatcherFailure(
                f"{self._kind}: {len(drafts)} drafts need {len(drafts) + 1} rows, {len(rows)}"
            )
            raise self._failure
        free, ended = self._fill_free(drafts, rows)
        if not ended:
            return free
        return free + self._inner.fill_window(drafts[free:], rows[free:])

    def fill_here(self, row: Words) -> bool:
        """See `Matcher`."""
        self._check()
        if self._states[-1] < self._marker.end:
            row[:] = ALL_ALLOWED
            return True
        return self._inner.fill_here(row)

    def open_window(self, window: Window, flat: Words) -> int | tuple[WindowFiller, Window]:
        """See `BatchedMatcher`: the rows behind the marker go to the grammar's library."""
        self._check()
        rows = flat[window.start : window.start + window.places]
        opens = getattr(self._inner, "open_window", None)
        if opens is None or len(rows) <= len(window.drafts):
            return self.fill_window(window.drafts, rows)
        free, ended = self._fill_free(window.drafts, rows)
        if not ended:
            return free
        opened: int | tuple[WindowFiller, Window] = opens(
            Window(self._inner, window.drafts[free:], window.start + free, window.places - free),
            flat,
        )
        if isinstance(opened, int):
            return free + opened
        filler, rest = opened
        return filler, rest._replace(settled=rest.settled + free)

    def forced_text(self) -> bytes:
        """See `ForcingMatcher`: nothing inside the reasoning."""
        self._check()
        asked = None if self.reasoning else getattr(self._inner, "forced_text", None)
        return b"" if asked is None else asked()

    def _check(self) -> None:
        if self._failure is not None:
            raise MatcherFailure(f"the matcher failed before: {self._failure}") from self._failure

    def _fill_free(self, drafts: Sequence[int], rows: Words) -> tuple[int, bool]:
        """Fill the rows of the reasoning; the drafts in it, and whether the grammar follows them.

        If it does not, all rows are filled.
        """
        state, free = self._states[-1], 0
        while state < self._marker.end:
            rows[free] = ALL_ALLOWED
            if free == len(drafts) or not 0 <= drafts[free] < self._vocab_size:
                rows[free + 1 :] = self.closed_row
                return free, False
            state = self._marker.step(state, drafts[free])
            free += 1
        return free, True
