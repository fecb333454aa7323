"""Attention over gathered keys in plain torch: what every other implementation must agree with.

It runs on any device and dtype. Memory for the gathered keys and for the mask is what it costs.

Shapes: R rows (requests) of q query tokens, H query heads, h key/value heads, g = H / h,
B blocks of a row, C = keys of a row (padded), D and D' widths of keys and values.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ..cache_format import widened
from ..invariant import elementwise
from ..tree_rows import seen


@dataclass(frozen=True)
class How:
    """What a model asks of its attention besides the softmax."""

    scaling: float
    window: int | None
    softcap: float | None
    sinks: Tensor | None  # [H]

    def scores(self, raw: Tensor) -> Tensor:
        """From products `raw[...]` of queries and keys to what the softmax is taken of, `[...]`."""
        return self.capped(raw * self.scaling)

    def capped(self, scores: Tensor) -> Tensor:
        """`[...]`: `scores[...]` within the bounds of the soft cap, if there is one."""
        if self.softcap is None:
            return scores
        return elementwise(torch.tanh, scores / self.softcap) * self.softcap

    def packed_sinks(self, kv_heads: int, rows: int, dtype: torch.dtype) -> Tensor | None:
        """`[1, h, rows, 1]`, in the order in which `pack` lays out heads."""
        if self.sinks is None:
            return None
        per_head = self.sinks.to(dtype).view(kv_heads, -1)
        return per_head.repeat(1, rows // per_head.shape[1])[None, :, :, None]


def pack(query: Tensor, query_len: int, kv_heads: int) -> Tensor:
    """`query[R · q, H, D]` as `[R, h, q · g, D]`: heads that share keys are rows of a product."""
    tokens, heads, dim = query.shape
    packed = query.reshape(tokens // query_len, query_len, kv_heads, heads // kv_heads, dim)
    return packed.transpose(1, 2).reshape(tokens // query_len, kv_heads, -1, dim)


def unpack(packed: Tensor, query_len: int) -> Tensor:
    """`packed[R, h, q · g, D]` as `[R · q, H, D]`."""
    rows, kv_heads, _, dim = packed.shape
    split = packed.reshape(rows, kv_heads, query_len, -1, dim).transpose(1, 2)
    return split.reshape(rows * query_len, -1, dim)


def packed_mask(
    positions: Tensor,
    keys: int,
    *,
    query_len: int,
    shared: int,
    window: int | None,
    starts: Tensor | None = None,
    bits: Tensor | None = None,
    width: int = 0,
) -> Tensor:
    """Mask `[R, 1, q · g, keys]` for `positions[R · q]`: what each packed query row attends to.

    Of draft trees, which are no deeper than a window, `starts[R · q]`, `bits[R · q]` and `width`
    say it, as in `TreeRows`. A masked token is let attend to the first key of its row, so that no
    row of scores is empty: an empty softmax is NaN, and the token's hidden state goes on through
    the model.
    """
    key = torch.arange(keys, device=positions.device)
    position = positions.clamp(min=0)[:, None]
    if starts is None or bits is None:
        allowed, before = key <= position, key
    else:
        allowed = seen(starts.clamp(min=0), bits, keys, width)
        allowed = torch.where(positions[:, None] < 0, key == 0, allowed)
        before = torch.maximum(key, position) if window is not None else key
        before = torch.where(key < starts[:, None], key, before)
    if window is not None:
        allowed = allowed & (before > position - window)
    by_row = allowed.view(-1, query_len, 1, keys).expand(-1, -1, shared, -1)
    return by_row.reshape(-1, 1, query_len * shared, keys)


def bias_of(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """What is added to scores so that keys count which are `allowed[...]`: `[...]` of `dtype`."""
    return torch.zeros_like(allowed, dtype=dtype).masked_fill_(~allowed, -torch.inf)


def attend_gathered(query: Tensor, k: Tensor, v: Tensor, bias: Tensor, how: How) -> Tensor:
    """`[R, h, M, D']` of `query[R, h, M, D]`, `k[R, h, C, D]`, `v[R, h, C, D']`.

    `bias[R, 1, M, C]`: zero, and minus infinity of a key that a row of the query may not see.
    """
    if how.softcap is None and how.sinks is None:
        return F.scaled_dot_product_attention(query, k, v, attn_mask=bias, scale=how.scaling)
    scores = how.scores((query @ k.transpose(2, 3)).float()) + bias
    sinks = how.packed_sinks(k.shape[1], query.shape[2], scores.dtype)
    if sinks is not None:
        scores = torch.cat([scores, sinks.expand(len(scores), -1, -1, 1)], dim=-1)
    weights = scores.softmax(dim=-1)[..., : k.shape[2]]
    return weights.to(v.dtype) @ v


def attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    block_tables: Tensor,
    positions: Tensor,
    *,
    query_len: int,
    block_size: int,
    how: How,
    starts: Tensor | None = None,
    bits: Tensor | None = None,
    width: int = 0,
    scales: tuple[Tensor | None, Tensor | None] = (None, None),
) -> Tensor:
    """`[R · q, H, D']`: as `split_kv.attend`, except that the cache must hold finite numbers.

    `query[R · q, H, D]`, `keys[N, h, D]`, `values[N, h, D']`, `block_tables[R, B]`,
    `positions[R · q]`, `starts[R · q]`, `bits[R · q]`; `scales[N, h]` of keys and of values. What a
    masked token gets is finite, not zero.
    """
    heads, kv_heads = query.shape[1], keys.shape[1]
    offsets = torch.arange(block_size, device=keys.device)
    slots = (block_tables.clamp(min=0)[:, :, None] * block_size + offsets).flatten(1)
    k, v = (
        widened(store[slots], None if scale is None else scale[slots], query.dtype).transpose(1, 2)
        for store, scale in zip((keys, values), scales, strict=True)
    )
    allowed = packed_mask(
        positions,
        slots.shape[1],
        query_len=query_len,
        shared=heads // kv_heads,
        window=how.window,
        starts=starts,
        bits=bits,
        width=width,
    )
    packed = pack(query, query_len, kv_heads)
    bias = bias_of(allowed, query.dtype)
    return unpack(attend_gathered(packed, k, v, bias, how), query_len)
