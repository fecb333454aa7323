"""What memory a datum reaches: found by walking it, fingerprinted, and poisoned.

The unit is a *storage*, since that is what tensors share: two views of one storage are one memory.
The walk knows no type of ours. It enters tuples, lists, dicts and the attributes of objects,
up to a depth and a number of objects, but not modules (weights are equipment, no value), functions
and classes. An instance of a type in which the first dozen walks found no memory is entered ever
more seldom, so that requests and batches of host objects cost next to nothing.
"""

from __future__ import annotations

import ctypes
import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

MAX_DEPTH = 8
MAX_OBJECTS = 4096
PATIENCE = 12  # fruitless walks of a type before it is entered only at powers of two
WHOLE_BYTES = 1 << 20  # larger storages are fingerprinted at PAGES evenly spaced pages
PAGES, PAGE_BYTES = 128, 4096

_SCALARS = (int, float, bool, complex, str, bytes, type(None))
_OPAQUE = (
    nn.Module,
    type,
    ModuleType,
    FunctionType,
    BuiltinFunctionType,
    MethodType,
    torch.device,
    torch.dtype,
)


@dataclass(frozen=True, slots=True)
class Block:
    """One storage (or array's memory) that a datum reaches, by the first path to it.

    `holder` keeps the memory alive: `start` is its address for as long.
    """

    path: str  # such as `.sample.base` or `[0].tokens`
    start: int
    nbytes: int
    holder: Tensor | np.ndarray[Any, Any]

    @staticmethod
    def of_tensor(tensor: Tensor, path: str) -> Block | None:
        """None for a tensor without memory of its own, such as a sparse or an empty one."""
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):
            return None
        size = storage.nbytes()
        start = storage.data_ptr() if size and tensor.device.type != "meta" else 0
        return Block(path, start, size, tensor) if start else None


class Walker:
    """Finds the blocks of data; remembers in which types it never found any."""

    def __init__(self) -> None:
        self._fruitless: dict[type, int] = {}

    def blocks(self, datum: object) -> tuple[Block, ...]:
        """The distinct memory that `datum` reaches."""
        found: dict[int, Block] = {}
        budget = [MAX_OBJECTS]
        self._walk(datum, "", 0, found, set(), budget)
        return tuple(found.values())

    def _walk(
        self,
        datum: object,
        path: str,
        depth: int,
        found: dict[int, Block],
        seen: set[int],
        budget: list[int],
    ) -> None:
        if isinstance(datum, _SCALARS):
            return
        block: Block | None = None
        if isinstance(datum, Tensor):
            block = Block.of_tensor(datum, path)
        elif isinstance(datum, np.ndarray):
            if datum.nbytes and datum.dtype != object and datum.flags.c_contiguous:
                block = Block(path, datum.ctypes.data, datum.nbytes, datum)
        elif depth < MAX_DEPTH and id(datum) not in seen and budget[0] > 0:
            seen.add(id(datum))
            kind = type(datum)
            if isinstance(datum, _OPAQUE) or not self._worth_entering(kind):
                return
            before = len(found)
            for name, part in _parts(datum):
                budget[0] -= 1
                if budget[0] <= 0:
                    break
                self._walk(part, path + name, depth + 1, found, seen, budget)
            if kind not in (list, tuple, dict, deque):
                if len(found) > before:
                    self._fruitless[kind] = 0
                else:
                    self._fruitless[kind] = self._fruitless.get(kind, 0) + 1
        if block is not None:
            known = found.get(block.start)
            # Of an array and a tensor over the same memory, the tensor knows more.
            if known is None or not isinstance(known.holder, Tensor):
                found[block.start] = block

    def _worth_entering(self, kind: type) -> bool:
        tried = self._fruitless.get(kind, 0)
        if tried < PATIENCE:
            return True
        self._fruitless[kind] = tried + 1
        return tried & (tried - 1) == 0


def _parts(datum: Any) -> Iterator[tuple[str, object]]:
    if isinstance(datum, dict):
        for key, part in tuple(datum.items()):
            if not isinstance(part, _SCALARS):
                yield f"[{key!r}]", part
    elif isinstance(datum, list | tuple | deque):
        # What begins and ends with a number is taken for numbers: token lists are long.
        if datum and not (isinstance(datum[0], int) and isinstance(datum[-1], int)):
            names = getattr(datum, "_fields", None)
            for index, part in enumerate(tuple(datum)):
                if not isinstance(part, _SCALARS):
                    yield f".{names[index]}" if names else f"[{index}]", part
    else:
        for name in _slots(type(datum)):
            part = getattr(datum, name, None)
            if not isinstance(part, _SCALARS):
                yield f".{name}", part
        for name, part in tuple(getattr(datum, "__dict__", {}).items()):
            if not isinstance(part, _SCALARS):
                yield f".{name}", part


_known_slots: dict[type, tuple[str, ...]] = {}


def _slots(kind: type) -> tuple[str, ...]:
    if kind not in _known_slots:
        _known_slots[kind] = _slots_of(kind)
    return _known_slots[kind]


def _slots_of(kind: type) -> tuple[str, ...]:
    found: list[str] = []
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        found += (slots,) if isinstance(slots, str) else slots
    return tuple(name for name in found if name not in ("__dict__", "__weakref__"))


def fingerprint(block: Block) -> tuple[int | None, int | None]:
    """Checksum of the bytes (host memory), and the version counter (where a tensor has one).

    The counter sees what other threads of a node did through torch, on any device; the checksum
    sees numpy and kernels that torch knows nothing of. Of a large storage some pages are summed.
    """
    holder = block.holder
    version = None
    if isinstance(holder, Tensor):
        version = None if holder.is_inference() else holder._version
        if holder.device.type != "cpu":
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
    cuda: Any = torch.cuda
    if cuda.is_initialized():
        cuda.synchronize()  # a reader's body has returned, but its kernels and copies go on
    with torch.inference_mode():
        whole = tensor.as_strided((block.nbytes // tensor.element_size(),), (1,), 0)
        whole.fill_(_garbage(tensor.dtype))
    if tensor.is_cuda:
        cuda.synchronize()  # whoever gets this memory next may be on another stream


def _garbage(dtype: torch.dtype) -> float:
    if dtype.is_floating_point or dtype.is_complex:
        return float("nan")
    if dtype is torch.bool:
        return True
    if dtype is torch.uint8:
        return 0xAA
    return max(torch.iinfo(dtype).min, -(2**31))
