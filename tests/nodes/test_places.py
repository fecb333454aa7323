"""Where tokens lie in the paged cache, by block tables."""

from __future__ import annotations

import torch

from stepweave.nodes.ops.places import ahead, cache_slots_of

BLOCK = 4
TABLES = torch.tensor([[3, 5, 2], [0, 0, 0]])
"""Of a request, and of a row by which a step is rounded up: blocks of the scratch block alone."""


def test_places_of_a_request_lie_in_its_blocks() -> None:
    positions = torch.tensor([[2, 5, 11, -1]])
    expected = [[3 * BLOCK + 2, 5 * BLOCK + 1, 2 * BLOCK + 3, 0]]
    assert cache_slots_of(TABLES[:1], positions, BLOCK).tolist() == expected


def test_rows_that_round_a_step_up_may_stand_anywhere_in_the_scratch_block() -> None:
    """Nobody asks where they are while all requests have room: they may be before the first token,
    or behind the last that there could be."""
    for first in (-1, 3 * BLOCK - 1, 50):
        found = ahead(TABLES, torch.tensor([4, first]), 3, BLOCK, None, torch.tensor([3, 0]))
        assert found.valid is None
        assert found.slots[0].tolist() == [5 * BLOCK, 5 * BLOCK + 1, 5 * BLOCK + 2]
        assert all(0 <= slot < BLOCK for slot in found.slots[1].tolist()), first
