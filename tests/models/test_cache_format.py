"""Keys and values in 8 bits: how far they are from what was written, and from what they depend."""

from __future__ import annotations

from typing import get_args

import pytest
import torch

from stepweave.models.cache_dtype import CacheDType
from stepweave.models.cache_format import has_scales, narrowed, stored_as, widened
from stepweave.models.paged_cache import LayerShape, PagedCache, bytes_per_block

NARROW: tuple[CacheDType, ...] = ("int8", "float8_e4m3")
HALF_A_STEP = {"int8": 0.5 / 127, "float8_e4m3": 1 / 16}
"""Of the largest number of a head; of each number, where it has a point."""


def cache(kept: CacheDType, dtype: torch.dtype = torch.float32) -> PagedCache:
    return PagedCache([LayerShape(2, 3, 5)] * 2, 4, 2, dtype, "cpu", cache_dtype=kept)


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x * 10.0 ** torch.randint(-6, 6, shape[:-1]).double()[..., None]


@pytest.mark.parametrize("kept", NARROW)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_what_is_gathered_is_within_half_a_step_of_what_was_written(
    kept: CacheDType, dtype: torch.dtype
) -> None:
    paged = cache(kept, dtype)
    k, v = drawn(3, 2, 3).to(dtype), drawn(3, 2, 5, seed=1).to(dtype)
    paged.write(0, torch.tensor([6, 7, 2]), k, v)
    keys, values = paged.gather(0, torch.tensor([[3, 1], [1, 0]]))
    assert keys.dtype == values.dtype == dtype
    rounding = 2 * torch.finfo(dtype).eps + 1e-6
    for wanted, found in ((k, keys), (v, values)):
        whole = wanted.double()
        size = whole.abs().amax(-1, keepdim=True) if kept == "int8" else whole.abs()
        small = whole.abs().amax(-1, keepdim=True) * 2.0**-16  # below it float8 has no exponent
        allowed = size * (HALF_A_STEP[kept] + rounding) + small
        slots = torch.cat([found[0, :2], found[1, :1]]).double()
        assert bool(((slots - whole).abs() <= allowed).all())
        assert not torch.equal(slots, whole), "8 bits are fewer"
    assert not keys[1, 1:].any()
    assert not paged.keys[1].view(torch.int8).any(), "other layers are left alone"


@pytest.mark.parametrize("kept", NARROW)
def test_the_largest_number_of_a_head_is_kept_as_it_is(kept: CacheDType) -> None:
    x = torch.tensor([[1.0, -3.7, 2.0], [0.0, 0.0, 0.0], [1e-30, 2e-30, 0.0]])
    found = widened(*narrowed(x, stored_as(kept, torch.float32)), torch.float32)
    torch.testing.assert_close(found[0, 1], x[0, 1], rtol=1e-6, atol=0)
    torch.testing.assert_close(found[2, 1], x[2, 1], rtol=1e-6, atol=0)
    assert not found[1].any()


@pytest.mark.parametrize("kept", NARROW)
def test_only_finite_numbers_are_stored(kept: CacheDType) -> None:
    paged = cache(kept)
    bad = torch.tensor([torch.nan, torch.inf, 2.0])
    paged.write(0, torch.tensor([0]), bad.expand(1, 2, 3), torch.full((1, 2, 5), torch.nan))
    keys, values = paged.gather(0, torch.tensor([[0]]))
    torch.testing.assert_close(keys[0, 0], torch.tensor([[0.0, 0.0, 2.0]] * 2))
    assert not values[0, 0].any()


@pytest.mark.parametrize("kept", NARROW)
def test_what_is_stored_of_a_token_depends_on_that_token_alone(kept: CacheDType) -> None:
    k, v = drawn(9, 2, 3), drawn(9, 2, 5, seed=1)
    whole, alone = cache(kept, torch.float64), cache(kept, torch.float64)
    whole.write(0, torch.arange(2, 8), 1e9 * k[:6], v[:6])  # somebody's, before
    whole.write(0, torch.arange(1, 8), k[:7], v[:7])
    for slot in range(7, 0, -1):
        alone.write(0, torch.tensor([slot]), k[slot - 1 : slot], v[slot - 1 : slot])
    tables = torch.tensor([[0, 1, 2, 3]])
    for one, other in zip(whole.gather(0, tables), alone.gather(0, tables), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("kept", get_args(CacheDType))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bytes_per_block_is_what_a_block_adds_to_the_tensors(
    kept: CacheDType, dtype: torch.dtype
) -> None:
    paged = cache(kept, dtype)
    total = sum(each.nbytes for each in paged.tensors)
    assert paged.bytes_per_block == total // 4
    assert bytes_per_block(paged.layers, 2, dtype, kept) == total // 4
    assert has_scales(stored_as(kept, dtype)) == (kept != "auto")


def test_a_head_of_a_usual_width_takes_about_half_of_16_bits() -> None:
    layers = [LayerShape(8, 128, 128)]
    half = bytes_per_block(layers, 16, torch.bfloat16)
    assert bytes_per_block(layers, 16, torch.bfloat16, "int8") / half == 0.515625


@pytest.mark.parametrize("kept", get_args(CacheDType))
def test_tokens_and_blocks_move_with_their_scales(kept: CacheDType) -> None:
    paged = cache(kept)
    paged.write(1, torch.arange(2, 6), drawn(4, 2, 3).float(), drawn(4, 2, 5, seed=1).float())
    before = paged.gather(1, torch.tensor([[1, 2]]))
    paged.move(torch.tensor([2, 3]), torch.tensor([3, 2]))
    paged.copy_block(1, 3)
    for one, other in zip(before, paged.gather(1, torch.tensor([[3, 1, 2]])), strict=True):
        assert torch.equal(other[0, :2], one[0, [1, 0]])
        assert torch.equal(other[0, 2:4], one[0, [1, 0]])
        assert torch.equal(other[0, 4:], one[0, 2:])
