"""Penalties against the processor of transformers, and against their definition by counting."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

from stepweave.sampling.penalties import apply_penalties
from tests.sampling.windows import GARBAGE, Window, tried, windows

VALUES = {
    "repetition": st.floats(0.1, 5.0),
    "presence": st.floats(-2, 2),
    "frequency": st.floats(-2, 2),
}


def penalties(window: Window, repetition: float, presence: float, frequency: float) -> Tensor:
    """All rows with the same values."""
    return apply_penalties(
        window.logits,
        window.drafts,
        window.history,
        window.window_start,
        window.prompt,
        *(
            torch.full((len(window.window_start),), value, dtype=torch.float64)
            for value in (repetition, presence, frequency)
        ),
    )


@tried
@given(windows(), *VALUES.values())
def test_each_place_is_penalized_for_what_comes_before_it(
    window: Window, repetition: float, presence: float, frequency: float
) -> None:
    ours = penalties(window, repetition, presence, frequency)
    for row in window.rows:
        prompt = int(window.prompt[row])
        for window_position, context in enumerate(window.contexts(row)):
            expected = RepetitionPenaltyLogitsProcessor(repetition)(
                torch.tensor([context]), window.logits[row, window_position][None].clone()
            )[0]
            for token, count in Counter(context[prompt:]).items():
                expected[token] -= frequency * count + presence
            torch.testing.assert_close(ours[row, window_position], expected)


def test_small_cases_by_hand() -> None:
    window = Window(
        logits=torch.tensor([[[2.0, -2.0, 1.0, 4.0]] * 3]),
        drafts=torch.tensor([[2, 2]]),
        history=torch.tensor([[0, 1, 1, 3]]),  # the prompt is 0 1; 3 is garbage
        window_start=torch.tensor([2]),
        prompt=torch.tensor([2]),
    )
    ours = penalties(window, repetition=2.0, presence=0.5, frequency=0.25)[0]
    assert ours.tolist() == [
        [1.0, -4.75, 1.0, 4.0],  # 0 and 1 were seen; 1 was written once
        [1.0, -4.75, -0.25, 4.0],  # the first draft: 1/2 - 0.5 - 0.25
        [1.0, -4.75, -0.5, 4.0],  # the second: once more by count, not by presence or repetition
    ]


@tried
@given(windows(), st.sampled_from(GARBAGE), *VALUES.values())
def test_what_is_no_token_has_no_influence(
    window: Window, filler: int, repetition: float, presence: float, frequency: float
) -> None:
    clean = penalties(window, repetition, presence, frequency)
    spoiled = penalties(window.spoiled(filler), repetition, presence, frequency)
    assert torch.equal(clean, spoiled)


@tried
@given(windows(), *VALUES.values())
def test_a_row_comes_out_the_same_alone(
    window: Window, repetition: float, presence: float, frequency: float
) -> None:
    whole = penalties(window, repetition, presence, frequency)
    for row in window.rows:
        alone = penalties(window.only(row), repetition, presence, frequency)
        assert torch.equal(alone, whole[row : row + 1])


@tried
@given(windows(), st.sampled_from([torch.float64, torch.float32, torch.bfloat16]))
def test_neutral_rows_keep_their_bits_next_to_others(window: Window, dtype: torch.dtype) -> None:
    logits = window.logits.to(dtype)
    logits[:, :, 0] = float("-inf")
    rows = torch.arange(len(window.window_start))
    neutral = rows != 0
    result = apply_penalties(
        logits,
        window.drafts,
        window.history,
        window.window_start,
        window.prompt,
        torch.where(neutral, 1.0, 1.7),
        torch.where(neutral, 0.0, 0.3),
        torch.where(neutral, 0.0, 0.1),
    )
    assert result.dtype == dtype
    assert torch.equal(result[1:], logits[1:])
    assert (result[0, :, 0] == float("-inf")).all(), "what is closed stays closed"


@pytest.mark.parametrize("name", VALUES)
def test_each_value_belongs_to_its_own_row(name: str) -> None:
    neutral = {"repetition": 1.0, "presence": 0.0, "frequency": 0.0}
    values = {key: torch.full((2,), value) for key, value in neutral.items()}
    values[name][1] = 1.5
    logits = torch.ones(2, 1, 3)
    history = torch.tensor([[0, 1], [0, 1]])
    one = torch.tensor([1, 1])
    result = apply_penalties(logits, torch.empty(2, 0).long(), history, one, one, **values)
    assert torch.equal(result[0], logits[0])
    assert not torch.equal(result[1], logits[1])
