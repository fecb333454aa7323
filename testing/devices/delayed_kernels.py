"""A device that is not there, with a GPU's timing: bodies run when they are launched, work is late.

Each operation of torch in the body of a device op returns at once a tensor of the right shape, and
is done later: any time until somebody waits for it, by chance, from a seed, each stream in its own
order. Its memory comes from an allocator that works as a caching allocator for a GPU does: freed
memory is handed out again at once, to the stream that had it, though kernels that were launched
before may still have to read it. Freed pinned memory goes to whoever asks next. So what is read
before it is there, or freed while a stream still uses it, gives wrong data on a machine without a
GPU, and the same wrong data again from the same seed.

`virtual_streams.py` defers whole bodies instead, so it shows no memory that is freed too early.
"""

from __future__ import annotations

import threading
import weakref
from bisect import bisect_right
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...backends.dispatch import Dispatch
from ...backends.operations import asks, composed, is_composite, is_view, returns_new
from ...executors.concurrent import run_on
from ...executors.parts import Patience, reached
from ...executors.report import RunReport
from ...executors.run_arguments import RunArguments
from ...graph.node import Value
from ...graph.plan import Plan
from .virtual_streams import VirtualStream, VirtualStreams

ALIGNED = 64  # bytes, as torch aligns its own
HOST = ""  # the pool of pinned memory

UPLOAD = torch.ops.aten._to_copy.default  # what `to` does, which brings host memory to the device


class _Block:
    """Memory of the device. It is never given back to the system, so late work may touch it."""

    def __init__(self, size: int, pool: str) -> None:
        whole = np.zeros(size + ALIGNED, dtype=np.uint8)
        skip = -whole.ctypes.data % ALIGNED
        self.bytes = whole[skip : skip + size]
        self.start, self.pool = self.bytes.ctypes.data, pool


class Allocator:
    """Hands freed memory out at once: the block of this size that was freed last."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._free: dict[tuple[str, int], list[_Block]] = {}
        self._starts: list[int] = []
        self._blocks: list[_Block] = []
        self.reused = 0  # how often freed memory was handed out

    def tensor(self, like: Tensor, pool: str) -> Tensor:
        """`[...]` with strides and dtype of `like[...]`, and whatever is in its memory."""
        elements = 1 + sum((n - 1) * s for n, s in zip(like.shape, like.stride(), strict=True))
        if like.numel() == 0:
            return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype)
        block = self._take(elements * like.element_size(), pool)
        held = block.bytes.view()  # lives as long as the tensor's storage
        weakref.finalize(held, self._give_back, block).atexit = False
        return _over(held, like.dtype).as_strided(like.shape, like.stride(), 0)

    def _take(self, size: int, pool: str) -> _Block:
        rounded = -(-size // 512) * 512
        with self._lock:
            free = self._free.setdefault((pool, rounded), [])
            if free:
                self.reused += 1
                return free.pop()
            block = _Block(rounded, pool)
            at = bisect_right(self._starts, block.start)
            self._starts.insert(at, block.start)
            self._blocks.insert(at, block)
            return block

    def _give_back(self, block: _Block) -> None:
        with self._lock:
            self._free[block.pool, len(block.bytes)].append(block)

    def _block(self, tensor: Tensor) -> _Block | None:
        address = tensor.untyped_storage().data_ptr()
        with self._lock:
            at = bisect_right(self._starts, address) - 1
            block = self._blocks[at] if at >= 0 and address else None
        return block if block and address < block.start + len(block.bytes) else None

    def pool_of(self, tensor: Tensor) -> str | None:
        """The stream that `tensor[...]` was allocated for; None if it comes from elsewhere."""
        block = self._block(tensor)
        return None if block is None else block.pool

    def unowned(self, tensor: Tensor) -> Callable[[], Tensor]:
        """The same `tensor[...]` as a kernel knows it: by address, without keeping its memory.

        What is returned makes it, `[...]`, again.
        """
        block = self._block(tensor)
        if block is None:
            return lambda: tensor  # not of this device: weights, states, buffers of the host
        whole, geometry = block.bytes, (tensor.shape, tensor.stride(), tensor.storage_offset())
        return partial(_alias, whole, tensor.dtype, geometry)


def _over(memory: Any, dtype: torch.dtype) -> Tensor:
    return torch.from_numpy(memory).view(dtype)


def _alias(memory: Any, dtype: torch.dtype, geometry: tuple[Any, Any, Any]) -> Tensor:
    return _over(memory, dtype).as_strided(*geometry)


class _Kernels(Dispatch):
    """Enqueues what the body of a device op computes."""

    def __init__(self, device: DelayedKernelDevice, stream: VirtualStream, name: str) -> None:
        super().__init__()
        self._device, self._stream, self._name = device, stream, name

    def __torch_dispatch__(
        self, operation: Any, types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if is_composite(operation):
            with self:
                return composed(operation, args, kwargs)
        if is_view(operation):
            return operation(*args, **kwargs)
        tensors = _flat([*args, *kwargs.values()]) if operation is not UPLOAD else ()
        if tensors and all(map(self._device.is_host, tensors)):
            return operation(*args, **kwargs)  # by the host, at once
        if asks(operation, args):
            self._device.drain(self._stream)
            return operation(*args, **kwargs)
        pinned = bool(kwargs.pop("pin_memory", False)) if "pin_memory" in kwargs else False
        unowned = partial(_mapped, self._device.allocator.unowned)
        late_args = [unowned(each) for each in args]
        late_kwargs = {name: unowned(each) for name, each in kwargs.items()}
        if operation._schema.is_mutable and returns_new(operation):
            self._device.drain(self._stream)  # nobody knows the shape of it
            return operation(*args, **kwargs)
        if operation._schema.is_mutable:
            self._give(_call(operation, late_args, late_kwargs, ()))
            return _written(operation, args, kwargs)
        shapes = self._device.shapes(operation, args, kwargs)
        pool = HOST if pinned else self._name
        found = _mapped(lambda each: self._device.allocator.tensor(each, pool), shapes)
        if not operation.name().startswith(("aten::empty", "aten::new_empty")):
            targets = [self._device.allocator.unowned(each) for each in _flat(found)]
            self._give(_call(operation, late_args, late_kwargs, targets))
        return found

    def _give(self, work: Callable[[], None]) -> None:
        self._device.give(self._stream, work)


def _call(
    operation: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    targets: Sequence[Callable[[], Tensor]],
) -> Callable[[], None]:
    """The operation on what the memory then holds; its results go to `targets`."""

    def work() -> None:
        with torch.inference_mode():
            found = operation(
                *map(_now, args), **{name: _now(each) for name, each in kwargs.items()}
            )
            for target, result in zip(targets, _flat(found) if targets else (), strict=True):
                target().copy_(result)

    return work


def _now(argument: Any) -> Any:
    if isinstance(argument, list | tuple):
        return type(argument)(map(_now, argument))
    return argument() if callable(argument) and not isinstance(argument, type) else argument


def _mapped(change: Callable[[Tensor], Any], argument: Any) -> Any:
    if isinstance(argument, Tensor):
        return change(argument)
    if isinstance(argument, dict):
        return {name: _mapped(change, each) for name, each in argument.items()}
    if isinstance(argument, list | tuple):
        return type(argument)(_mapped(change, each) for each in argument)
    return argument


def _flat(found: Any) -> list[Tensor]:
    if isinstance(found, Tensor):
        return [found]
    return (
        [each for part in found for each in _flat(part)] if isinstance(found, list | tuple) else []
    )


def _geometry(argument: Any) -> Hashable:
    """All that the shape of a result depends on."""
    if isinstance(argument, Tensor):
        return (argument.shape, argument.stride(), argument.dtype)
    if isinstance(argument, list | tuple):
        return tuple(map(_geometry, argument))
    return (type(argument), argument)


def _meta(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _on_meta(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {"device": torch.device("meta")} if "device" in kwargs else {}


def _written(operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What an operation in place returns: the arguments that it writes."""
    written = [
        args[place] if place < len(args) else kwargs[argument.name]
        for place, argument in enumerate(operation._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    returns = len(operation._schema.returns)
    return None if returns == 0 else written[0] if returns == 1 else tuple(written)


@dataclass
class DelayedStream(VirtualStream):
    """Runs what it is given at once, and does what that asks of torch later."""

    name: str = ""

    def run(self, work: Callable[[int], None], step: int, node: str) -> None:
        assert isinstance(self.device, DelayedKernelDevice), "a stream belongs to its device"
        with _Kernels(self.device, self, self.name):
            work(step)


@dataclass
class DelayedKernelDevice(VirtualStreams):
    """The device, and what it works with: see the module."""

    allocator: Allocator = field(default_factory=Allocator)
    _shapes: dict[Hashable, Any] = field(default_factory=dict)
    _host: dict[int, Tensor] = field(default_factory=dict)  # by the address of the storage

    def note_host(self, datum: object) -> None:
        """The tensors of `datum` lie on the host: only copies from and to the device are late."""
        for _, part in reached(datum, Patience()):
            if isinstance(part, Tensor):
                self._host[part.untyped_storage().data_ptr()] = part

    def is_host(self, tensor: Tensor) -> bool:
        """Whether `tensor[...]` lies on the host: noted as such, or of the pinned memory."""
        return (
            tensor.untyped_storage().data_ptr() in self._host
            or self.allocator.pool_of(tensor) == HOST
        )

    def shapes(self, operation: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """What an operation returns, as tensors without memory."""
        names = tuple((name, _geometry(each)) for name, each in kwargs.items())
        key = (operation, _geometry(args), names)
        if key not in self._shapes:
            self._shapes[key] = operation(
                *_mapped(_meta, args), **{**_mapped(_meta, kwargs), **_on_meta(kwargs)}
            )
        return self._shapes[key]

    def open(self, streams: Sequence[str], urgent: frozenset[str]) -> Mapping[str, VirtualStream]:
        self._streams = {name: DelayedStream(self, name=name) for name in streams}
        return self._streams

    def drain(self, stream: VirtualStream) -> None:
        """What a GPU does when its host asks for a number: wait for the stream."""
        self.go_on_until(stream.record())

    def pinned(self, *shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        """Pinned `[*shape]`, for bodies of the host: what was freed last, with what is in it."""
        return self.allocator.tensor(torch.empty(shape, dtype=dtype, device="meta"), HOST)


@dataclass
class DelayedKernels:
    """An executor on a device that does single kernels late and reuses freed memory at once.

    `seed` draws when. With one host thread a seed repeats a run.
    """

    seed: int = 0
    device: DelayedKernelDevice = field(init=False)

    def __post_init__(self) -> None:
        self.device = DelayedKernelDevice(Random(self.seed))

    def __call__(self, plan: Plan, given: RunArguments) -> RunReport:
        values = {name: self._noting(value) for name, value in plan.graph.values.items()}
        return run_on(self.device, replace(plan, graph=replace(plan.graph, values=values)), given)

    def _noting(self, value: Value) -> Value:
        allocate = value.allocate
        if allocate is None or value.place == "device":
            return value

        def noted() -> object:
            buffer = allocate()
            self.device.note_host(buffer)
            return buffer

        return replace(value, allocate=noted)
