"""The same numbers in every layout of memory that a caller can bring: for tests of kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

Layout = Callable[[Tensor], Tensor]


def offset(x: Tensor) -> Tensor:
    """Contiguous, but not from where its memory begins: nor aligned to 16 bytes."""
    wider = _filler(x, (x.numel() + 3,))
    view = wider[3:].view(x.shape)
    return view.copy_(x)


def column_view(x: Tensor) -> Tensor:
    """One column of a table with more: the last stride is not 1."""
    return _filler(x, (*x.shape, 3))[..., 1].copy_(x)


def leading_columns(x: Tensor) -> Tensor:
    """The first columns of a wider table: lines lie apart, their numbers side by side."""
    return _filler(x, (*x.shape[:-1], x.shape[-1] + 5))[..., : x.shape[-1]].copy_(x)


def every_other(x: Tensor) -> Tensor:
    """Every other entry along the first dimension."""
    return _filler(x, (2 * len(x), *x.shape[1:]))[::2].copy_(x)


def transposed(x: Tensor) -> Tensor:
    """The dimensions lie in memory in the opposite order."""
    order = tuple(reversed(range(x.dim())))
    return x.permute(order).contiguous().permute(order)


def expanded(x: Tensor) -> Tensor:
    """The first entry, stretched over all: a stride of zero. The numbers are not those of `x`."""
    return x[:1].clone().expand_as(x)


LAYOUTS: Mapping[str, Layout] = {
    each.__name__: each
    for each in (offset, column_view, leading_columns, every_other, transposed, expanded)
}


def _filler(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Memory around: numbers that would be noticed, and lead nowhere if they were indices."""
    return torch.full(shape, 0 if x.dtype == torch.bool else 1, dtype=x.dtype)
