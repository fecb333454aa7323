"""Of how many queries and keys attention in a fixed order is made up."""

from dataclasses import dataclass
from math import gcd

import torch
from torch import Tensor
from torch.nn import functional as F

UNIT = 64
"""Keys come in multiples of it: whole vectors, which functions of single numbers take alike."""

QUERY_TILES = (4, 8, 16, 32, 64, 128)
"""Rows (query tokens times heads that share a key head) at a time that are tried."""


def blocks_per_unit(block_size: int) -> int:
    """Block tables with a multiple of so many columns have whole units of keys. Raises nothing."""
    return UNIT // gcd(UNIT, block_size)


def multiple(count: int, apart: int) -> int:
    """The least multiple of `apart` that is no less than `count`. Raises nothing."""
    return -(-count // apart) * apart


def aligned(width: int) -> int:
    """The width with which four rows of numbers start at a new cache line. Raises nothing."""
    return multiple(width, 4)


def widened(x: Tensor, width: int) -> Tensor:
    """`[..., W]` of `x[..., D]`, with zeros at the end of each row."""
    gap = width - x.shape[-1]
    return F.pad(x, (0, gap)) if gap else x


def joined(parts: list[Tensor], dim: int) -> Tensor:
    """`[...]`: all of `parts[...]`, along `dim`; a single one is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=dim)


@dataclass(frozen=True)
class Like:
    """Type and device of all numbers."""

    dtype: torch.dtype
    device: torch.device
