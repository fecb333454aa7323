"""Prompt look-up against a search in plain Python lists."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stepweave.sampling.lookup import propose
from tests.sampling.windows import GARBAGE, tried


def searched(tokens: list[int], k: int, longest: int, shortest: int) -> list[int]:
    """Drafts of one row, found by looking."""
    for n in range(longest, shortest - 1, -1):
        for start in range(len(tokens) - n - 1, -1, -1):
            if tokens[start : start + n] == tokens[len(tokens) - n :]:
                copied = list(tokens)
                for source in range(start + n, start + n + k):
                    copied.append(copied[source])
                return copied[len(tokens) :]
    return []


rows = st.lists(st.lists(st.integers(0, 2), max_size=14), min_size=1, max_size=4)


@tried
@given(rows, st.integers(0, 5), st.integers(1, 4), st.integers(0, 3), st.sampled_from(GARBAGE))
def test_drafts_are_what_followed_the_latest_longest_match(
    rows: list[list[int]], k: int, shortest: int, more: int, filler: int
) -> None:
    capacity = 15
    history = torch.full((len(rows), capacity), filler, dtype=torch.int32)
    for row, tokens in enumerate(rows):
        history[row, : len(tokens)] = torch.tensor(tokens)
    length = torch.tensor([len(tokens) for tokens in rows])
    drafts, valid = propose(history, length, k, shortest + more, shortest)
    assert drafts.dtype == valid.dtype == torch.int64
    for row, tokens in enumerate(rows):
        expected = searched(tokens, k, shortest + more, shortest)
        assert drafts[row].tolist() == expected + [-1] * (k - len(expected))
        assert int(valid[row]) == len(expected)


def test_small_cases_by_hand() -> None:
    def one(*tokens: int, k: int = 3, longest: int = 3, shortest: int = 1) -> list[int]:
        drafts, _ = propose(
            torch.tensor([tokens]), torch.tensor([len(tokens)]), k, longest, shortest
        )
        return [int(token) for token in drafts[0]]

    assert one(1, 2, 3, 4, 5, 1, 2) == [3, 4, 5]
    assert one(1, 2, 8, 8, 1, 2, 9, 9, 1, 2, k=2) == [9, 9], "the latest"
    assert one(5, 1, 2, 7, 7, 9, 1, 2, 6, 5, 1, 2, k=2) == [7, 7], "but the longest before that"
    assert one(9, 1, 2, 5, 1, 2, 6, 9, 1, 2, k=1, longest=2) == [6], "not longer than may be"
    assert one(4, 4) == [4, 4, 4], "goes on past the end"
    assert one(1, 2, 1, k=4) == [2, 1, 2, 1]
    assert one(1, 2, 3) == [-1, -1, -1]
    assert one(1, 2, 3, 1, shortest=2) == [-1, -1, -1]
    assert one(7) == [-1, -1, -1]
    assert one(1, 1, k=0) == []
    assert one(1, 1, longest=9) == [1, 1, 1], "an n-gram longer than the row"


def test_a_full_row_can_be_searched_to_its_last_column() -> None:
    history = torch.arange(6).repeat(2)[None]
    drafts, valid = propose(history, torch.tensor([12]), 4, 3, 3)
    assert drafts.tolist() == [[0, 1, 2, 3]]
    assert valid.tolist() == [4]


@pytest.mark.parametrize(("longest", "shortest"), [(2, 3), (3, 0), (0, 0)])
def test_bounds_that_cannot_be_are_refused(longest: int, shortest: int) -> None:
    with pytest.raises(ValueError, match="an n-gram has"):
        propose(torch.zeros(1, 4).long(), torch.tensor([4]), 1, longest, shortest)


@pytest.mark.parametrize("length", [13, 14])
def test_a_row_that_goes_on_behind_its_end_disturbs_nobody(length: int) -> None:
    """Its request has ended, with steps in flight: only the other row counts."""
    history = torch.tensor([[7, 8, 9] * 4, [1, 2, 3] * 4], dtype=torch.int32)
    drafts, valid = propose(history, torch.tensor([length, 6]), 2, 3, 3)
    assert drafts[1].tolist() == [1, 2]
    assert valid[1] == 2
