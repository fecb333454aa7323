"""Softmax attention out of single operations, each with one order of its sums.

A tile of queries takes one product of queries and keys, one softmax, and one product of its weights
and the values, over all keys at once. Keys that a row may not see have weight zero, and add exact
zeros; so longer block tables change nothing, as long as the library adds what is left in the same
order. It need not: many keys it adds in parts, which it cuts by their number. So there is an order
that is meant,

* queries in tiles of the fewest rows that give a row the same bits anywhere in the tile,
* keys in tiles of so many that fewer of them, with zeros after, give the same bits,
* tiles of keys added one after the other,

and a larger product is used where a trial gave its bits. Libraries choose their kernels by shape,
never by content, so random numbers tell.

Shapes: R rows (requests), h key/value heads, M packed queries of a row and head, C keys of a row, a
multiple of `UNIT`, D and D' widths of keys and values, N = R · h.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache, reduce
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import _disable_current_modes

from .attention_tiles import QUERY_TILES, UNIT, Like, aligned, joined, multiple, widened
from .invariant import proven_tiles
from .kernels.reference import How

KEY_TILES = (512, 384, 256, 192, 128)
"""Keys per product that are tried for the order that is meant, from the most on."""

TRIED = 1 << 22
"""Numbers in a product and what it is made of, up to which one is tried."""


Product = Literal["scores", "mixtures"]


@dataclass
class Sums:
    """Products over keys `[N, C, D]` and values `[N, C, D']` whose sums have one order."""

    queries: tuple[int, ...]
    """Ascending: numbers of queries to multiply at a time. The first is that of the order."""
    keys: int
    """Keys per tile of the order."""
    dims: tuple[int, int]  # D, D'
    like: Like
    _as_meant: dict[tuple[str, int, int], bool] = field(default_factory=dict)  # by product, M, C

    def keys_for(self, least: int, step: int) -> int:
        """As `Way.keys_for`."""
        return multiple(least, step)

    def laid(self, query: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """`[R, h, M, W]`, `[R, h, C, W]`, `[R, h, C, D']`: `query[R, h, M, D]`, `k[R, h, C, D]` and
        `v[R, h, C, D']` as `attend` takes them; W is D and what aligns it.
        """
        return widened(query, self.dims[0]), widened(k, self.dims[0]), v

    def attend(
        self, query: Tensor, k: Tensor, v: Tensor, bias: Tensor, how: How, sinks: Tensor | None
    ) -> Tensor:
        """`[R, h, M, D']` of `query[R, h, M, W]`, `k[R, h, C, W]`, `v[R, h, C, D']`,
        `bias[R, 1, M, C]` and `sinks[1, h, M, 1]`: see `Way.attend`.
        """
        rows, heads, count, _ = query.shape
        flat_k, flat_v = k.flatten(0, 1), v.flatten(0, 1)
        scores = how.capped(self.scores(query.flatten(0, 1), flat_k, how.scaling))
        scores = scores.view(rows, heads, count, -1).add_(bias)
        if sinks is not None:  # as one key more, and others that nobody sees
            sinks = F.pad(sinks, (0, UNIT - 1), value=-torch.inf).expand(rows, -1, -1, -1)
            scores = torch.cat([scores, sinks], dim=-1)
        weights = scores.softmax(dim=-1)[..., : k.shape[2]]
        return self.mixtures(weights.flatten(0, 1), flat_v).view(rows, heads, count, -1)

    def scores(self, query: Tensor, k: Tensor, scaling: float) -> Tensor:
        """`[N, M, C]`: products of `query[N, M, D]` and `k[N, C, D]`, times `scaling`."""
        if self.at_once("scores", query.shape[1], k.shape[1]):
            return _scores(query, k, scaling)
        if k.shape[1] > self.keys:
            tiles = torch.split(k, self.keys, dim=1)
            return joined([self.scores(query, tile, scaling) for tile in tiles], 2)
        return self._scores_in_order(query, k, scaling)

    def mixtures(self, weights: Tensor, v: Tensor) -> Tensor:
        """`[N, M, D']`: sums of `v[N, C, D']` by `weights[N, M, C]`."""
        if self.at_once("mixtures", weights.shape[1], v.shape[1]):
            return torch.bmm(weights, v)
        if v.shape[1] > self.keys:  # a tile of keys may be taken at once where all may not
            parts = torch.split(weights, self.keys, dim=2), torch.split(v, self.keys, dim=1)
            return reduce(torch.add, map(self.mixtures, *parts))
        return self._mixtures_in_order(weights, v)

    def _scores_in_order(self, query: Tensor, k: Tensor, scaling: float) -> Tensor:
        def of(part: Tensor) -> Tensor:
            return joined(
                [_scores(part, tile, scaling) for tile in torch.split(k, self.keys, dim=1)], 2
            )

        return joined([of(part) for part in torch.split(query, self.queries[0], dim=1)], 1)

    def _mixtures_in_order(self, weights: Tensor, v: Tensor) -> Tensor:
        def of(part: Tensor) -> Tensor:
            tiles = zip(
                torch.split(part, self.keys, dim=2), torch.split(v, self.keys, dim=1), strict=True
            )
            return reduce(torch.add, (torch.bmm(*tile) for tile in tiles))

        return joined([of(part) for part in torch.split(weights, self.queries[0], dim=1)], 1)

    def at_once(self, product: Product, queries: int, keys: int) -> bool:
        """Whether a product of so many has the bits of the order; tried once for each shape."""
        known = self._as_meant.get((product, queries, keys))
        if known is None:
            with _disable_current_modes():  # what is tried is no part of what they watch or record
                known = self._tried(product, queries, keys)
            self._as_meant[product, queries, keys] = known
        return known

    def _tried(self, product: Product, queries: int, keys: int) -> bool:
        dim = self.dims[product == "mixtures"]
        if queries * keys + (queries + keys) * dim > TRIED:
            return False
        lines = _random(keys, dim, self.like)  # of keys, or of values
        if product == "scores":
            query = _random(queries, dim, self.like)
            whole = _scores(query, lines, _SCALING)
            return torch.equal(whole, self._scores_in_order(query, lines, _SCALING))
        weights = _random(queries, keys, self.like).abs()
        return torch.equal(torch.bmm(weights, lines), self._mixtures_in_order(weights, lines))


@cache
def by_sums(key_dim: int, value_dim: int, like: Like, threads: int) -> Sums:
    """For keys `[R, h, C, D]` and values `[R, h, C, D']`, with so many threads. Raises nothing."""
    key_dim = aligned(key_dim)
    with _disable_current_modes():
        queries = _query_tiles((key_dim, value_dim), like)
        tile = _key_tile(queries[0], value_dim, like)
        return Sums(queries, tile, (key_dim, value_dim), like)


def _query_tiles(dims: tuple[int, int], like: Like) -> tuple[int, ...]:
    """Row counts at which both products give a row the same bits."""
    top = QUERY_TILES[-1]
    given, width = (_random(top, columns, like).transpose(0, 1) for columns in (dims[0], UNIT))
    k, v = (_random(UNIT, dim, like) for dim in dims)

    def scores(rows: Tensor) -> Tensor:
        return _scores(rows.transpose(0, 1), k, _SCALING).transpose(0, 1)

    def mixtures(rows: Tensor) -> Tensor:
        return torch.bmm(rows.transpose(0, 1), v).transpose(0, 1)

    good = set(proven_tiles(scores, given, QUERY_TILES))
    return tuple(sorted(good & set(proven_tiles(mixtures, width, QUERY_TILES)))) or (1,)


def _key_tile(queries: int, value_dim: int, like: Like) -> int:
    """The most keys to which fewer may be filled up with zeros, and the bits stay."""

    def alike(size: int) -> bool:
        weights, v = _random(queries, size, like).abs(), _random(size, value_dim, like)
        for fewer in range(size - UNIT, 0, -UNIT):
            weights[:, :, fewer:] = 0
            short = torch.bmm(weights[:, :, :fewer], v[:, :fewer])
            if not torch.equal(torch.bmm(weights, v), short):
                return False
        return True

    return next(filter(alike, KEY_TILES), UNIT)


def _scores(query: Tensor, k: Tensor, scaling: float) -> Tensor:
    ignored = query.new_empty(1)
    return torch.baddbmm(ignored, query, k.transpose(1, 2), beta=0, alpha=scaling)


def _random(lines: int, columns: int, like: Like) -> Tensor:
    """`[3, lines, columns]`: as of three heads."""
    generator = torch.Generator().manual_seed(lines + columns)
    return torch.randn(3, lines, columns, generator=generator).to(like.device, like.dtype)


_SCALING = 0.3
