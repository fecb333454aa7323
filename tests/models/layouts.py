"""The same numbers in every layout of memory that a caller can bring: for tests of kernels."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from random import Random

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


KINDS = (
    (torch.float16, torch.bfloat16, torch.float32, torch.float64),
    (torch.int16, torch.int32, torch.int64),
)
"""Types of numbers of which one may take the place of another."""


@dataclass(frozen=True)
class Mixed:
    """Arguments, each in a layout of its own and some in another type, drawn from a seed.

    `plain`: the same numbers side by side, in the types that are the usual ones.
    """

    given: dict[str, Tensor]
    plain: dict[str, Tensor]

    @staticmethod
    def of(
        tensors: Mapping[str, Tensor],
        seed: int,
        typed: Collection[str],
        refused: Collection[tuple[str, str]] = (),
    ) -> Mixed:
        """At most one of `typed` has another type. `refused`: arguments and layouts that do not go
        together."""
        random = Random(seed)
        changed = random.choice(sorted(typed)) if typed and random.random() < 0.8 else None
        given, plain = {}, {}
        for name, tensor in tensors.items():
            kinds = next((kind for kind in KINDS if tensor.dtype in kind), (tensor.dtype,))
            dtype = random.choice(kinds) if name == changed else tensor.dtype
            possible = [each for each in LAYOUTS if (name, each) not in refused]
            given[name] = LAYOUTS[random.choice(possible)](tensor.to(dtype))
            plain[name] = given[name].to(tensor.dtype).clone(memory_format=torch.contiguous_format)
        return Mixed(given, plain)

    def __str__(self) -> str:
        return ", ".join(
            f"{name}: {x.dtype} {tuple(x.shape)} by {x.stride()} from {x.storage_offset()}"
            for name, x in self.given.items()
        )


def _filler(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Memory around: numbers that would be noticed, and lead nowhere if they were indices."""
    return torch.full(shape, 0 if x.dtype == torch.bool else 1, dtype=x.dtype, device=x.device)
