"""Windows filled together are those filled one by one, to the bit, and fail one by one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from stepweave.structured.backend import (
    GrammarBackend,
    Matcher,
    Window,
)
from stepweave.structured.bitmask import ALL_ALLOWED, Words, words
from stepweave.structured.filling import fill_batch
from stepweave.structured.grammar import GrammarSpec, MatcherFailure
from stepweave.structured.llguidance_backend import LLGuidanceBackend
from stepweave.structured.reasoning import with_reasoning
from stepweave.structured.xgrammar_backend import XGrammarBackend

from .conftest import BACKENDS, PAD, STOPS, VOCAB, make_backend, wrapped
from .test_matcher import SPECS
from .walking import allowed, next_tokens

PLACES = 5
END = (PAD, 70)
"""Marks the end of reasoning where a grammar has it."""


def matcher_of(backend: GrammarBackend, name: str, *, reasons: bool) -> Matcher:
    compiled = backend.compile(SPECS[name])
    return with_reasoning(compiled, END).matcher() if reasons else compiled.matcher()


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, bool, list[int], list[int]]:
    """A grammar, whether it is behind reasoning, choices before the window, and drafts in it."""
    choices = st.lists(st.integers(0, 10_000), max_size=4)
    return (
        draw(st.sampled_from(sorted(SPECS))),
        draw(st.booleans()),
        draw(choices),
        draw(choices),
    )


def walk(matcher: Matcher, choices: Sequence[int]) -> list[int]:
    """Take allowed tokens, and now and then one that is none or that ends the reasoning."""
    taken = []
    for choice in choices:
        special = {0: -1, 1: PAD, 2: 70, 3: STOPS[1], 4: VOCAB}.get(choice % 13)
        tokens = next_tokens(matcher)
        token = tokens[choice % len(tokens)] if special is None else special
        if token < VOCAB:
            taken.append(token)
        if not matcher.accept(token):
            break
    return taken


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(asked=st.lists(requests(), min_size=2, max_size=5), data=st.data())
def test_a_batch_is_filled_as_its_rows_are_one_by_one(
    backend: GrammarBackend,
    asked: list[tuple[str, bool, list[int], list[int]]],
    data: st.DataObject,
) -> None:
    together: list[tuple[Matcher, Sequence[int], int]] = []
    alone = np.full((len(asked) + 1, PLACES, words(VOCAB)), ALL_ALLOWED, dtype=np.int32)
    rows = data.draw(st.permutations(range(len(asked) + 1)))
    expected = []
    for (name, reasons, before, window), row in zip(asked, rows, strict=False):
        first, second, scout = (matcher_of(backend, name, reasons=reasons) for _ in range(3))
        for token in walk(scout, before):
            if not (first.accept(token) and second.accept(token)):
                break
        drafts = walk(scout, window)
        expected.append(first.fill_window(drafts, alone[row]))
        together.append((second, drafts, row))
    bitmask = np.full_like(alone, ALL_ALLOWED)

    counts, failures = fill_batch(together, bitmask)

    assert failures == {}
    assert counts == expected
    np.testing.assert_array_equal(bitmask, alone)
    again = np.full_like(alone, ALL_ALLOWED)
    assert fill_batch(together, again) == (counts, {}), "every matcher stands where it stood"
    np.testing.assert_array_equal(again, alone)


def test_matchers_of_both_libraries_may_share_a_batch(
    xgrammar: XGrammarBackend, llguidance: LLGuidanceBackend, tokenizer: PreTrainedTokenizerFast
) -> None:
    drafts = tokenizer.encode("yes no")
    backends: list[GrammarBackend] = [xgrammar, llguidance, xgrammar, llguidance]
    items = [
        (each.compile(SPECS["choice"]).matcher(), drafts, row) for row, each in enumerate(backends)
    ]
    bitmask = np.full((4, len(drafts) + 1, words(VOCAB)), ALL_ALLOWED, dtype=np.int32)
    assert fill_batch(items, bitmask) == ([len(drafts)] * 4, {})
    assert allowed(bitmask[0, -1]) == allowed(bitmask[1, -1]) == set(STOPS)


def test_a_batched_call_that_fails_is_repeated_row_by_row(
    backend: GrammarBackend, tokenizer: PreTrainedTokenizerFast
) -> None:
    drafts = tokenizer.encode("yes no")
    matchers = [backend.compile(SPECS["choice"]).matcher() for _ in range(3)]
    matchers[0].advance(drafts[:1])
    windows = [drafts[1:], drafts, drafts]
    alone = np.full((3, PLACES, words(VOCAB)), ALL_ALLOWED, dtype=np.int32)
    together = alone.copy()
    items = [(m, w, row) for row, (m, w) in enumerate(zip(matchers, windows, strict=True))]
    expected = [m.fill_window(w, alone[row]) for m, w, row in items]

    class Failing:
        """Moves all matchers, then fails: what a library that throws half-way leaves behind."""

        pays_from = 1

        def fill(self, windows: Sequence[Window], flat: Words) -> list[int]:
            for window in windows:
                window.matcher._take(window.drafts[0])  # type: ignore[attr-defined]
                window.matcher.restore()  # type: ignore[attr-defined]
            flat[:] = 0x55555555
            raise RuntimeError("half-way")

    failing = Failing()
    for matcher in matchers:
        matcher._filler = failing  # type: ignore[attr-defined]
    assert fill_batch(items, together) == (expected, {})
    np.testing.assert_array_equal(together, alone)


@pytest.mark.parametrize("rows", [2, 3])
def test_small_batches_are_filled_row_by_row(xgrammar: XGrammarBackend, rows: int) -> None:
    calls = []
    compiled = xgrammar.compile(SPECS["choice"])

    class Counting:
        pays_from = 3

        def fill(self, windows: Sequence[Window], flat: Words) -> list[int | MatcherFailure]:
            calls.append(len(windows))
            return compiled.filler.fill(windows, flat)

    counting = Counting()
    matchers = [compiled.matcher() for _ in range(rows)]
    for matcher in matchers:
        matcher._filler = counting
    bitmask = np.full((rows, 1, words(VOCAB)), ALL_ALLOWED, dtype=np.int32)
    fill_batch([(matcher, [], row) for row, matcher in enumerate(matchers)], bitmask)
    assert calls == ([3] if rows == 3 else [])
    assert (bitmask == bitmask[0]).all()
    assert allowed(bitmask[0, 0]) == set(next_tokens(matchers[0]))


def test_a_failed_matcher_closes_its_row_and_the_batch_goes_on(backend: GrammarBackend) -> None:
    good, bad, other = (backend.compile(SPECS["anything"]).matcher() for _ in range(3))
    with pytest.raises(Exception, match="cannot undo"):
        bad.rollback(3)
    bitmask = np.full((3, 2, words(VOCAB)), ALL_ALLOWED, dtype=np.int32)
    counts, failures = fill_batch([(good, [70], 0), (bad, [70], 1), (other, [], 2)], bitmask)
    assert counts == [1, 0, 0]
    assert set(failures) == {1}
    assert allowed(bitmask[1, 0]) == set(STOPS)
    assert allowed(bitmask[0, 1]) > set(STOPS)


@pytest.mark.parametrize("name", BACKENDS)
def test_a_dead_end_found_in_a_batch_fails_its_own_row(name: str) -> None:
    # A vocabulary that can write "a" and "c" but not "b".
    plain = Tokenizer(models.WordLevel({"<eos>": 0, "a": 1, "c": 2}, unk_token="<eos>"))
    backend = make_backend(name, wrapped(plain), 3, stops=[0], fill_threads=2)
    compiled = backend.compile(GrammarSpec("regex", "ab|c"))
    stuck, early, fine = (compiled.matcher() for _ in range(3))
    stuck.advance([1])
    bitmask = np.full((3, 2, 1), ALL_ALLOWED, dtype=np.int32)
    counts, failures = fill_batch([(stuck, [], 0), (early, [1], 1), (fine, [2], 2)], bitmask)
    assert counts == [0, 1, 1]
    assert set(failures) == {0}
    assert [[allowed(row) for row in each] for each in bitmask] == [
        [{0}, {0}],
        [{1, 2}, {0}],  # the request has not failed: the draft into the dead end is only a draft
        [{1, 2}, {0}],
    ]
    assert not early.failed
    early.advance([2])


def test_a_mask_that_could_only_be_filled_in_a_copy_is_refused(xgrammar: XGrammarBackend) -> None:
    wide = np.full((4, 1, words(VOCAB)), ALL_ALLOWED, dtype=np.int32)
    matchers = [xgrammar.compile(SPECS["choice"]).matcher() for _ in range(2)]
    with pytest.raises(ValueError, match="C-contiguous"):
        fill_batch([(each, [], row) for row, each in enumerate(matchers)], wide[::2])
    assert (wide == ALL_ALLOWED).all()


@pytest.mark.parametrize("name", BACKENDS)
def test_drafts_that_spell_nothing_end_the_walk_and_no_library_speaks(
    name: str, tokenizer: PreTrainedTokenizerFast, capfd: pytest.CaptureFixture[str]
) -> None:
    """The service writes JSON to standard error, a line each; libraries write there themselves."""
    matcher = make_backend(name, tokenizer).compile(SPECS["regex"]).matcher()
    first = next_tokens(matcher)[0]
    capfd.readouterr()
    for token in (PAD, VOCAB - 1):
        drafts = (first, token, first)
        masks = np.zeros((2, 4, words(VOCAB)), np.int32)
        assert matcher.fill_window(drafts, masks[0]) == 1
        assert fill_batch([(matcher, drafts, 0)], masks[1:]) == ([1], {})
        assert not matcher.accept(token)
    assert capfd.readouterr() == ("", "")
