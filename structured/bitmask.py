"""Packed token masks: their layout, and their application to logits.

A mask row holds one bit per vocabulary id, 32 to a word: bit `i % 32` of word `i // 32` is 1 if
token `i` may follow. It is the layout of the grammar libraries, so they fill our buffers directly.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Words = npt.NDArray[np.int32]
"""Packed mask words on the host."""

ALL_ALLOWED = -1
"""A word that allows all of its 32 tokens: what a row without a grammar is filled with."""

# One multiplication copies a byte into the eight bytes of an int64, one AND keeps bit i in byte i.
_SPREAD = 0x0101010101010101
_SELECT = 0x8040201008040201 - (1 << 64)  # as a signed 64-bit number


def words(vocab: int) -> int:
    """Words in one mask row for `vocab` tokens."""
    return -(-vocab // 32)


def row_allowing(tokens: Iterable[int], vocab: int) -> Words:
    """A row `[words(vocab)]` that allows just these ids; ids outside the vocabulary are an error.

    Raises:
        ValueError: an id below 0 or not below `vocab`.
    """
    allowed = np.zeros(words(vocab) * 32, dtype=np.uint8)
    for token in tokens:
        if not 0 <= token < vocab:
            raise ValueError(f"token {token} is outside the vocabulary of {vocab}")
        allowed[token] = 1
    return np.packbits(allowed, bitorder="little").view("<i4").astype(np.int32)


def apply_bitmask(logits: Tensor, bitmask: Tensor) -> Tensor:
    """The logits `[L, V]` with -inf at every token whose bit in `bitmask [L, W]` (int32) is 0.

    Asks the host nothing, on any device: no boolean indexing, no table that would have to be
    copied over first. Bits are unpacked as bytes, eight to a multiplication, so the largest
    intermediate is one byte per token, not one word (at 128k tokens a quarter of the traffic of
    shifting int32 words, an eighth of int64).

    Raises:
        ValueError: shapes or dtype do not fit. A row that is too short is refused, because both
            readings of its missing tail are wrong: allowed would fail open, forbidden would cut
            rows that have no grammar.
    """
    rows, vocab = logits.shape
    if bitmask.dtype != torch.int32:
        raise ValueError(f"bitmask must be int32, not {bitmask.dtype}")
    if bitmask.shape != (rows, words(vocab)):
        raise ValueError(
            f"bitmask has shape {tuple(bitmask.shape)}; logits {tuple(logits.shape)} need "
            f"({rows}, {words(vocab)})"
        )
    octets = bitmask.reshape(-1).view(torch.uint8).to(torch.int64)  # [L * 4 W]
    spread = octets.mul_(_SPREAD).bitwise_and_(_SELECT).view(torch.uint8)  # [L * 32 W]
    blocked = (spread == 0).view(rows, 32 * words(vocab))
    return logits.masked_fill(blocked[:, :vocab], float("-inf"))
