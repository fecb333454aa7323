"""The matcher against the library's own accept, token by token over the whole vocabulary."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from stepweave.structured.backend import (
    CompiledGrammar,
    GrammarBackend,
    Matcher,
)
from stepweave.structured.bitmask import ALL_ALLOWED, Words, words
from stepweave.structured.filling import fill_batch
from stepweave.structured.grammar import GrammarError, GrammarSpec, MatcherFailure

from .conftest import BACKENDS, EOS, PAD, STOPS, TURN, VOCAB, make_backend, wrapped

SPECS = {
    "schema": GrammarSpec.from_request(
        {
            "json": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
                "required": ["name", "age"],
            }
        }
    ),
    "object": GrammarSpec.from_request({"json_object": True}),
    "regex": GrammarSpec.from_request({"regex": "(hello|he)?( world)*[0-9]{0,2}"}),
    "anything": GrammarSpec.from_request({"grammar": "root ::= [\\x00-\\U0010FFFF]*"}),
    "ebnf": GrammarSpec.from_request({"grammar": 'root ::= "[" root "]" | "maybe" | ""'}),
    "choice": GrammarSpec.from_request({"choice": ["yes", "yes no", 'q"\\\n', "é😀", ""]}),
}


def allowed(row: Words) -> set[int]:
    """All ids whose bit is set, ids beyond the vocabulary included."""
    return set(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist())


def empty_rows(places: int) -> Words:
    """Rows full of a pattern, so that whatever is not written shows."""
    return np.full((places, words(VOCAB)), 0x55555555, dtype=np.int32)


def accepted_by_trial(matcher: Matcher) -> set[int]:
    """The tokens that `accept` takes now; the matcher is left as it was."""
    taken = set()
    for token in range(-2, VOCAB + 40):
        if matcher.accept(token):
            taken.add(token)
            matcher.rollback(1)
    return taken


def start(backend: GrammarBackend, name: str) -> Matcher:
    return backend.compile(SPECS[name]).matcher()


@st.composite
def walks(draw: st.DrawFn) -> list[int]:
    """Choices among the allowed tokens; the matcher's own mask says which those are."""
    return draw(st.lists(st.integers(0, 10_000), max_size=8))


def walk(matcher: Matcher, choices: Sequence[int]) -> list[int]:
    """Advance by allowed tokens; stops at the end of the grammar. The tokens taken."""
    taken = []
    for choice in choices:
        if matcher.terminated:
            break
        row = empty_rows(1)
        matcher.fill_window((), row)
        token = sorted(allowed(row[0]))[choice % len(allowed(row[0]))]
        assert matcher.accept(token)
        taken.append(token)
    return taken


def test_the_backend_is_what_the_step_asks_for(backend: GrammarBackend) -> None:
    assert isinstance(backend, GrammarBackend)
    compiled = backend.compile(SPECS["regex"])
    assert isinstance(compiled, CompiledGrammar)
    assert isinstance(compiled.matcher(), Matcher)
    assert compiled.spec is SPECS["regex"]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", SPECS)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(before=walks(), window=walks(), noise=st.lists(st.integers(-3, VOCAB + 5), max_size=2))
def test_row_j_allows_exactly_what_accept_takes_after_j_drafts(
    backend: GrammarBackend, name: str, before: list[int], window: list[int], noise: list[int]
) -> None:
    matcher, twin, oracle = (start(backend, name) for _ in range(3))
    taken = walk(matcher, before)
    drafts = [*walk_on(backend, name, taken, window), *noise]
    for token in taken:
        assert twin.accept(token)
        assert oracle.accept(token)

    rows = empty_rows(len(drafts) + 2)
    valid = matcher.fill_window(drafts, rows)

    for place in range(valid + 1):
        assert allowed(rows[place]) == accepted_by_trial(oracle), f"row {place}"
        if place < valid:
            assert oracle.accept(drafts[place])
    if valid < len(drafts):
        assert oracle.terminated or not oracle.accept(drafts[valid])
    for row in rows[valid + 1 :]:
        assert allowed(row) == set(STOPS), "behind the window a row is closed"
    # The matcher is where it was: it allows what a twin that never filled a window allows.
    assert matcher.terminated == twin.terminated
    assert accepted_by_trial(matcher) == accepted_by_trial(twin)


def walk_on(
    backend: GrammarBackend, name: str, taken: Sequence[int], choices: Sequence[int]
) -> list[int]:
    scout = start(backend, name)
    scout.advance(taken)
    return walk(scout, choices)


@pytest.mark.parametrize("name", SPECS)
def test_no_row_allows_ids_that_the_tokenizer_does_not_know_or_that_steer(
    backend: GrammarBackend, tokenizer: PreTrainedTokenizerFast, name: str
) -> None:
    row = empty_rows(1)
    start(backend, name).fill_window((), row)
    assert max(allowed(row[0])) < len(tokenizer) < VOCAB
    assert PAD not in allowed(row[0]), "the text '<pad>' fits a string, the token does not"


def test_outputs_that_follow_the_mask_satisfy_the_schema(
    backend: GrammarBackend, tokenizer: PreTrainedTokenizerFast
) -> None:
    rng = np.random.default_rng(0)
    finished = 0
    for _ in range(20):
        matcher = start(backend, "schema")
        tokens = walk(matcher, rng.integers(0, 10_000, 60).tolist())
        if matcher.terminated:
            finished += 1
            value = json.loads(str(tokenizer.decode(tokens[:-1])))
            assert isinstance(value["name"], str)
            assert isinstance(value["age"], int)
    assert finished >= 3, "too few finished for the test to say anything"


@pytest.mark.parametrize("text", ["yes", "yes no", 'q"\\\n', "é😀", ""])
def test_each_choice_can_be_written_and_nothing_else(
    backend: GrammarBackend, tokenizer: PreTrainedTokenizerFast, text: str
) -> None:
    matcher = start(backend, "choice")
    matcher.advance([*tokenizer.encode(text), EOS])
    assert matcher.terminated
    for other in ("no", text + "!"):
        with pytest.raises(GrammarError):
            start(backend, "choice").advance([*tokenizer.encode(other), EOS])


def test_a_finished_matcher_answers_every_call(backend: GrammarBackend) -> None:
    matcher = start(backend, "ebnf")
    assert matcher.accept(TURN), "either stop token ends the grammar"
    assert matcher.terminated

    rows = empty_rows(3)
    assert matcher.fill_window([EOS, EOS], rows) == 0
    assert [allowed(row) for row in rows] == [set(STOPS)] * 3
    assert not matcher.accept(70)
    assert not matcher.accept(-1)
    assert matcher.accept(EOS)
    assert matcher.accept(EOS)
    assert matcher.terminated

    matcher.rollback(2)
    assert matcher.terminated, "the stop tokens after the end are undone, the end is not"
    matcher.rollback(1)
    assert not matcher.terminated
    assert accepted_by_trial(matcher) == accepted_by_trial(start(backend, "ebnf"))


def test_rollback_goes_over_the_end_in_one_call(backend: GrammarBackend) -> None:
    matcher = start(backend, "ebnf")
    bracket = min(accepted_by_trial(matcher) - set(STOPS))
    matcher.advance([EOS, EOS, EOS])
    matcher.rollback(3)
    assert matcher.accept(bracket)
    assert not matcher.terminated


def test_an_end_token_inside_the_drafts_ends_the_window(
    backend: GrammarBackend, tokenizer: PreTrainedTokenizerFast
) -> None:
    yes = tokenizer.encode("yes")
    drafts = [*yes, EOS, EOS, 70]
    matcher = start(backend, "choice")
    rows = empty_rows(len(drafts) + 1)
    assert matcher.fill_window(drafts, rows) == len(yes) + 1
    assert allowed(rows[len(yes) + 1]) == set(STOPS), "the row after the end allows stopping"
    assert not matcher.terminated


@pytest.mark.parametrize("bad", [-1, -(2**31), PAD, VOCAB - 1, VOCAB, 2**31, 2**40])
def test_a_draft_that_is_no_token_is_cut_there(backend: GrammarBackend, bad: int) -> None:
    matcher = start(backend, "anything")
    rows = empty_rows(4)
    assert matcher.fill_window([70, bad, 70], rows) == 1
    assert allowed(rows[1]) > {70}
    assert allowed(rows[2]) == allowed(rows[3]) == set(STOPS)
    assert matcher.fill_window([bad], rows) == 0
    assert not matcher.failed


def test_a_committed_token_that_is_not_allowed_raises_and_takes_nothing(
    backend: GrammarBackend, tokenizer: PreTrainedTokenizerFast
) -> None:
    matcher = start(backend, "choice")
    yes = tokenizer.encode("yes")
    with pytest.raises(GrammarError, match=r"committed token -1 at index \d+ of \d+"):
        matcher.advance([*yes, -1])
    assert not matcher.failed
    assert accepted_by_trial(matcher) == accepted_by_trial(start(backend, "choice"))
    matcher.advance(yes)


@pytest.mark.parametrize("count", [-1, 2])
def test_a_rollback_that_cannot_be_fails_this_request(backend: GrammarBackend, count: int) -> None:
    matcher = start(backend, "anything")
    matcher.advance([70])
    with pytest.raises(MatcherFailure, match=f"cannot undo {count} tokens, 1 were accepted"):
        matcher.rollback(count)
    assert matcher.failed
    for call in (
        lambda: matcher.accept(70),
        lambda: matcher.rollback(0),
        lambda: matcher.advance([]),
        lambda: matcher.fill_window((), empty_rows(1)),
    ):
        with pytest.raises(MatcherFailure, match="failed before"):
            call()


def test_too_few_rows_are_refused_not_overrun(backend: GrammarBackend) -> None:
    with pytest.raises(MatcherFailure, match="2 drafts need 3 rows"):
        start(backend, "anything").fill_window([70, 70], empty_rows(2))


class _Exploding:
    """A library matcher that throws at its nth call of a method, and in every batched call."""

    def __init__(self, inner: object, methods: tuple[str, ...], after: int) -> None:
        self._inner, self._methods, self._left = inner, methods, after

    def __getattr__(self, name: str) -> object:
        if name in self._methods:
            self._left -= 1
            if self._left < 0:
                raise RuntimeError("[12:00:00] /x/y.cc:17: Check failed: (a) is false: boom")
        if name in ("_handle", "reset"):
            raise RuntimeError("no batched call with this one")
        return getattr(self._inner, name)

    def deep_copy(self) -> object:
        return self  # a fresh copy is no better


METHODS = {
    "fill": ("fill_next_token_bitmask", "unsafe_compute_mask_ptr"),
    "accept": ("accept_token", "try_consume_tokens"),
    "rollback": ("rollback",),
}
"""What the two libraries call the same thing."""


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("after", [0, 1])
def test_a_library_error_ends_one_row_and_leaves_the_others(
    backend: GrammarBackend, tokenizer: PreTrainedTokenizerFast, method: str, after: int
) -> None:
    drafts = tokenizer.encode("yes no")
    assert len(drafts) >= 2
    places = len(drafts) + 1
    broken, good = start(backend, "choice"), start(backend, "choice")
    if method == "rollback" and after:
        broken.advance([])
        broken.fill_window(drafts, empty_rows(places))  # the first roll back is let through
        after = 0
    exploding: Any = _Exploding(broken._inner, METHODS[method], after)  # type: ignore[attr-defined]
    broken._inner = broken._prototype = exploding  # type: ignore[attr-defined]

    alone = empty_rows(places)
    expected = start(backend, "choice").fill_window(drafts, alone)
    bitmask = np.full((4, places, words(VOCAB)), ALL_ALLOWED, dtype=np.int32)
    counts, failures = fill_batch([(broken, drafts, 3), (good, drafts, 1)], bitmask)

    assert counts == [0, expected]
    assert expected == len(drafts)
    assert set(failures) == {3}
    assert str(failures[3]) == "choice: boom"
    assert broken.failed
    assert not good.failed
    np.testing.assert_array_equal(bitmask[1], alone)
    assert all(allowed(row) == set(STOPS) for row in bitmask[3]), "the failed row is closed"
    assert (bitmask[[0, 2]] == ALL_ALLOWED).all(), "rows without a grammar are not touched"


def test_a_matcher_that_cannot_even_close_its_row_leaves_nothing_allowed() -> None:
    class Broken:
        closed_row = property(lambda self: 1 / 0)

        def fill_window(self, drafts: Sequence[int], rows: Words) -> int:
            raise KeyError("x")

    bitmask = np.full((1, 2, words(VOCAB)), ALL_ALLOWED, dtype=np.int32)
    counts, failures = fill_batch([(Broken(), [], 0)], bitmask)  # type: ignore[list-item]
    assert counts == [0]
    assert isinstance(failures[0], MatcherFailure)
    assert not bitmask.any()


@pytest.mark.parametrize(
    ("indices", "error"), [((0, 0), ValueError), ((-1, 0), IndexError), ((0, 2), IndexError)]
)
def test_a_wrong_row_index_is_found_before_anything_is_written(
    backend: GrammarBackend, indices: tuple[int, int], error: type[Exception]
) -> None:
    bitmask = np.full((2, 1, words(VOCAB)), ALL_ALLOWED, dtype=np.int32)
    items = [(start(backend, "choice"), (), row) for row in indices]
    with pytest.raises(error, match="mask row"):
        fill_batch(items, bitmask)
    assert (bitmask == ALL_ALLOWED).all()


def test_rows_of_one_shared_mask_are_filled_in_place(backend: GrammarBackend) -> None:
    bitmask = np.full((3, 2, words(VOCAB)), ALL_ALLOWED, dtype=np.int32)
    counts, failures = fill_batch(
        [(start(backend, "anything"), [70], 2), (start(backend, "choice"), [], 0)], bitmask
    )
    assert (counts, failures) == ([1, 0], {})
    assert allowed(bitmask[2, 0]) > set(STOPS)
    assert allowed(bitmask[0, 1]) == set(STOPS), "a window shorter than the mask is closed"


@pytest.mark.parametrize("name", BACKENDS)
def test_a_dead_end_behind_a_draft_does_not_fail_the_request_before_the_draft_is_kept(
    name: str,
) -> None:
    # A vocabulary that can write "a" and "c" but not "b".
    plain = Tokenizer(models.WordLevel({"<eos>": 0, "a": 1, "c": 2}, unk_token="<eos>"))
    backend = make_backend(name, wrapped(plain), 3, stops=[0])
    matcher = backend.compile(GrammarSpec("regex", "ab|c")).matcher()
    rows = np.zeros((2, 1), dtype=np.int32)
    assert matcher.fill_window([1], rows) == 1
    assert [allowed(row) for row in rows] == [{1, 2}, {0}], "never empty"
    matcher.advance([1])
    with pytest.raises(MatcherFailure, match=r"dead end|NoExtension"):
        matcher.fill_window((), rows)
