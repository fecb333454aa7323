"""forward: which logits are asked of the target, and whose they are."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stepweave.nodes.forward import forward
from stepweave.requests.batch import StepBatch
from tests.nodes.steps import CACHE, chunk, decoding, drafts_of, inputs_of, progress_of


class Target:
    """Logits of a token are its id and its position; so are its hidden states, negated."""

    makes_logits = True

    def __init__(self) -> None:
        self.batch: Any = None

    def forward(
        self, ids: Tensor, batch: Any, lines: Tensor, arrived: None, **more: None
    ) -> tuple[Tensor, Tensor]:
        assert set(more) == {"adapters", "states", "pieces", "axes", "placed"}
        assert set(more.values()) == {None}
        self.batch = batch
        each = torch.stack([ids, batch.positions], dim=1)
        return each[lines], -each


def passed(inputs: Any) -> tuple[Any, Any, Any, Target]:
    target: Any = Target()
    return *forward(inputs=inputs, kv=CACHE, target=target, states=None, recorder=None), target


def test_without_inputs_there_is_no_pass() -> None:
    target: Any = Target()
    assert forward(inputs=None, kv=CACHE, target=target) == (None, None, None)
    assert target.batch is None


def test_logits_are_those_of_each_place_of_each_window() -> None:
    rows = (decoding(2), chunk(0, [11, 12, 13], start=4))
    inputs = inputs_of(StepBatch(7, rows), progress_of({2: (9, 6)}), drafts_of({2: [21, 22]}))
    logits, of_prompt, hidden, target = passed(inputs)
    assert logits.tolist() == [[[9, 6], [21, 7], [22, 8]], [[13, 6]] * 3]
    assert of_prompt is None
    assert hidden.tolist() == [[-9, -6], [-21, -7], [-22, -8], [-11, -4], [-12, -5], [-13, -6]]
    assert target.batch.query_lens == (3, 3)
    assert target.batch.slots.tolist() == inputs.cache_slots.tolist()
    assert target.batch.cache is CACHE


def test_a_step_that_samples_nothing_has_hidden_states_and_no_logits() -> None:
    inputs = inputs_of(StepBatch(7, (chunk(0, [11, 12], samples=False),)), progress_of({}))
    logits, of_prompt, hidden, _ = passed(inputs)
    assert logits is None
    assert of_prompt is None
    assert hidden.tolist() == [[-11, 0], [-12, -1]]


def test_prompt_tokens_that_are_asked_for_get_the_logits_that_predict_them() -> None:
    asked: dict[str, Any] = {"params": {"prompt_logprobs": 1}}
    rows = (
        decoding(1, window=1),
        chunk(0, [11, 12, 13], prompt_targets=(12, 13), **asked),
        chunk(2, [14, 15], samples=False, following=16, prompt_targets=(15, 16), **asked),
    )
    inputs = inputs_of(StepBatch(7, rows), progress_of({1: (9, 6)}))
    logits, of_prompt, _, _ = passed(inputs)
    assert logits.tolist() == [[[9, 6]], [[13, 2]]]
    assert of_prompt.tolist() == [[11, 0], [12, 1], [14, 0], [15, 1]]
