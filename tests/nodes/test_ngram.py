"""ngram: what followed the row's last tokens earlier in its text."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from pydantic import ValidationError

from stepweave.nodes.data import Proposal, Sampled
from stepweave.nodes.ngram import NgramOptions, propose
from stepweave.nodes.ops.history import History
from stepweave.requests.batch import StepBatch
from tests.nodes.steps import (
    chunk,
    decoding,
    drafts_of,
    history,
    inputs_of,
    progress_of,
    sampled_of,
    some,
)


def text_of(row: int, tokens: Sequence[int], past: History) -> None:
    for position, token in enumerate(tokens):
        past.tokens[row, position] = token


def proposed(
    texts: dict[int, list[int]], counts: dict[int, int], options: NgramOptions
) -> Proposal:
    """For rows whose texts are these once the step's `counts` tokens are in the history."""
    past, window = history(), max(counts.values())
    progress = progress_of({row: (0, len(text) - counts[row] - 1) for row, text in texts.items()})
    batch = StepBatch(9, tuple(decoding(row) for row in texts))
    inputs = inputs_of(batch, progress, drafts_of({}), past)
    for row, text in texts.items():
        text_of(row, [*text, 41, 42], past)  # behind a text may stand refused drafts
    sampled: Sampled = sampled_of(
        [(text[-counts[row] :]) for row, text in texts.items()] if window else []
    )
    return some(propose(inputs=inputs, sampled=sampled, history=past, allowed=None, chosen=options))


def test_the_drafts_are_what_followed_the_same_tokens_before() -> None:
    found = proposed({0: [1, 2, 3, 4, 5, 1, 2, 3]}, {0: 1}, NgramOptions(longest=3))
    assert (found.tokens.tolist(), some(found.valid).tolist()) == ([[4, 5]], [2])
    assert found.log_probs is None


def test_the_longest_suffix_wins_over_a_later_shorter_one() -> None:
    text = [7, 8, 9, 20, 21, 5, 9, 30, 31, 7, 8, 9]
    assert proposed({0: text}, {0: 1}, NgramOptions(longest=3)).tokens.tolist() == [[20, 21]]
    assert proposed({0: text}, {0: 1}, NgramOptions(longest=1)).tokens.tolist() == [[30, 31]]


def test_a_suffix_shorter_than_asked_for_is_not_looked_up() -> None:
    text = [9, 20, 21, 5, 9]
    assert some(proposed({0: text}, {0: 1}, NgramOptions(shortest=1)).valid).tolist() == [2]
    found = proposed({0: text}, {0: 1}, NgramOptions(longest=3, shortest=2))
    assert (found.tokens.tolist(), some(found.valid).tolist()) == ([[-1, -1]], [0])


def test_the_tokens_that_the_step_settled_count_row_by_row() -> None:
    texts = {1: [1, 2, 3, 4, 1, 2], 3: [5, 6, 7, 8, 9, 5, 6]}
    found = proposed(texts, {1: 1, 3: 2}, NgramOptions(longest=3))
    assert found.tokens.tolist() == [[3, 4], [7, 8]]


def test_what_stands_behind_a_text_is_not_looked_at() -> None:
    """Refused drafts 41, 42 follow the text; they are neither its end nor what followed."""
    found = proposed({0: [41, 2, 3, 4]}, {0: 1}, NgramOptions(longest=1))
    assert some(found.valid).tolist() == [0]


def test_there_is_no_proposal_without_sampling_rows_or_where_no_drafts_are_wanted() -> None:
    options, past = NgramOptions(), history()
    silent = inputs_of(StepBatch(9, (chunk(0, [3, 4], samples=False),)), progress_of({}))
    assert propose(inputs=silent, sampled=None, history=past, allowed=None, chosen=options) is None
    narrow = inputs_of(StepBatch(9, (decoding(0, window=1),)), progress_of({0: (3, 4)}))
    sampled = sampled_of([[5]])
    assert (
        propose(inputs=narrow, sampled=sampled, history=past, allowed=None, chosen=options) is None
    )


def test_the_shortest_suffix_is_no_longer_than_the_longest() -> None:
    with pytest.raises(ValidationError, match="shortest 4 is more than longest 3"):
        NgramOptions(shortest=4)
