"""Softmax attention in which every sum has one order, whatever else is in the batch.

There are two ways: the library's fused attention (`attention_fused.py`), where that has one order
and can do what the model asks, and single operations (`attention_sums.py`).

Shapes: R rows (requests), h key/value heads, M packed queries of a row and head, C keys of a row, a
multiple of `UNIT`, D and D' widths of keys and values, W and W' the same with padding.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from .attention_fused import fused
from .attention_sums import by_sums
from .attention_tiles import Like, joined
from .invariant import tile_plan
from .kernels.reference import How


class Way(Protocol):
    """To attend, in an order of sums."""

    @property
    def queries(self) -> tuple[int, ...]:
        """Ascending: numbers of queries that may be attended together."""
        ...

    def keys_for(self, least: int, step: int) -> int:
        """How many keys to attend over, of which `least` are needed: a multiple of `step`."""
        ...

    def laid(self, query: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """`[R, h, M, W]`, `[R, h, C, W]`, `[R, h, C, W']`: `query[R, h, M, D]`, `k[R, h, C, D]`
        and `v[R, h, C, D']` as `attend` takes them.
        """
        ...

    def attend(
        self, query: Tensor, k: Tensor, v: Tensor, bias: Tensor, how: How, sinks: Tensor | None
    ) -> Tensor:
        """`[R, h, M, D']` of a tile of queries; what is given is as `laid` gives it.

        `query[R, h, M, W]`, `k[R, h, C, W]`, `v[R, h, C, W']`, `bias[R, 1, M, C]`,
        `sinks[1, h, M, 1]`.
        """
        ...


def attend(query: Tensor, k: Tensor, v: Tensor, bias: Callable[[int], Tensor], how: How) -> Tensor:
    """`[R, h, M, D']` of `query[R, h, M, D]`, `k[R, h, C, D]`, `v[R, h, C, D']`.

    `bias` makes `[R, 1, M', C]` of M' ≥ M queries, of the type of `exact(query.dtype)`: zero, and
    minus infinity of what a query may not see. The queries from M on are padding. There are C keys
    as by `keys_for`. Half precision is widened, and the result rounded.
    """
    given, heads, queries = query.dtype, query.shape[1], query.shape[2]
    query, k, v = (each.to(exact(given)) for each in (query, k, v))
    way = _way(k.shape[-1], v.shape[-1], query.dtype, k.device, how)
    query, k, v = way.laid(query, k, v)
    plan = tile_plan(queries, way.queries)
    if padding := sum(plan) - queries:
        query = F.pad(query, (0, 0, 0, padding))
    hidden, sinks = bias(sum(plan)), how.packed_sinks(heads, queries, query.dtype)
    if sinks is not None:
        sinks = F.pad(sinks, (0, 0, 0, padding))
    parts = []
    for end, size in zip(accumulate(plan), plan, strict=True):
        tile = slice(end - size, end)
        own = None if sinks is None else sinks[:, :, tile]
        parts.append(way.attend(query[:, :, tile], k, v, hidden[:, :, tile], how, own))
    return joined(parts, 2)[:, :, :queries].to(given)


def exact(dtype: torch.dtype) -> torch.dtype:
    """The precision in which numbers of type `dtype` are attended. Raises nothing."""
    return torch.promote_types(dtype, torch.float32)


def keys_for(
    least: int,
    step: int,
    dims: tuple[int, int],
    dtype: torch.dtype,
    device: torch.device,
    how: How,
) -> int:
    """How many keys to attend over, a multiple of `step`, where `least` are needed.

    `dims` are D and D', `step` is a multiple of `UNIT`. Raises nothing.
    """
    return _way(*dims, exact(dtype), device, how).keys_for(least, step)


def _way(key_dim: int, value_dim: int, dtype: torch.dtype, device: torch.device, how: How) -> Way:
    like, threads = Like(dtype, device), torch.get_num_threads()
    library = fused(key_dim, value_dim, like, threads) if how.softcap is None else None
    return library or by_sums(key_dim, value_dim, like, threads)
