"""Kernels that write the noise down, which those of the package never do."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from stepweave.sampling.kernels.noise import EXACT, _from_words, gumbel

TILE = 64


def tiles(seeds: Tensor, positions: Tensor, purpose: int, vocab: int) -> Tensor:
    """Noise `[L, V]`."""
    out = torch.empty(len(seeds), vocab, device=seeds.device)
    kernel: Any = _tiles
    kernel[(len(seeds), triton.cdiv(vocab, TILE))](
        seeds, positions, purpose, out, vocab, TILE=TILE, **EXACT
    )
    return out


def of_words(words: Tensor) -> Tensor:
    """The noise of `words[N]`, int64; N a power of two."""
    out = torch.empty(len(words), device=words.device)
    kernel: Any = _of_words
    kernel[(1,)](words, out, SIZE=len(words), **EXACT)
    return out


@triton.jit  # type: ignore[untyped-decorator]
def _tiles(seeds, positions, purpose, out, vocab, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    line, first = tl.program_id(0), tl.program_id(1) * TILE
    why = tl.full([], 0, tl.int64) + purpose
    drawn = gumbel(tl.load(seeds + line), tl.load(positions + line), why, first, TILE)
    token = first + tl.arange(0, TILE)
    tl.store(out + line * vocab + token, drawn, mask=token < vocab)


@triton.jit  # type: ignore[untyped-decorator]
def _of_words(words, out, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, SIZE)
    tl.store(out + at, _from_words(tl.load(words + at).to(tl.uint32).to(tl.float32)))
