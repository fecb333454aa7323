"""How many launches the parts of a step are where kernels run: exact, so that none is added unseen.

The guide to GPUs has these numbers.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from stepweave.requests.batch import ScheduledRow
from tests.models.interpreter import Interpreter
from tests.nodes.steps import chunk, decoding

COUNTS = "tests.device.kernel_counts"


@pytest.mark.nightly
def test_three_drafts_of_an_eagle3_head(interpreted: Interpreter) -> None:
    """Where the host knows that no row comes to its end, and where one may."""
    plain, near = interpreted(f"{COUNTS}:chains", 20, 32)
    assert (plain.total(), near.total()) == (58, 62), (plain, near)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("rows", "launches"),
    [
        ((decoding(0, window=1, most=20), decoding(1, window=1, most=20)), 5),
        ((decoding(0, window=1), decoding(1, window=1)), 8),
        ((decoding(0, most=20), decoding(1, most=20)), 10),
        ((decoding(0), decoding(1)), 13),
        ((decoding(0, most=20), chunk(1, [3, 4, 5], prefix=())), 11),
    ],
    ids=["plain", "near its end", "drafts", "drafts, near their end", "with a prompt"],
)
def test_the_inputs_of_a_step(
    interpreted: Interpreter, rows: tuple[ScheduledRow, ...], launches: int
) -> None:
    """The copy to the device is one of them; writing new blocks would be one more."""
    counts: Counter[str] = interpreted(f"{COUNTS}:prepared", rows)
    assert counts.total() == launches, counts


LINE = 4096
"""Bytes of a line of 1024 logits in float32."""


@pytest.mark.parametrize(
    ("asked", "asking", "launches", "lines", "texts"),
    [
        ({}, 0, 4, 0, 0),
        ({"presence_penalty": 0.5}, 1, 44, 48.5, 2),
        ({"presence_penalty": 0.5}, 16, 40, 380, 16),
        ({"logit_bias": {3: 1.0}}, 1, 25, 5, 0),
        ({"logit_bias": {3: 1.0}}, 16, 24, 16 * 2, 0),
    ],
    ids=["nobody", "one penalty", "all penalties", "one bias", "all biases"],
)
def test_drawing_the_tokens_of_16_rows_some_of_which_change_their_logits(
    interpreted: Interpreter,
    asked: dict[str, Any],
    asking: int,
    launches: int,
    lines: float,
    texts: int,
) -> None:
    """Where one does there is room for two, an eighth. For 16 it was as much before, whoever asked.

    `lines`: what torch writes, as so many lines in float32; `texts`: those that are read.
    """
    rows = [decoding(row, window=1, **(asked if row < asking else {})) for row in range(16)]
    counts, nbytes, read = interpreted(f"{COUNTS}:sampled", rows, 1024)
    assert counts.total() == launches, counts
    assert (nbytes / LINE, read) == (lines, texts)


@pytest.mark.nightly
def test_a_pass_with_a_prompt_in_pieces(interpreted: Interpreter) -> None:
    """Of three layers: one graph around each of their calls, and what is fresh in each step."""
    usual, between, graphs = interpreted(f"{COUNTS}:mixed", "llama", torch.float32)
    assert (usual, between, graphs) == (3 * 14 + 14, 3 * 6, 3 + 1)


LAYER = {"mm": 4, "_add_norm": 2, "_rotate": 1, "_attend_split": 1, "_merge_splits": 1, "_gated": 1}
"""Of a layer with merged products whose rows do not occupy the device."""


@pytest.mark.parametrize(
    "family",
    [
        "llama",
        *(
            pytest.param(family, marks=pytest.mark.nightly)
            for family in ("qwen3", "mistral", "gemma2", "gemma3")
        ),
    ],
)
@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.nightly)], ids=str
)
def test_a_layer_of_a_model(interpreted: Interpreter, family: str, dtype: torch.dtype) -> None:
    counts, notes = interpreted(f"{COUNTS}:forward", family, dtype)
    found = {name: counts[name] for name in LAYER}
    # Beside those of the layers: the norm with which the first begins, and the output layer.
    outside = {"_add_norm": 1, "mm": 1}
    assert found == {name: 3 * each + outside.get(name, 0) for name, each in LAYER.items()}
    assert not any("did not fuse" in note for note in notes), notes
