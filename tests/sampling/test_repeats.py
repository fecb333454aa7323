"""DRY against a plain loop, repeated n-grams against the processor of transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers.generation.logits_process import NoRepeatNGramLogitsProcessor

from stepweave.sampling.repeats import Matches, apply_dry, ban_ngrams, find_matches
from tests.sampling import plain_edits
from tests.sampling.windows import GARBAGE, Window, tried, windows

VOCAB = 3
LONGEST = 6
DRY = st.fixed_dictionaries(
    {
        "multiplier": st.floats(0.1, 5.0),
        "base": st.floats(1.0, 5.0),
        "allowed_length": st.integers(1, 4),
        "last_n": st.sampled_from([-1, 1, 2, 5, 100]),
    }
)
BREAKERS = st.lists(st.integers(0, VOCAB - 1), max_size=2)


def matches_of(window: Window, longest: int = LONGEST) -> Matches:
    return find_matches(window.drafts, window.history, window.window_start, window.vocab, longest)


def dried(
    window: Window,
    settings: Sequence[dict[str, Any]],
    breakers: Sequence[Sequence[int]],
    longest: int = LONGEST,
) -> Tensor:
    """Each row with settings and breakers of its own."""
    padded = torch.full((len(breakers), 3), -1)
    for row, tokens in enumerate(breakers):
        padded[row, : len(tokens)] = torch.tensor(tokens)

    def each(name: str) -> Tensor:
        return torch.tensor([setting[name] for setting in settings], dtype=torch.float64)

    return apply_dry(
        window.logits,
        matches_of(window, longest),
        each("multiplier"),
        each("base"),
        each("allowed_length").long(),
        each("last_n").long(),
        padded,
    )


@tried
@given(windows(VOCAB), st.data())
def test_each_place_loses_what_a_plain_loop_takes_off(window: Window, data: st.DataObject) -> None:
    settings: list[dict[str, Any]] = [data.draw(DRY) for _ in window.rows]
    breakers = [data.draw(BREAKERS) for _ in window.rows]
    ours = dried(window, settings, breakers)
    for row in window.rows:
        for place, context in enumerate(window.contexts(row)):
            expected = window.logits[row, place].clone()
            taken = plain_edits.dry(
                context, **settings[row], breakers=breakers[row], longest=LONGEST
            )
            for token, penalty in taken.items():
                expected[token] -= penalty
            torch.testing.assert_close(ours[row, place], expected)


@tried
@given(windows(VOCAB), st.data())
def test_each_place_bans_what_would_complete_an_ngram_again(
    window: Window, data: st.DataObject
) -> None:
    sizes = [data.draw(st.integers(0, LONGEST + 1)) for _ in window.rows]
    ours = ban_ngrams(window.logits, matches_of(window), torch.tensor(sizes))
    for row in window.rows:
        for place, context in enumerate(window.contexts(row)):
            expected = window.logits[row, place][None].clone()
            if sizes[row]:
                processor = NoRepeatNGramLogitsProcessor(sizes[row])
                expected = processor(torch.tensor([context]), expected)
            assert torch.equal(ours[row, place], expected[0])


def test_a_repetition_over_prompt_history_and_drafts_by_hand() -> None:
    window = Window(
        logits=torch.zeros(1, 3, 4),
        drafts=torch.tensor([[1, 2]]),
        history=torch.tensor([[0, 1, 2, 3, 0, 9]], dtype=torch.int32),
        window_start=torch.tensor([4]),
        prompt=torch.tensor([2]),
    )
    settings = {"multiplier": 0.5, "base": 2.0, "allowed_length": 2, "last_n": -1}
    assert dried(window, [settings], [()])[0].tolist() == [
        [0, 0, 0, 0],  # … 3 0: one token stands earlier, before 1
        [0, 0, -0.5, 0],  # … 0 1: before 2
        [0, 0, 0, -1.0],  # … 0 1 2: before 3
    ]
    assert dried(window, [settings], [(1,)])[0].tolist() == [[0] * 4] * 3, "broken at 1"
    assert dried(window, [settings], [(3,)])[0, 1].tolist() == [0, 0, -0.5, 0]
    assert dried(window, [settings], [(3,)])[0, 2].tolist() == [0] * 4, "a breaker is spared"
    banned = ban_ngrams(window.logits, matches_of(window), torch.tensor([2]))[0]
    inf = float("inf")
    assert banned.tolist() == [[0, -inf, 0, 0], [0, 0, -inf, 0], [0, 0, 0, -inf]]


def test_lengths_end_at_the_longest_and_powers_are_those_of_a_plain_program() -> None:
    places = 120
    window = Window(
        logits=torch.zeros(1, 1, 2, dtype=torch.float64),
        drafts=torch.empty(1, 0, dtype=torch.int64),
        history=torch.zeros(1, places, dtype=torch.int32),
        window_start=torch.tensor([places - 1]),
        prompt=torch.tensor([1]),
    )
    settings = {"multiplier": 3.0, "base": 1.75, "allowed_length": 2, "last_n": -1}
    ours = dried(window, [settings], [()], longest=50)
    assert ours[0, 0, 0] == pytest.approx(-3.0 * 1.75**48, rel=1e-12)
    assert ours[0, 0, 1] == 0


@tried
@given(windows(VOCAB), st.sampled_from(GARBAGE), DRY, BREAKERS, st.integers(1, LONGEST))
def test_what_is_no_token_has_no_influence(
    window: Window, filler: int, settings: dict[str, Any], breakers: list[int], size: int
) -> None:
    spoiled, rows = window.spoiled(filler), len(window.window_start)
    assert torch.equal(
        dried(window, [settings] * rows, [breakers] * rows),
        dried(spoiled, [settings] * rows, [breakers] * rows),
    )
    sizes = torch.full((rows,), size)
    assert torch.equal(
        ban_ngrams(window.logits, matches_of(window), sizes),
        ban_ngrams(window.logits, matches_of(spoiled), sizes),
    )


@tried
@given(windows(VOCAB), st.data())
def test_a_row_comes_out_the_same_alone_and_where_others_look_further_back(
    window: Window, data: st.DataObject
) -> None:
    settings: list[dict[str, Any]] = [data.draw(DRY) for _ in window.rows]
    breakers = [data.draw(BREAKERS) for _ in window.rows]
    sizes = torch.tensor([data.draw(st.integers(0, 3)) for _ in window.rows])
    whole = dried(window, settings, breakers)
    banned = ban_ngrams(window.logits, matches_of(window), sizes)
    for row in window.rows:
        one, at = window.only(row), slice(row, row + 1)
        assert torch.equal(dried(one, settings[at], breakers[at]), whole[at])
        assert torch.equal(ban_ngrams(one.logits, matches_of(one, 2), sizes[at]), banned[at])


@tried
@given(windows(VOCAB), st.sampled_from([torch.float64, torch.float32, torch.bfloat16]))
def test_neutral_rows_keep_their_bits(window: Window, dtype: torch.dtype) -> None:
    logits = window.logits.to(dtype)
    logits[:, :, 0] = float("-inf")
    rows = len(window.window_start)
    zeros = torch.zeros(rows, dtype=torch.int64)
    matches = matches_of(window)
    breakers = torch.full((rows, 2), -1)
    result = apply_dry(logits, matches, zeros.double(), zeros + 1.0, zeros + 1, zeros - 1, breakers)
    result = ban_ngrams(result, matches, zeros)
    assert result.dtype == dtype
    assert torch.equal(result, logits)
