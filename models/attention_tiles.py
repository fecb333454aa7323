"""Of how many queries and keys attention in a fixed order is made up."""

from dataclasses import dataclass
from math import gcd

import torch
from torch import Tensor

UNIT = 64
"""Keys come in multiples of it: whole vectors, which functions of single numbers take alike."""

QUERY_TILES = (4, 8, 16, 32, 64, 128)
"""Rows (query tokens times heads that share a key head) at a time that are tried."""


def blocks_per_unit(block_size: int) -> int:
    """Block tables with a multiple of so many columns have whole units of keys. Raises nothing."""
    return UNIT // gcd(UNIT, block_size)


def joined(parts: list[Tensor], dim: int) -> Tensor:
    """`[...]`: all of `parts[...]`, along `dim`; a single one is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=dim)


@dataclass(frozen=True)
class Like:
    """Type and device of all numbers."""

    dtype: torch.dtype
    device: torch.device
