"""What a kernel checks of its arguments before the launch: no kernel knows where a tensor ends.

Strides are parameters of the kernels, so any layout of memory is right for what is read. What is
written must not have several entries in one place.
"""

from __future__ import annotations

import torch
from torch import Tensor


def check_shapes(shape: tuple[int, ...], **tensors: Tensor | int | None) -> None:
    """That each has this shape; a number stands for as many as are needed.

    Raises:
        ValueError: a shape does not fit: the kernel would read behind the tensor's end.
    """
    for name, tensor in tensors.items():
        if isinstance(tensor, Tensor) and tensor.shape != shape:
            raise ValueError(f"{name} is {tuple(tensor.shape)}, not {shape}")


def check_dtype(dtype: torch.dtype, **tensors: Tensor) -> None:
    """That the numbers of each are of this type, of whose bits the kernel makes use.

    Raises:
        ValueError: one has numbers of another type.
    """
    for name, tensor in tensors.items():
        if tensor.dtype != dtype:
            raise ValueError(f"{name} are {tensor.dtype}, not {dtype}")


def check_written(**tensors: Tensor) -> None:
    """That these can be written to.

    Raises:
        ValueError: several entries lie in one place, as in an expanded tensor.
    """
    for name, tensor in tensors.items():
        step_and_size = zip(tensor.stride(), tensor.shape, strict=True)
        if any(step == 0 and size > 1 for step, size in step_and_size):
            raise ValueError(f"{name} to be written have several entries in one place: expanded?")
