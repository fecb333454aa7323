"""Rows of a pass laid out anew, so that passes have few layouts.

What attention computes depends on how many tokens each row has, and on how many keys: hardly two
steps with prompts are alike in all of that. Laid out, neighbours with as few tokens are rounded up
to a number of rows, longer rows to a number of tokens, and block tables to a number of columns.
What is added is masked: it computes something that nobody reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, groupby

import torch
from torch import Tensor
from torch.nn import functional as F

from .attention import AttentionBatch
from .attention_tiles import blocks_per_unit, multiple
from .paged_cache import SCRATCH_BLOCK, SCRATCH_SLOT

FEW = 8
"""Tokens of a row up to which each number is kept: rows that decode, and drafters that go on from
the last token or two."""


def rounded_rows(count: int) -> int:
    """To how many rows of one length so many are rounded up: a power of two, and from 8 on what
    lies half way, too. Raises nothing.
    """
    if count <= 4:
        return 1 << (count - 1).bit_length()
    return multiple(count, max(4, 1 << (count - 1).bit_length() >> 2))


def rounded_columns(units: int) -> int:
    """The same of columns of block tables, in units: four sizes for each power of two. Raises
    nothing.
    """
    return multiple(units, max(1, 1 << (units - 1).bit_length() >> 3))


@dataclass(frozen=True)
class Laid:
    """A batch that is laid out: its tokens, and masked ones between them."""

    batch: AttentionBatch
    order: Tensor  # [T'] which token each line is of; those of masked lines are any
    places: Tensor  # [T] in which line each token is


def laid_out(batch: AttentionBatch, size: Callable[[int], int | None]) -> Laid | None:
    """The batch laid out, on the CPU, rows with many tokens rounded up by `size`; None where that
    is None, and of draft trees. Raises nothing of its own.
    """
    sizes = tuple(each if each <= FEW else size(each) for each in batch.query_lens)
    if batch.tree is not None or None in sizes:
        return None
    to = _layout(batch.query_lens, sizes)
    if size(len(to.tokens.order)) is None:
        return None
    unit = blocks_per_unit(batch.cache.block_size)
    blocks = batch.blocks or (batch.block_tables.shape[1],) * len(batch.query_lens)
    columns = [unit * rounded_columns(-(-max(blocks[run.rows]) // unit)) for run in to.runs]
    widest = max(columns)
    tables = batch.block_tables[:, :widest]
    tables = F.pad(tables, (0, widest - tables.shape[1]), value=SCRATCH_BLOCK)
    laid = replace(
        batch,
        query_lens=to.lens,
        block_tables=to.rows.of(tables, SCRATCH_BLOCK),
        positions=to.tokens.of(batch.positions, -1),
        slots=to.tokens.of(batch.slots, SCRATCH_SLOT),
        long=None,
        masked=batch.masked or to.tokens.gaps is not None,
        blocks=tuple(
            chain.from_iterable((n,) * run.number for n, run in zip(columns, to.runs, strict=True))
        ),
    )
    return Laid(laid, to.tokens.order, to.places)


@dataclass(frozen=True)
class _Order:
    """In which order something is laid out, with gaps."""

    order: Tensor  # [n'] int64
    gaps: Tensor | None  # [n'] bool; None: there is none

    @classmethod
    def of_indices(cls, indices: list[int]) -> _Order:
        """Negative ones are gaps."""
        order = torch.tensor(indices)
        gaps = order < 0
        return cls(order.clamp_(min=0), gaps if min(indices) < 0 else None)

    def of(self, what: Tensor, gap: int) -> Tensor:
        """`[n', ...]` of `what[n, ...]`."""
        found = what.index_select(0, self.order)
        if self.gaps is None:
            return found
        return found.masked_fill_(self.gaps.view(-1, *(1,) * (what.dim() - 1)), gap)


@dataclass(frozen=True)
class _Run:
    """Neighbours with as many tokens."""

    rows: slice
    number: int  # of rows as laid out


@dataclass(frozen=True)
class _Layout:
    lens: tuple[int, ...]
    runs: tuple[_Run, ...]
    rows: _Order
    tokens: _Order
    places: Tensor


@lru_cache(maxsize=1024)
def _layout(lens: tuple[int, ...], sizes: tuple[int, ...]) -> _Layout:
    """Of rows with so many tokens, each to have a size."""
    runs: list[_Run] = []
    rows: list[int] = []
    tokens: list[int] = []
    places: list[int] = []
    laid: list[int] = []
    first = 0
    for size, same in groupby(sizes):
        last = first + len(list(same))
        number = rounded_rows(last - first) if size <= FEW else last - first
        runs.append(_Run(slice(first, last), number))
        for row in range(first, first + number):
            length = lens[row] if row < last else 0
            start = len(places)
            places += range(len(tokens), len(tokens) + length)
            tokens += [*range(start, start + length), *[-1] * (size - length)]
            rows.append(row if row < last else -1)
            laid.append(size)
        first = last
    return _Layout(
        tuple(laid),
        tuple(runs),
        _Order.of_indices(rows),
        _Order.of_indices(tokens),
        torch.tensor(places),
    )
