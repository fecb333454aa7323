"""Each family on the paged cache says what its own `generate` says."""

import random

import pytest
import torch

from stepweave.models.causal_lm import CausalLM
from stepweave.models.testing import FAMILIES, PagedRows, own_greedy, tiny_model

COUNT = 24
FAMILY = pytest.mark.parametrize("family", sorted(FAMILIES))


def prompts(seed: int, rows: int = 3) -> dict[str, list[int]]:
    draw = random.Random(seed)
    return {
        f"request{row}": [draw.randrange(96) for _ in range(draw.randint(1, 21))]
        for row in range(rows)
    }


def greedy(
    rows: PagedRows, wanted: dict[str, list[int]], lengths: dict[str, int], seed: int
) -> dict[str, list[int]]:
    """Feed the wanted sequences in random chunks and windows, in random company.

    Returns the greedy token at every position from the end of the prompt on. Windows of decode
    rows are teacher-forced; now and then their end is replaced by wrong drafts and rejected.
    """
    draw = random.Random(seed)
    fed = dict.fromkeys(wanted, 0)
    said: dict[str, list[int]] = {name: [] for name in wanted}
    while pending := [name for name in wanted if fed[name] < len(wanted[name])]:
        company = draw.sample(pending, draw.randint(1, len(pending)))
        chunks, wrong = [], {}
        for name in company:
            left = len(wanted[name]) - fed[name]
            prefill = fed[name] < lengths[name]
            size = min(draw.randint(1, 11 if prefill else 4), left)
            new = wanted[name][fed[name] : fed[name] + size]
            wrong[name] = draw.randint(0, size - 1) if draw.random() < 0.3 else 0
            kept = size - wrong[name]
            chunks.append((name, new[:kept] + [(t + 1) % 96 for t in new[kept:]]))
        masked, spare = draw.choice([0, 0, 2]), draw.choice([0, 0, 20])
        for (name, new), logits in zip(
            chunks, rows.feed(*chunks, masked=masked, spare_blocks=spare), strict=True
        ):
            kept = len(new) - wrong[name]
            rows.rewind(name, wrong[name])
            for position, token in enumerate(logits[:kept].argmax(-1).tolist(), fed[name]):
                if position >= lengths[name] - 1:
                    said[name].append(token)
            fed[name] += kept
    return said


@FAMILY
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("invariant", [True, False], ids=["invariant", "fast"])
def test_greedy_tokens_are_those_of_generate(
    family: str, dtype: torch.dtype, invariant: bool
) -> None:
    model = tiny_model(family, 1, dtype)
    lm = CausalLM.wrap(model, invariant=invariant)
    asked = prompts(5)
    answers = {name: own_greedy(model, prompt, COUNT) for name, prompt in asked.items()}
    assert all(len(set(answer)) > 4 for answer in answers.values()), "too bland to prove anything"
    wanted = {name: asked[name] + answers[name][:-1] for name in asked}
    for seed in range(2):
        rows = PagedRows(lm, block_size=(4, 5)[seed], seed=seed)
        lengths = {name: len(prompt) for name, prompt in asked.items()}
        assert greedy(rows, wanted, lengths, seed) == answers
