"""draft_model: what the smaller model is fed, and what it offers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from stepweave.nodes.data import Kept, Proposal
from stepweave.nodes.draft_model import not_fed_yet, propose
from stepweave.policies.acceptance import Coupled, Rejection
from stepweave.requests.batch import StepBatch
from tests.nodes.steps import (
    CACHE,
    LIMITS,
    SIZES,
    VOCAB,
    ByHand,
    after,
    blocks_of,
    chunk,
    decoding,
    drafts_of,
    inputs_of,
    progress_of,
    sampled_of,
    some,
)


def proposed(
    batch: StepBatch,
    progress: dict[int, tuple[int, int]],
    sampled: list[list[int]] | None,
    model: ByHand,
    *,
    forced: bool = False,
    **more: Any,
) -> Proposal | None:
    asked: dict[str, Any] = {
        "rule": Coupled(),
        "kept": None,
        "allowed": None,
        "vocab_size": VOCAB,
        **more,
    }
    fake: Any = model
    return propose(
        inputs=inputs_of(batch, progress_of(progress), drafts_of({})),
        sampled=None if sampled is None else sampled_of(sampled, width=batch.width),
        draft_kv=CACHE,
        model=fake,
        limits=LIMITS,
        sizes=replace(SIZES, forced=forced),
        recorder=None,
        **asked,
    )


def slot(row: int, position: int) -> int:
    return blocks_of(row)[position // 4] * 4 + position % 4


def test_each_row_is_fed_its_last_two_tokens_and_drafts_continue_them() -> None:
    model = ByHand()
    batch = StepBatch(9, (decoding(2), decoding(0)))
    found = some(proposed(batch, {2: (9, 6), 0: (8, 3)}, [[21, 22], [31]], model))
    # Row 2: 9 at 6, 21 at 7, 22 at 8. Row 0: 8 at 3, 31 at 4.
    first = model.passes[0]
    assert first["ids"] == [21, 22, 8, 31]
    assert first["positions"] == [7, 8, 3, 4]
    assert first["slots"] == [slot(2, 7), slot(2, 8), slot(0, 3), slot(0, 4)]
    assert (first["query_lens"], first["lines"]) == ((2, 2), [1, 3])
    drafts = [[after(22, 8), after(after(22, 8), 9)], [after(31, 4), after(after(31, 4), 5)]]
    assert found.tokens.tolist() == drafts
    assert some(found.valid).tolist() == [2, 2]
    assert found.log_probs is None
    second = model.passes[1]
    assert (second["ids"], second["positions"]) == ([drafts[0][0], drafts[1][0]], [9, 5])
    assert second["slots"] == [slot(2, 9), slot(0, 5)]
    assert len(model.passes) == 2, "the last draft is fed with the next step's tokens"


def test_where_drafts_may_be_forced_all_of_a_window_is_fed() -> None:
    """Any of them may be another token than was drafted."""
    model = ByHand()
    batch = StepBatch(9, (decoding(2), decoding(0)))
    found = some(proposed(batch, {2: (9, 6), 0: (8, 3)}, [[21, 22], [31]], model, forced=True))
    first = model.passes[0]
    assert first["ids"] == [9, 21, 22, 0, 8, 31, 0, 0]
    assert first["positions"] == [6, 7, 8, -1, 3, 4, -1, -1]
    assert first["slots"][:3] == [slot(2, 6), slot(2, 7), slot(2, 8)]
    assert (first["query_lens"], first["lines"]) == ((4, 4), [2, 5])
    drafts = [[after(22, 8), after(after(22, 8), 9)], [after(31, 4), after(after(31, 4), 5)]]
    assert found.tokens.tolist() == drafts
    assert model.passes[1]["positions"] == [9, 5]


def test_prompt_chunks_are_fed_whole_before_drafts_are_asked_for() -> None:
    model = ByHand()
    batch = StepBatch(9, (decoding(2), chunk(0, [11, 12, 13], start=4)))
    found = some(proposed(batch, {2: (9, 6)}, [[21], [31]], model))
    prompt = model.passes[0]
    assert (prompt["ids"], prompt["positions"]) == ([11, 12, 13], [4, 5, 6])
    assert (prompt["query_lens"], prompt["lines"]) == ((3,), [])
    assert model.passes[1]["ids"] == [9, 21, 13, 31]
    assert model.passes[1]["positions"] == [6, 7, 6, 7]
    assert found.tokens[1].tolist() == [after(31, 7), after(after(31, 7), 8)]


def test_a_step_that_samples_nothing_feeds_its_prompts_and_offers_nothing() -> None:
    model = ByHand()
    batch = StepBatch(9, (chunk(0, [11, 12], samples=False),))
    assert proposed(batch, {}, None, model) is None
    assert [each["ids"] for each in model.passes] == [[11, 12]]


def test_where_no_row_may_have_drafts_nothing_is_offered() -> None:
    model = ByHand()
    batch = StepBatch(9, (decoding(0, window=1),))
    assert proposed(batch, {0: (9, 6)}, [[21]], model) is None
    assert model.passes == []


def test_a_row_that_is_not_drafted_for_is_masked_beside_those_that_are() -> None:
    model = ByHand()
    batch = StepBatch(9, (decoding(2), decoding(0, window=1), decoding(1, window=2)))
    proposed(batch, {2: (9, 6), 0: (8, 3), 1: (7, 2)}, [[21], [31], [41]], model)
    assert model.passes[0]["positions"] == [6, 7, -1, -1, 2, 3]
    assert model.passes[0]["slots"][2:4] == [0, 0], "masked tokens lie in the scratch block"
    assert model.passes[1]["positions"] == [8, -1, -1], "one draft is all that the third may have"


def test_past_the_drafters_own_context_a_row_is_offered_no_more() -> None:
    model = ByHand(context_length=9)
    batch = StepBatch(9, (decoding(2), decoding(0), decoding(1)))
    found = some(proposed(batch, {2: (9, 6), 0: (8, 7), 1: (7, 20)}, [[21], [31], [41]], model))
    assert some(found.valid).tolist() == [2, 1, 0], "drafts from positions 7, 8 and 21 on, of 9"
    assert model.passes[0]["positions"] == [6, 7, 7, 8, -1, -1]
    assert model.passes[1]["positions"] == [8, -1, -1]


def test_without_padding_only_the_tokens_that_are_new_to_the_drafter_are_fed() -> None:
    model = ByHand()
    batch = StepBatch(9, (decoding(2, window=2), decoding(0)))
    kept = Kept(torch.tensor([0, 1, 3]), (2, 1))
    progress = {2: (9, 6), 0: (8, 3)}
    found = some(proposed(batch, progress, [[21, 22], [31]], model, kept=kept))
    first = model.passes[0]
    assert (first["ids"], first["positions"]) == ([21, 22, 31], [7, 8, 4])
    assert (first["query_lens"], first["lines"]) == ((2, 1), [1, 2])
    assert found.tokens[:, 0].tolist() == [after(22, 8), after(31, 4)]


@pytest.mark.parametrize(
    ("counts", "spans"),
    [
        ([3, 1], [(0, 2), (3, 1)]),  # all drafts of the first row were kept
        ([2, 1], [(1, 1), (3, 1)]),
        ([1, 1], [(1, 1), (3, 1)]),
    ],
)
def test_the_token_before_last_is_new_only_where_every_draft_was_kept(
    counts: list[int], spans: list[tuple[int, int]]
) -> None:
    batch = StepBatch(9, (decoding(2), chunk(0, [11]), chunk(1, [12], samples=False)))
    assert not_fed_yet(batch, counts) == spans


def test_a_vocabulary_beyond_the_targets_is_not_offered() -> None:
    model = ByHand(vocab=VOCAB + 14)
    batch = StepBatch(9, (decoding(0),))
    found = some(proposed(batch, {0: (8, 3)}, [[31]], model, vocab_size=10))
    assert after(31, 4) >= 10
    assert found.tokens[0, 0] < 10


def test_where_distributions_are_compared_the_proposal_says_what_was_drawn_from() -> None:
    batch = StepBatch(9, (decoding(0, temperature=1.0), decoding(1, temperature=0.5)))
    progress = {0: (8, 3), 1: (9, 6)}
    found = some(proposed(batch, progress, [[31], [21]], ByHand(), rule=Rejection()))
    assert found.log_probs is not None
    assert found.log_probs.shape == (2, 2, VOCAB)
    # One token has logit 1 and all others 0; at half the temperature the ratio is squared.
    for row, ratio in ((0, torch.e), (1, torch.e**2)):
        best = after([31, 21][row], [4, 7][row])
        probs = found.log_probs[row, 0].exp()
        assert float(probs[best]) == pytest.approx(ratio / (ratio + VOCAB - 1), rel=1e-5)
        assert float(probs.sum()) == pytest.approx(1, rel=1e-5)
    assert some(proposed(batch, progress, [[31], [21]], ByHand())).log_probs is None
