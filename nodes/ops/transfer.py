"""Between host and device: pinned buffers, and copies that nobody waits for.

A copy goes on beside host and device only where the host's side is pinned and contiguous. torch
does any other by way of pageable memory, and there CUDA waits for the stream, though
`non_blocking` was asked for. So what is copied is *packed*: a step uses the first elements of a
buffer, in lines as long as it needs them, not the beginnings of longer lines.
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from ...backends import backend_of

CPU = torch.device("cpu")


def pinned(
    *shape: int,
    dtype: torch.dtype = torch.int64,
    fill: int = 0,
    device: torch.device = CPU,
) -> Tensor:
    """A host buffer `[*shape]` that `device` can copy from and to while the host goes on."""
    return backend_of(device).pinned(shape, dtype, fill)


def packed(buffer: Tensor, *shape: int) -> Tensor:
    """The first elements of a contiguous `buffer[...]` as `[*shape]`, in the same memory."""
    return buffer.view(-1)[: prod(shape)].view(shape)


def upload(used: Tensor, device: torch.device) -> Tensor:
    """A copy `[...]` on `device` of `used[...]`, packed in pinned memory, as the stream finds it.

    Until the stream has come by, `used` must keep its data; the plan sees to that where it lies
    in a value with slots.
    """
    return used.to(device, non_blocking=True, copy=True)


def download(found: Tensor, buffer: Tensor) -> None:
    """Fill the packed pinned `buffer[...]` from `found[...]`, when the stream comes.

    They have one shape and dtype.

    Who reads it must come after the op that does this, as everybody does who reads its value.
    """
    buffer.copy_(found, non_blocking=True)
