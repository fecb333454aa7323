"""Attention of long rows (prompts and chunks of them) by torch's own kernel for ragged batches.

`torch.nn.attention.varlen.varlen_attn` is FlashAttention-2 (Dao 2023, arXiv:2307.08691) over
sequences that lie end to end. The keys of each row, context and chunk, are gathered from the
cache into such a sequence. Lengths stay on the device: only their upper bound, which the block
tables give, is known to the host.

Shapes: R rows of any numbers of query tokens, T of them together, H query heads, h key/value
heads, B blocks of a row, C = R · B · block_size + T, D width of keys and values.
"""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ...backends import backend_of
from ...backends.kernels import VARIABLE, asked_for
from ..cache_format import widened
from .reference import How

_DTYPES = (torch.float16, torch.bfloat16)
_WIDEST = 256


@dataclass(frozen=True)
class Sequences:
    """Where the rows begin and end, and which slots their keys are in. The same in every layer."""

    queries: Tensor  # [R + 1] int32: ends of the rows' queries
    keys: Tensor  # [R + 1] int32: ends of their keys
    slots: Tensor  # [C]: slots of the keys end to end, then slot 0
    query_len: int  # the most query tokens of a row
    longest: int  # bound on the keys of a row


def sequences(
    block_tables: Tensor,
    positions: Tensor,
    *,
    query_lens: Sequence[int],
    block_size: int,
    blocks: Sequence[int] | None = None,
) -> Sequences:
    """Sequences for `block_tables[R, B]` and `positions[T]` of rows of `query_lens` tokens.

    The positions of a row go up one by one. Masked tokens may come before the others, with the
    numbers below zero that lead up to them, and see no keys, for which these kernels give zeros; or
    behind the others, and see keys behind the row's last, or of the scratch block. Nobody reads
    what they get. `blocks[R]`: how many each row has at most; None: any may have all B. Keys are
    gathered for as many, whatever lies in them.
    """
    rows, columns = block_tables.shape
    if blocks is None:
        blocks = (columns,) * rows
    most, context = max(query_lens), max(blocks) * block_size
    device = positions.device
    asking = _on_device(query_lens, device)
    queries = F.pad(asking.cumsum(0), (1, 0))
    # Queries are aligned with the last keys, so masked tokens count as keys of the row.
    lengths = (positions[queries[:-1]] + asking).clamp(min=0)
    ends = F.pad(lengths.cumsum(0), (1, 0))
    place = torch.arange(sum(blocks) * block_size + sum(query_lens), device=device)
    row = torch.searchsorted(ends[1:], place, right=True).clamp(max=rows - 1)
    offset = place - ends[row]
    column = offset // block_size
    block = block_tables[row, column.clamp(max=columns - 1)].clamp(min=0)
    real = (place < ends[-1]) & (column < columns)
    slots = torch.where(real, block * block_size + offset % block_size, 0)
    return Sequences(queries.to(torch.int32), ends.to(torch.int32), slots, most, context + most)


def _on_device(numbers: Sequence[int], device: torch.device) -> Tensor:
    """`[R]` int64 of these, written by fills: a tensor of the host would have to travel there."""
    out = torch.empty(len(numbers), dtype=torch.int64, device=device)
    start = 0
    for number, run in groupby(numbers):
        stop = start + len(list(run))
        out[start:stop].fill_(number)
        start = stop
    return out


def attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: Sequences,
    how: How,
    kernel: Any = None,
    *,
    scales: tuple[Tensor | None, Tensor | None] = (None, None),
) -> Tensor:
    """Attention `[T, H, D]` of `query[T, H, D]` over `keys[N, h, D]`, `values[N, h, D]`.

    `scales[N, h]`: of keys and of values. For what `why_not` does not object to. `kernel`
    stands in for torch's, in a test.
    """
    kernel = _kernel() if kernel is None else kernel
    known = _parameters(kernel)
    heads, kv_heads, dim = query.shape[1], keys.shape[1], query.shape[2]
    k, v = (
        widened(
            store.index_select(0, rows.slots),
            None if scale is None else scale.index_select(0, rows.slots),
            query.dtype,
        )
        for store, scale in zip((keys, values), scales, strict=True)
    )
    options: dict[str, Any] = {}
    if "window_size" in known:
        options["window_size"] = (-1 if how.window is None else how.window - 1, 0)
    else:
        options["is_causal"] = True
    if "scale" in known:
        options["scale"] = how.scaling
    else:
        query = query * (how.scaling * dim**0.5)
    if heads != kv_heads:
        if "enable_gqa" in known:
            options["enable_gqa"] = True
        else:
            k, v = (each.repeat_interleave(heads // kv_heads, dim=1) for each in (k, v))
    out: Tensor = kernel(
        query, k, v, rows.queries, rows.keys, rows.query_len, rows.longest, **options
    )
    return out


def fits(query: Tensor, values: Tensor, how: How) -> bool:
    """Whether `attend` can do this, for `query[T, H, D]` and `values[N, h, D']`."""
    return why_not(query, values, how) is None


def why_not(query: Tensor, values: Tensor, how: How) -> str | None:
    """Why `attend` cannot do it for `query[T, H, D]`, `values[N, h, D']`; None if it can."""
    if (reason := backend_of(query.device).why_no_varlen(query.device)) is not None:
        return reason
    if (asked := asked_for()) is not None:
        return f"{VARIABLE} asks for {asked}"
    kernel = _kernel()
    if kernel is None:
        return "this torch has no torch.nn.attention.varlen"
    if query.dtype not in _DTYPES:
        return f"it needs float16 or bfloat16, not {query.dtype}"
    width = query.shape[-1]
    if width != values.shape[-1] or width > _WIDEST or width % 8:
        return f"it needs heads of one width, a multiple of 8 up to {_WIDEST}"
    if how.softcap is not None or how.sinks is not None:
        return "it knows neither soft caps nor sinks"
    if how.window is not None and "window_size" not in _parameters(kernel):
        return "this torch's varlen_attn has no windows"
    return None


@cache
def _kernel() -> Any:
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    return varlen_attn


@cache
def _parameters(kernel: Any) -> frozenset[str]:
    return frozenset(inspect.signature(kernel).parameters)
