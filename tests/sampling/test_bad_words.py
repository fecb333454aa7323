"""Forbidden sequences against the processor of transformers, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers.generation.logits_process import NoBadWordsLogitsProcessor

from stepweave.sampling.bad_words import ban_bad_words
from tests.sampling.windows import GARBAGE, Window, tried, windows

Words: TypeAlias = Sequence[tuple[int, Sequence[int]]]
INF = float("inf")
VOCAB = 3


def ban(window: Window, words: Words, longest: int, padding: int = -1) -> Tensor:
    tokens = torch.full((len(words), longest), padding)
    for entry, (_, word) in enumerate(words):
        tokens[entry, longest - len(word) :] = torch.tensor(word)
    return ban_bad_words(
        window.logits,
        window.drafts,
        window.history,
        window.window_start,
        torch.tensor([sample_index for sample_index, _ in words], dtype=torch.int64),
        torch.tensor([len(word) for _, word in words], dtype=torch.int64),
        tokens,
    )


def words(rows: int) -> st.SearchStrategy[list[tuple[int, list[int]]]]:
    word = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=4)
    return st.lists(st.tuples(st.integers(-1, rows - 1), word), max_size=6)


@tried
@given(windows(VOCAB), st.data(), st.integers(4, 6))
def test_each_place_bans_what_would_complete_a_word(
    window: Window, data: st.DataObject, longest: int
) -> None:
    chosen = data.draw(words(len(window.window_start)))
    ours = ban(window, chosen, longest)
    for row in window.rows:
        own = [list(word) for sample_index, word in chosen if sample_index == row]
        if not own:
            assert torch.equal(ours[row], window.logits[row])
            continue
        processor = NoBadWordsLogitsProcessor(own)
        for window_position, context in enumerate(window.contexts(row)):
            expected = processor(
                torch.tensor([context]), window.logits[row, window_position][None]
            )[0]
            assert torch.equal(ours[row, window_position], expected)


def test_a_word_over_prompt_history_and_drafts_by_hand() -> None:
    window = Window(
        logits=torch.zeros(1, 3, 4),
        drafts=torch.tensor([[2, 3]]),
        history=torch.tensor([[0, 1, 9, 9]], dtype=torch.int32),
        window_start=torch.tensor([1]),
        prompt=torch.tensor([1]),
    )
    chosen = [(0, [0, 1, 2, 3]), (0, [3, 0]), (0, [2, 1, 2, 3, 1])]
    assert ban(window, chosen, 5)[0].tolist() == [
        [0, 0, 0, 0],
        [0, 0, 0, -INF],  # 0 1 | 2 was read
        [-INF, 0, 0, 0],  # 3 was read; the word of five tokens never found its 2 before 1
    ]


@tried
@given(windows(VOCAB), st.data(), st.sampled_from(GARBAGE), st.integers(0, VOCAB))
def test_what_is_no_token_has_no_influence(
    window: Window, data: st.DataObject, filler: int, padding: int
) -> None:
    chosen = data.draw(words(len(window.window_start)))
    clean = ban(window, chosen, 5)
    assert torch.equal(clean, ban(window.spoiled(filler), chosen, 5, padding))


@tried
@given(windows(VOCAB), st.data())
def test_a_row_comes_out_the_same_alone(window: Window, data: st.DataObject) -> None:
    chosen = data.draw(words(len(window.window_start)))
    whole = ban(window, chosen, 4)
    for row in window.rows:
        own = [(0 if sample_index == row else -1, word) for sample_index, word in chosen]
        assert torch.equal(ban(window.only(row), own, 4), whole[row : row + 1])


def test_a_draft_after_none_completes_nothing() -> None:
    window = Window(
        logits=torch.zeros(1, 3, 3),
        drafts=torch.tensor([[-1, 2]]),
        history=torch.zeros(1, 1, dtype=torch.int64),
        window_start=torch.tensor([0]),
        prompt=torch.tensor([1]),
    )
    assert torch.equal(ban(window, [(0, [2, 1])], 2), window.logits)


def test_single_tokens_are_banned_everywhere_even_without_room_for_a_context() -> None:
    window = Window(
        logits=torch.zeros(2, 2, 3),
        drafts=torch.tensor([[-1], [0]]),
        history=torch.zeros(2, 1, dtype=torch.int64),
        window_start=torch.zeros(2, dtype=torch.int64),
        prompt=torch.ones(2, dtype=torch.int64),
    )
    result = ban(window, [(1, [2]), (-1, [0])], 1)
    assert torch.equal(result[0], window.logits[0])
    assert result[1].tolist() == [[0, 0, -INF]] * 2
    assert torch.equal(ban(window, [], 3), window.logits)
