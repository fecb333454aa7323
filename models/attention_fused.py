"""The library's fused attention on the CPU, where its sums have one order.

It takes a tile of queries and a part of the keys at a time, and the parts one after the other, so
that longer block tables add exact zeros at the end. But the last part is as long as there are keys,
and how a product adds depends on its length. So there is an order that is meant, of whole parts;
sizes of tiles and lengths of the last part are used if they gave its bits on trial. Libraries
choose their kernels by shape, never by content, so random numbers tell. In double precision sums in
other orders differ too seldom for that.

Keys are taken in tiles of `MOST`, since more are not tried; these are put together by what their
softmaxes summed up (Rabe and Staats, arXiv:2112.05682).

Shapes: R rows (requests), h key/value heads, M packed queries of a row and head, C keys of a row, a
multiple of `UNIT`, D and D' widths of keys and values, W the larger of them and what aligns it.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import cache, reduce
from itertools import count

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from .attention_tiles import QUERY_TILES, UNIT, Like, aligned, multiple, widened
from .invariant import elementwise
from .kernels.reference import How

PART = 512
"""Keys that the library takes at a time."""

MOST = 4 * PART
"""Keys that it is given at a time."""

TILES = (*QUERY_TILES, 256, 512)
"""Queries at a time that are tried: the library works on more of them at a time if it has many."""

_FEW, _MANY = 16, 64  # queries that are compared, at least; more are, with tiles of so many


@dataclass(frozen=True)
class Fused:
    """Attention over keys `[R, h, C, D]` and values `[R, h, C, D']` whose sums have one order."""

    queries: tuple[int, ...]
    """Ascending: numbers of queries at a time."""
    ends: frozenset[int]
    """How many keys the last part may have."""
    width: int  # W
    value_dim: int
    most: int = MOST

    def keys_for(self, least: int, step: int) -> int:
        """As `Way.keys_for`."""
        sizes = count(multiple(least, step), step)
        return next(n for n in sizes if (n % PART or PART) in self.ends)

    def laid(self, query: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """`[R, h, M, W]`, `[R, h, C, W]`, `[R, h, C, W]`: `query[R, h, M, D]`, `k[R, h, C, D]` and
        `v[R, h, C, D']` as `attend` takes them.
        """
        return widened(query, self.width), widened(k, self.width), widened(v, self.width)

    def attend(
        self, query: Tensor, k: Tensor, v: Tensor, bias: Tensor, how: How, sinks: Tensor | None
    ) -> Tensor:
        """`[R, h, M, D']` of `query[R, h, M, W]`, `k[R, h, C, W]`, `v[R, h, C, W]`,
        `bias[R, 1, M, C]` and `sinks[1, h, M, 1]`; as `Way.attend`, but for a soft cap.
        """
        if k.shape[2] <= self.most:
            mixed, summed = _fused(query, k, v, bias, how.scaling)
        else:
            places = range(0, k.shape[2], self.most)
            tiles = (slice(place, place + self.most) for place in places)
            mixed, summed = _together(
                [
                    (
                        *_fused(query, k[:, :, at], v[:, :, at], bias[..., at], how.scaling),
                        bias[..., at].amax(-1) == -torch.inf,
                    )
                    for at in tiles
                ]
            )
        if sinks is not None:
            mixed = mixed * elementwise(torch.sigmoid, summed[..., None] - sinks)
        return mixed[..., : self.value_dim]


def _fused(
    query: Tensor, k: Tensor, v: Tensor, bias: Tensor, scaling: float
) -> tuple[Tensor, Tensor]:
    """Mixtures `[R, h, M, W]`, and the logarithms `[R, h, M]` of what the softmaxes summed up."""
    of_cpu = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    mixed, summed = of_cpu(query, k, v, attn_mask=bias, scale=scaling)
    return mixed, summed


def _together(parts: list[tuple[Tensor, Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """The same over all keys, of parts, each with whether `[R, 1, M]` a row sees none of it."""
    sums = [summed.masked_fill(empty, -torch.inf) for _, summed, empty in parts]
    top = reduce(torch.maximum, sums)
    shares = [elementwise(torch.exp, each - top) for each in sums]
    total = reduce(torch.add, shares)
    mixed = reduce(
        torch.add, (share[..., None] * part[0] for share, part in zip(shares, parts, strict=True))
    )
    return mixed / total[..., None], top + elementwise(torch.log, total)


@cache
def fused(key_dim: int, value_dim: int, like: Like, threads: int) -> Fused | None:
    """For keys `[R, h, C, D]` and values `[R, h, C, D']`, with so many threads; None where sums
    have no one order. Raises nothing.
    """
    if like.dtype != torch.float32:
        return None
    width = aligned(max(key_dim, value_dim))
    with _disable_current_modes(), suppress(NotImplementedError):  # there is none for the device
        trial = _Trial(width, like)
        ends = frozenset(filter(trial.may_end, range(UNIT, PART + 1, UNIT)))
        queries = tuple(size for size in TILES if trial.may_take(size, ends))
        if TILES[0] in queries and trial.adds_in_parts():
            return Fused(queries, ends, width, value_dim)
    return None


class _Trial:
    """Attention of two heads to one row of keys, of which queries see some."""

    def __init__(self, width: int, like: Like) -> None:
        self._draw = torch.Generator().manual_seed(width)
        self._like = like
        self._query, self._k, self._v = (
            self._random(count, width) for count in (TILES[-1], MOST, MOST)
        )

    def may_end(self, end: int) -> bool:
        """Whether the last part may have `end` keys."""
        return all(
            self._same(_MANY, before + 1, before + end, (_MANY, before + end), before + PART)
            for before in (0, PART)
        )

    def may_take(self, size: int, ends: frozenset[int]) -> bool:
        """Whether so many queries may be taken at a time."""
        few, many = max(size, _FEW), max(size, _MANY)
        return self._same(many, 1, 2 * PART, (size, 2 * PART), 2 * PART) and all(
            self._same(few, 1, end, (size, end), PART) for end in ends
        )

    def adds_in_parts(self) -> bool:
        """Whether parts that nobody sees change nothing."""
        ends = range(PART, MOST, PART)
        return all(self._same(_FEW, end - PART, end, (_FEW, end), MOST) for end in ends)

    def _same(self, rows: int, first: int, last: int, how: tuple[int, int], keys: int) -> bool:
        """Whether queries that see from `first` to `last` keys, in tiles of a size and over a
        number of keys, get what they get in tiles of `_MANY`, which is meant, over `keys`.
        """
        seen = torch.randint(first, last + 1, (rows,), generator=self._draw)
        hidden = torch.arange(keys) >= seen[:, None]
        bias = torch.zeros(1, 1, rows, keys).masked_fill_(hidden, -torch.inf)
        bias = bias.to(self._like.device, self._like.dtype)
        return torch.equal(self._of(bias, *how), self._of(bias, min(rows, _MANY), keys))

    def _of(self, bias: Tensor, size: int, keys: int) -> Tensor:
        rows, k, v = bias.shape[2], self._k[:, :, :keys], self._v[:, :, :keys]
        tiles = (slice(first, first + size) for first in range(0, rows, size))
        parts = [
            _fused(self._query[:, :, tile], k, v, bias[:, :, tile, :keys], 0.3)[0] for tile in tiles
        ]
        return torch.cat(parts, dim=2)

    def _random(self, count: int, width: int) -> Tensor:
        numbers = torch.randn(1, 2, count, width, generator=self._draw)
        return numbers.to(self._like.device, self._like.dtype)
