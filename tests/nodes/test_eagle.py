"""eagle: what the head is fed, shifted by one token, and what it offers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from stepweave.models import attention
from stepweave.models.causal_lm import CausalLM
from stepweave.models.eagle import EagleHead
from stepweave.models.kernels import operators
from stepweave.nodes import eagle, eagle3
from stepweave.nodes.data import Kept, Proposal
from stepweave.nodes.drafter import settled_spans
from stepweave.nodes.eagle import propose
from stepweave.policies.acceptance import Coupled, Rejection
from stepweave.requests.batch import StepBatch
from stepweave.testing.launches import Launches
from tests.nodes.ready import chain_of
from tests.nodes.steps import (
    CACHE,
    LIMITS,
    VOCAB,
    ByHand,
    after,
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
    head: ByHand,
    **more: Any,
) -> Proposal | None:
    """The hidden state of the step's token number t is t."""
    inputs = inputs_of(batch, progress_of(progress), drafts_of(more.pop("pending", {})))
    asked: dict[str, Any] = {"rule": Coupled(), "kept": None, "allowed": None, **more}
    fake: Any = head
    return propose(
        inputs=inputs,
        sampled=None if sampled is None else sampled_of(sampled, width=batch.width),
        hidden=torch.arange(len(inputs.ids), dtype=torch.float32)[:, None],
        draft_kv=CACHE,
        head=fake,
        vocab_size=VOCAB,
        limits=LIMITS,
        tree=None,
        recorder=None,
        **asked,
    )


def test_the_first_pass_is_over_the_steps_tokens_with_the_token_after_each() -> None:
    head = ByHand()
    batch = StepBatch(9, (decoding(2), chunk(0, [11, 12, 13], start=4)))
    progress, pending = {2: (9, 6)}, {2: [21, 49]}
    found = some(proposed(batch, progress, [[21, 22], [31]], head, pending=pending))
    first = head.passes[0]
    # Row 2 computed 9 at 6 and a draft at 7; the third place was refused. Row 0: 11, 12, 13 at 4.
    assert first["ids"][:2] == [21, 22]
    assert first["ids"][3:] == [12, 13, 31]
    assert first["positions"] == [6, 7, -1, 4, 5, 6]
    assert first["slots"][2] == 0, "a masked token lies in the scratch block"
    assert first["hidden"] == [[0], [1], [2], [3], [4], [5]]
    assert (first["query_lens"], first["lines"]) == ((3, 3), [1, 5])
    drafts = [[after(22, 7), after(after(22, 7), 8)], [after(31, 6), after(after(31, 6), 7)]]
    assert found.tokens.tolist() == drafts
    assert some(found.valid).tolist() == [2, 2]
    second = head.passes[1]
    assert second["ids"] == [drafts[0][0], drafts[1][0]]
    assert second["positions"] == [8, 7]
    assert second["hidden"] == [[1], [1]], "the hidden states of the first pass"


def test_a_chunk_in_the_middle_of_a_prompt_knows_what_follows_it() -> None:
    head = ByHand()
    batch = StepBatch(9, (decoding(2), chunk(0, [11, 12], samples=False, following=13)))
    found = some(proposed(batch, {2: (9, 6)}, [[21]], head))
    assert head.passes[0]["ids"][3:] == [12, 13]
    assert head.passes[0]["positions"] == [6, -1, -1, 0, 1]
    assert found.tokens.shape == (1, 2), "the chunk is offered nothing"


def test_a_step_that_samples_nothing_is_fed_and_offers_nothing() -> None:
    head = ByHand()
    batch = StepBatch(9, (chunk(0, [11, 12], samples=False, following=13),))
    assert proposed(batch, {}, None, head) is None
    [only] = head.passes
    assert (only["ids"], only["positions"], only["lines"]) == ([12, 13], [0, 1], [])


def test_where_no_row_may_have_drafts_the_head_keeps_up_and_offers_nothing() -> None:
    head = ByHand()
    batch = StepBatch(9, (chunk(0, [11, 12], window=1),))
    assert proposed(batch, {}, [[31]], head) is None
    assert [each["positions"] for each in head.passes] == [[-1, -1]], "it is never drafted for"


def test_a_row_that_is_not_drafted_for_is_masked_beside_those_that_are() -> None:
    head = ByHand()
    batch = StepBatch(9, (decoding(2), decoding(0, window=1)))
    proposed(batch, {2: (9, 6), 0: (8, 3)}, [[21], [31]], head)
    assert head.passes[0]["positions"] == [6, -1, -1, -1]
    assert head.passes[1]["positions"] == [7, -1]


def test_past_the_heads_own_context_a_row_is_offered_no_more() -> None:
    head = ByHand(context_length=8)
    batch = StepBatch(9, (decoding(2), decoding(0), decoding(1)))
    progress = {2: (9, 6), 0: (8, 7), 1: (7, 20)}
    found = some(proposed(batch, progress, [[21], [31], [41]], head))
    assert some(found.valid).tolist() == [2, 1, 0], "their last inputs are at 6, 7 and 20, of 8"
    assert head.passes[0]["positions"] == [6, -1, -1, 7, -1, -1, -1, -1, -1]
    assert head.passes[1]["positions"] == [7, -1, -1]


def test_without_padding_refused_places_are_left_out() -> None:
    head = ByHand()
    batch = StepBatch(9, (decoding(2), decoding(0)))
    kept = Kept(torch.tensor([0, 1, 3]), (2, 1))
    more = {"kept": kept, "pending": {2: [21, 49], 0: [48, 47]}}
    found = some(proposed(batch, {2: (9, 6), 0: (8, 3)}, [[21, 22], [31]], head, **more))
    first = head.passes[0]
    assert (first["ids"], first["positions"]) == ([21, 22, 31], [6, 7, 3])
    assert (first["query_lens"], first["lines"]) == ((2, 1), [1, 2])
    assert first["hidden"] == [[0], [1], [3]]
    assert found.tokens[:, 0].tolist() == [after(22, 7), after(31, 3)]


def test_the_accepted_places_of_a_window_and_all_of_a_chunk_are_real() -> None:
    rows = (decoding(2), decoding(1), chunk(0, [11, 12]), chunk(3, [13], samples=False))
    batch = StepBatch(9, rows)
    assert settled_spans(batch, [2, 3, 1]) == [(0, 2), (3, 3), (6, 2), (8, 1)]


def test_where_distributions_are_compared_the_proposal_says_what_was_drawn_from() -> None:
    batch = StepBatch(9, (decoding(0, temperature=1.0),))
    found = some(proposed(batch, {0: (8, 3)}, [[31]], ByHand(), rule=Rejection()))
    assert found.log_probs is not None
    probs = found.log_probs[0, 0].exp()
    assert float(probs[after(31, 3)]) == pytest.approx(torch.e / (torch.e + VOCAB - 1), rel=1e-5)


def test_eagle3_is_the_same_drafter_with_a_head_of_its_own() -> None:
    assert eagle3.KIND.propose is eagle.KIND.propose
    assert (eagle.KIND.options().model, eagle3.KIND.options().model) == (  # type: ignore[attr-defined]
        "embedded-eagle",
        "embedded-eagle3",
    )


@pytest.mark.parametrize(
    ("most", "launches"), [(20, 108), (32, 128)], ids=["plain", "near their end"]
)
def test_drafting_takes_no_more_launches_than_it_did(
    most: int, launches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three drafts of an EAGLE-3 head, eager, where a kernel writes keys and another attends."""
    target = CausalLM.load("embedded", invariant=False, merge=True)
    head = EagleHead.load("embedded-eagle3", target)
    monkeypatch.setattr(attention, "_by_operators", lambda device: True)
    # One kernel on a GPU, here several operations.
    monkeypatch.setattr(F, "rms_norm", lambda x, *given: x.clone())
    monkeypatch.setattr(operators, "write_now", lambda *given: given[0].sum())
    monkeypatch.setattr(operators, "attend_now", lambda query, *given: query.contiguous().neg())
    chain = chain_of(head, 3, most)
    with torch.inference_mode(), Launches() as counted:
        chain()
    assert counted.total == launches, counted.counts
