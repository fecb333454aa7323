"""The grammar begins behind the marker, wherever in a window the marker ends."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepweave.structured.backend import CompiledGrammar, GrammarBackend, Matcher
from stepweave.structured.bitmask import Words, words
from stepweave.structured.grammar import GrammarError, GrammarSpec, MatcherFailure
from stepweave.structured.reasoning import MarkerAutomaton, with_reasoning

from .conftest import EOS, PAD, STOPS, TURN, VOCAB
from .walking import allowed

LETTER = GrammarSpec("regex", "(a|b)+")


@pytest.fixture(scope="module")
def letters(backend: GrammarBackend) -> CompiledGrammar:
    return backend.compile(LETTER)


@pytest.fixture(scope="module")
def a(letters: CompiledGrammar) -> int:
    """The token "a"."""
    return min(first_mask(letters.matcher()))


def first_mask(matcher: Matcher) -> set[int]:
    return window(matcher, [])[1][0]


def window(matcher: Matcher, drafts: Sequence[int]) -> tuple[int, list[set[int]]]:
    rows: Words = np.full((len(drafts) + 1, words(VOCAB)), 0x55555555, dtype=np.int32)
    valid = matcher.fill_window(drafts, rows)
    return valid, [allowed(row) for row in rows]


EVERYTHING = set(range(words(VOCAB) * 32))


@given(
    marker=st.lists(st.integers(0, 2), min_size=1, max_size=6),
    text=st.lists(st.integers(0, 2), max_size=30),
)
def test_the_automaton_finds_the_marker_where_a_search_does(
    marker: list[int], text: list[int]
) -> None:
    automaton = MarkerAutomaton(marker)
    state = 0
    for index, token in enumerate(text):
        state = automaton.step(state, token)
        seen = text[: index + 1]
        longest = max(n for n in range(len(marker) + 1) if n == 0 or seen[-n:] == marker[:n])
        assert state == longest
        if state == automaton.end:
            break


@pytest.mark.parametrize("place", range(6))
def test_rows_are_free_up_to_the_marker_and_the_grammar_holds_behind_it(
    letters: CompiledGrammar, a: int, place: int
) -> None:
    marker = (PAD, 70)
    drafts = [99] * place + [*marker, a, a, 99]
    matcher = with_reasoning(letters, marker).matcher()
    valid, rows = window(matcher, drafts)
    inner = first_mask(letters.matcher())
    assert valid == place + 4, "the last draft breaks the grammar"
    assert rows[: place + 2] == [EVERYTHING] * (place + 2)
    assert rows[place + 2] == inner
    assert rows[place + 3] == rows[place + 4] == inner | set(STOPS)
    assert rows[place + 5 :] == [set(STOPS)]


def test_a_marker_split_between_steps_is_found(letters: CompiledGrammar, a: int) -> None:
    matcher = with_reasoning(letters, (PAD, PAD, 70)).matcher()
    matcher.advance([PAD, PAD, PAD])  # the marker begins anew with the second
    assert window(matcher, [70, a, 99])[0] == 2
    matcher.advance([70])
    assert first_mask(matcher) == first_mask(letters.matcher())
    with pytest.raises(GrammarError, match="regex: committed token 99 at index 1 of 2"):
        matcher.advance([a, 99])
    assert first_mask(matcher) == first_mask(letters.matcher()), "nothing was taken"


def test_rolling_back_over_the_marker_reopens_the_reasoning(
    letters: CompiledGrammar, a: int
) -> None:
    matcher = with_reasoning(letters, (PAD, 70)).matcher()
    matcher.advance([99, PAD, 70, a, EOS, TURN])
    assert matcher.terminated
    assert window(matcher, [])[1] == [set(STOPS)]
    matcher.rollback(2)
    assert not matcher.terminated
    matcher.rollback(2)
    assert first_mask(matcher) == EVERYTHING
    assert matcher.reasoning
    matcher.advance([70])
    assert not matcher.reasoning, "the first half of the marker still counts"
    matcher.rollback(3)
    with pytest.raises(MatcherFailure, match="cannot undo 1 tokens, 0 were accepted"):
        matcher.rollback(1)
    assert matcher.failed
    with pytest.raises(MatcherFailure, match="failed before"):
        matcher.accept(a)


def test_a_stop_token_inside_the_reasoning_is_the_engines_business(
    letters: CompiledGrammar, a: int
) -> None:
    matcher = with_reasoning(letters, (70,)).matcher()
    assert window(matcher, [EOS, 70, EOS])[0] == 2, "behind the marker a letter is due"
    matcher.advance([EOS])
    assert not matcher.terminated
    assert first_mask(matcher) == EVERYTHING


@pytest.mark.parametrize("bad", [-1, VOCAB, 2**40])
def test_a_draft_that_is_no_token_ends_the_window_in_the_reasoning_too(
    letters: CompiledGrammar, bad: int
) -> None:
    matcher = with_reasoning(letters, (70,)).matcher()
    valid, rows = window(matcher, [99, bad, 70])
    assert (valid, rows) == (1, [EVERYTHING, EVERYTHING, set(STOPS), set(STOPS)])
    assert not matcher.accept(bad)
    with pytest.raises(GrammarError, match="at index 1 of 2"):
        matcher.advance([70, bad])
    assert matcher.reasoning, "the marker was taken back"


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_window_says_what_stepping_one_by_one_says(
    letters: CompiledGrammar, a: int, data: st.DataObject
) -> None:
    tokens = st.sampled_from([a, PAD, 70, 99, EOS, -1])
    marker = data.draw(st.lists(st.sampled_from([PAD, 70]), min_size=1, max_size=3))
    compiled = with_reasoning(letters, marker)
    matcher, stepped = compiled.matcher(), compiled.matcher()
    for token in data.draw(st.lists(tokens, max_size=6)):
        assert matcher.accept(token) == stepped.accept(token)
    drafts = data.draw(st.lists(tokens, max_size=5))
    valid, rows = window(matcher, drafts)
    for place, mask in enumerate(rows):
        if place > valid:
            assert mask == set(STOPS)
            continue
        assert mask == first_mask(stepped)
        if place < valid:
            assert stepped.accept(drafts[place])
    if valid < len(drafts):
        assert stepped.terminated or not stepped.accept(drafts[valid])
    assert first_mask(matcher) == rows[0], "the matcher is where it was"


@pytest.mark.parametrize(
    ("marker", "message"),
    [((), "has no tokens"), ((VOCAB,), "not in the vocabulary"), ((70, EOS), "ends the whole")],
)
def test_a_marker_that_could_never_end_the_reasoning_is_refused(
    letters: CompiledGrammar, marker: Sequence[int], message: str
) -> None:
    with pytest.raises(GrammarError, match=message):
        with_reasoning(letters, marker)


def test_the_grammar_behind_it_is_what_it_is_about(letters: CompiledGrammar) -> None:
    compiled = with_reasoning(letters, (70,))
    assert isinstance(compiled, CompiledGrammar)
    assert isinstance(compiled.matcher(), Matcher)
    assert (compiled.spec, compiled.vocab_size, compiled.warnings) == (LETTER, VOCAB, ())
