"""Draft trees of models whose layers keep states: each token goes on from its parent's."""

from __future__ import annotations

import random
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from stepweave.models.attention import AttentionBatch
from stepweave.models.causal_lm import CausalLM
from stepweave.models.recurrent import StatePass
from stepweave.models.support import plain_experts
from stepweave.models.tree_rows import TreeRows, parents
from stepweave.nodes.tree import Tree
from tests.models.families import save_family

BLOCK = 4
PATHS = ((0,), (1,), (2,), (0, 0), (1, 0), (1, 1), (0, 0, 0), (1, 1, 0))


def test_the_parent_is_the_latest_ancestor() -> None:
    tree = Tree.of(PATHS)
    _, _, bits = tree.branches()
    assert parents(bits[None]).tolist() == [[0, *tree.parents]]


def plainly(model: Any, text: list[int]) -> Tensor:
    """`[T, V]`: the model's own logits of a whole text, without any cache."""
    with torch.inference_mode():
        found: Tensor = model(input_ids=torch.tensor([text]), use_cache=False).logits[0]
    return found


@pytest.mark.parametrize(
    "family",
    ["qwen3_next", *(pytest.param(f, marks=pytest.mark.nightly) for f in ("falcon_h1", "lfm2"))],
)
def test_each_branch_has_the_logits_of_its_own_text(family: str, tmp_path: Path) -> None:
    """Two rows, one with two of its places masked; then the text of a path that was accepted."""
    save_family(family, tmp_path)
    load: Any = AutoModelForCausalLM.from_pretrained
    plain, ours = (
        load(tmp_path, dtype=torch.float64, attn_implementation="eager") for _ in range(2)
    )
    plain_experts(plain)
    model = CausalLM.wrap(ours, invariant=False)
    cache, states = model.new_cache(32, BLOCK), model.new_states(3, 1 + len(PATHS))
    assert states is not None
    draw = random.Random(3)
    texts = [[draw.randrange(2, 90) for _ in range(length)] for length in (7, 5)]
    tables = torch.tensor([[1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12]])
    slots = torch.tensor([1, 2])

    def placed(row: int, places: list[int]) -> list[int]:
        return [
            int(tables[row, at // BLOCK]) * BLOCK + at % BLOCK if at >= 0 else 0 for at in places
        ]

    def run(
        ids: list[list[int]], at: list[list[int]], stored: list[list[int]], **tree: Any
    ) -> Tensor:
        lens = tuple(map(len, ids))
        batch = AttentionBatch(
            lens,
            tables,
            torch.tensor([*chain(*at)]),
            torch.tensor([*chain(*(placed(row, each) for row, each in enumerate(stored)))]),
            cache,
            **tree,
        )
        of_rows = StatePass(states, slots, lens, decodes=2 if tree else 0)
        with torch.inference_mode():
            return model.forward(torch.tensor([*chain(*ids)]), batch, states=of_rows)[0]

    prompt = [list(range(len(text))) for text in texts]
    run(texts, prompt, prompt)
    tree = Tree.of(PATHS)
    _, depths, bits = tree.branches()
    width = len(depths)
    real = (width, width - 2)
    windows = [[draw.randrange(2, 90) for _ in range(width)] for _ in texts]
    starts = [len(text) for text in texts]
    at, stored = (
        [
            [start + offset if place < some else -1 for place, offset in enumerate(offsets)]
            for start, some in zip(starts, real, strict=True)
        ]
        for offsets in (depths.tolist(), range(width))
    )
    rows = TreeRows(
        rows=2,
        starts=torch.tensor(starts).repeat_interleave(width),
        bits=bits.repeat(2),
        width=width,
    )
    found = run(windows, at, stored, tree=rows).view(2, width, -1)
    ways = [[place for place in range(width) if bits[node] >> place & 1] for node in range(width)]
    for row, text in enumerate(texts):
        for node in range(real[row]):
            whole = text + [windows[row][place] for place in ways[node]]
            torch.testing.assert_close(
                found[row, node], plainly(plain, whole)[-1], rtol=1e-5, atol=1e-5
            )

    accepted = [ways[width - 1], ways[4]]
    assert accepted[0] != list(range(4)), "its states do not lie in their places yet"
    versions = torch.arange(width).repeat(2, 1)
    for row, way in enumerate(accepted):
        versions[row, : len(way)] = torch.tensor(way)
        source, to = (
            torch.tensor(placed(row, [starts[row] + place for place in places]))
            for places in (way, range(len(way)))
        )
        cache.move(source, to)
    states.move(slots, versions)
    settled = [
        text + [windows[row][place] for place in way]
        for row, (text, way) in enumerate(zip(texts, accepted, strict=True))
    ]
    after = [[draw.randrange(2, 90)] for _ in texts]
    ends = [[len(text)] for text in settled]
    found = run(after, ends, ends)
    for row, text in enumerate(settled):
        torch.testing.assert_close(
            found[row], plainly(plain, text + after[row])[-1], rtol=1e-5, atol=1e-5
        )
