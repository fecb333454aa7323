"""Slots, blocks and the scratch block."""

import pytest
import torch

from stepweave.models.paged_cache import LayerShape, PagedCache, bytes_per_block


def cache() -> PagedCache:
    return PagedCache([LayerShape(2, 3, 5), LayerShape(1, 4, 4)], 4, 2, torch.float32, "cpu")


def test_what_is_written_to_slots_is_gathered_by_blocks() -> None:
    paged = cache()
    k, v = torch.randn(3, 2, 3), torch.randn(3, 2, 5)
    paged.write(0, torch.tensor([6, 7, 2]), k, v)
    keys, values = paged.gather(0, torch.tensor([[3, 1], [1, 0]]))
    assert keys.shape == (2, 4, 2, 3)
    assert values.shape == (2, 4, 2, 5)
    assert torch.equal(keys[0, :3], k)
    assert torch.equal(values[0, :3], v)
    assert torch.equal(keys[1, 0], k[2])
    assert not keys[0, 3].any()
    assert not keys[1, 1:].any()
    assert not paged.keys[1].any(), "other layers are left alone"


def test_only_finite_numbers_are_stored() -> None:
    paged = cache()
    bad = torch.tensor([torch.nan, torch.inf, -torch.inf])
    paged.write(0, torch.tensor([0]), bad.expand(1, 2, 3), torch.ones(1, 2, 5))
    assert not paged.keys[0].any()
    assert torch.equal(paged.values[0][0], torch.ones(2, 5))


def test_bytes_per_block_is_what_a_block_adds_to_the_tensors() -> None:
    paged = cache()
    total = sum(x.nbytes for x in [*paged.keys, *paged.values])
    assert paged.bytes_per_block == total // 4
    assert bytes_per_block(paged.layers, 2, torch.bfloat16) == total // 8


@pytest.mark.parametrize(("blocks", "size"), [(1, 4), (0, 4), (4, 0)])
def test_a_cache_without_room_is_refused(blocks: int, size: int) -> None:
    with pytest.raises(ValueError, match=r"num_blocks|block_size"):
        PagedCache([LayerShape(1, 1, 1)], blocks, size, torch.float32, "cpu")


def test_a_gathered_copy_outlives_the_next_gather() -> None:
    paged = cache()
    paged.keys[0][2:4] = 1.0
    with torch.inference_mode():
        keys, _ = paged.gather(0, torch.tensor([[1]]))
    paged.gather(0, torch.tensor([[2]]))
    paged.gather(0, torch.tensor([[2, 3, 1]]))
    assert bool((keys == 1.0).all())
