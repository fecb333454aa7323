"""Following the way that begins with the newest tokens, against loops over lists."""

from __future__ import annotations

import random

import pytest
import torch

from stepweave.sampling.following import follow


def followed(ways: list[list[int]], tokens: list[int], k: int) -> list[int]:
    for way in ways:
        if way[: len(tokens)] == tokens:
            return way[len(tokens) : len(tokens) + k]
    return []


@pytest.mark.parametrize("seed", range(30))
def test_drafts_are_the_rest_of_the_first_way_that_fits(seed: int) -> None:
    draw = random.Random(seed)
    rows, k = draw.randrange(1, 5), draw.randrange(1, 5)
    window = draw.randrange(1, k + 2)
    length, count = window + k, draw.randrange(1, 4)
    ways = torch.full((rows, count, length), -1, dtype=torch.int32)
    tokens, counts = torch.full((rows, window), -1), torch.zeros(rows, dtype=torch.int64)
    expected = []
    for row in range(rows):
        mine = [
            [draw.randrange(2) for _ in range(draw.randrange(length + 1))] for _ in range(count)
        ]
        said = [draw.randrange(2) for _ in range(draw.randrange(1, window + 1))]
        for way, each in enumerate(mine):
            ways[row, way, : len(each)] = torch.tensor(each, dtype=torch.int32)
        tokens[row, : len(said)], counts[row] = torch.tensor(said), len(said)
        expected.append(followed(mine, said, k))
    drafts, valid = follow(ways, tokens, counts, k)
    assert drafts.dtype == valid.dtype == torch.int64
    assert valid.tolist() == [len(each) for each in expected]
    assert drafts.tolist() == [each + [-1] * (k - len(each)) for each in expected]
