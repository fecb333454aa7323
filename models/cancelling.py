"""What products are tried with: sums that cancel, so that their order shows in every bit.

Two orders of a sum differ in the last bits of float32. Rounded to bfloat16 one result in some ten
thousand differs, so a trial with random numbers calls kernels equal that are not. Here every number
of a row has its negative at another place, and the matrix has equal numbers at both places: exactly
the product is zero, and what comes out is rounding alone. Kernels are chosen by shape, strides and
alignment, never by content, so the matrix may be another one that lies in the same way.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..backends.operations import address_of
from .products import laid_out

LINE = 64
"""Bytes; the alignment of new tensors, and at least that of any vector."""

LARGEST = 1 << 25
"""Elements of a matrix of which another one is made: that takes twice its memory for a moment."""

_DIFFERENT = 67
"""Lines of random numbers; matrices repeat them, as numbers of their own take long to draw."""


def cancelling(weight: Tensor, dim: int, count: int) -> tuple[Tensor, Tensor]:
    """A matrix that lies as `weight[...]`, and `[count, K]` to multiply it with.

    K is the size of `weight` in `dim`, over which products add. Every second row is plain random
    numbers; the products of the others cancel. Of a matrix that is too large to make another one
    this is the matrix itself, and all rows are random: it has so many results that some differ.
    """
    columns = weight.shape[dim]
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(count, columns, generator=generator)
    at = torch.randperm(columns, generator=generator)
    half = columns // 2
    here, there, rest = at[:half], at[half : 2 * half], at[2 * half :]
    if weight.numel() > LARGEST or _shares_elements(weight):
        return weight, rows.to(weight.device, weight.dtype)
    sizes = [size if each == dim else min(size, _DIFFERENT) for each, size in _sizes(weight)]
    numbers = torch.randn(sizes, generator=generator)
    numbers.index_copy_(dim, there, numbers.index_select(dim, here))
    rows[1::2, there] = -rows[1::2, here]
    rows[1::2, rest] = 0
    return _lying_as(weight, numbers.to(weight.device, weight.dtype)), rows.to(
        weight.device, weight.dtype
    )


def _sizes(weight: Tensor) -> list[tuple[int, int]]:
    return list(enumerate(weight.shape))


def _lying_as(weight: Tensor, numbers: Tensor) -> Tensor:
    """As `weight[...]` in memory, of `numbers[...]`, which are repeated where there are fewer."""
    for dim, size in _sizes(weight):
        if numbers.shape[dim] < size:
            again = torch.arange(size, device=numbers.device) % numbers.shape[dim]
            numbers = numbers.index_select(dim, again)
    if weight.is_mkldnn:
        return laid_out(numbers)
    spread = sum(
        (size - 1) * stride for size, stride in zip(weight.shape, weight.stride(), strict=True)
    )
    item = weight.element_size()
    room = weight.new_empty(spread + 1 + LINE // item)
    shift = (address_of(weight) - address_of(room)) % LINE // item
    return room.as_strided(weight.shape, weight.stride(), shift).copy_(numbers)


def _shares_elements(weight: Tensor) -> bool:
    """Whether elements of `weight[...]` lie at one place, as expanded ones do."""
    if weight.is_mkldnn:
        return False
    return any(
        size > 1 and not stride for size, stride in zip(weight.shape, weight.stride(), strict=True)
    )
