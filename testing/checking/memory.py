"""What memory a datum reaches: found by walking it, fingerprinted, and poisoned.

The unit is a *storage*, since that is what tensors share: two views of one storage are one memory.
What a datum is made of is in `parts.py`; the walk goes up to a depth and a number of objects.
"""

from __future__ import annotations

import ctypes
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...backends.registry import backend_of, loaded_backends
from ...executors.parts import Patience, reached

WHOLE_BYTES = 1 << 20  # larger storages are fingerprinted at PAGES evenly spaced pages
PAGES, PAGE_BYTES = 128, 4096


@dataclass(frozen=True, slots=True)
class Block:
    """One storage (or array's memory) that a datum reaches, by the first path to it.

    `holder` keeps the memory alive: `start` is its address for as long.
    """

    path: str  # such as `.sample.base` or `[0].tokens`
    start: int
    nbytes: int
    holder: Tensor | np.ndarray[Any, Any]  # [...]

    @staticmethod
    def of_tensor(tensor: Tensor, path: str) -> Block | None:
        """That of `tensor[...]`; None if it has no memory of its own, as a sparse or empty one."""
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):
            return None
        size = storage.nbytes()
        start = storage.data_ptr() if size and not tensor.is_meta else 0
        return Block(path, start, size, tensor) if start else None


class Walker:
    """Finds the blocks of data; remembers in which types it never found any."""

    def __init__(self) -> None:
        self._patience = Patience()

    def blocks(self, datum: object) -> tuple[Block, ...]:
        """The distinct memory that `datum` reaches."""
        found: dict[int, Block] = {}
        for path, part in reached(datum, self._patience):
            block = _block(part, path)
            known = None if block is None else found.get(block.start)
            # Of an array and a tensor over the same memory, the tensor knows more.
            if block is not None and (known is None or not isinstance(known.holder, Tensor)):
                found[block.start] = block
        return tuple(found.values())


def _block(part: object, path: str) -> Block | None:
    if isinstance(part, Tensor):
        return Block.of_tensor(part, path)
    if isinstance(part, np.ndarray) and part.nbytes and part.dtype != object:
        whole = part.flags.c_contiguous
        return Block(path, part.ctypes.data, part.nbytes, part) if whole else None
    return None


def fingerprint(block: Block) -> tuple[int | None, int | None]:
    """Checksum of the bytes (host memory), and the version counter (where a tensor has one).

    The counter sees what other threads of a node did through torch, on any device; the checksum
    sees numpy and kernels that torch knows nothing of. Of a large storage some pages are summed.
    """
    holder = block.holder
    version = None
    if isinstance(holder, Tensor):
        version = None if holder.is_inference() else holder._version
        if not backend_of(holder.device).on_host:
            return None, version
    size = block.nbytes
    memory = memoryview((ctypes.c_char * size).from_address(block.start)).cast("B")
    if size <= WHOLE_BYTES:
        return zlib.crc32(memory), version
    total = 0
    for page in range(PAGES):
        at = page * (size - PAGE_BYTES) // (PAGES - 1)
        total = zlib.crc32(memory[at : at + PAGE_BYTES], total)
    return total, version


def poison(block: Block) -> None:
    """Fill the whole storage with what no computation takes for data."""
    tensor = block.holder
    if not isinstance(tensor, Tensor):
        return
    for backend in loaded_backends():
        backend.synchronize()  # a reader's body has returned, but its kernels and copies go on
    with torch.inference_mode():
        whole = tensor.as_strided((block.nbytes // tensor.element_size(),), (1,), 0)
        whole.fill_(_garbage(tensor.dtype))
    # Whoever gets this memory next may be on another stream.
    backend_of(tensor.device).synchronize(tensor.device)


def _garbage(dtype: torch.dtype) -> float:
    if dtype.is_floating_point or dtype.is_complex:
        return float("nan")
    if dtype is torch.bool:
        return True
    if dtype is torch.uint8:
        return 0xAA
    return max(torch.iinfo(dtype).min, -(2**31))
