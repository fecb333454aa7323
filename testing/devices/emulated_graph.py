"""A CUDA graph without CUDA: the tensor operations of a capture, done again on the same memory.

While a body runs, a dispatch mode notes each operation with its very arguments. A replay does the
same operations in the same order and puts each result where the first one lies. No Python of the
body runs then. So what a captured graph cannot know, this one cannot know either: host numbers,
other addresses, what a branch would decide now. A step that this replays wrongly, a graph would
replay wrongly too.

Graphs of one stream work in the same memory, so what one leaves there may be anything. A replay
therefore overwrites all that its operations made, once they are done: only what was copied to
memory from outside the capture can be read afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ...backends.operations import asks
from ...backends.streams import CannotCapture
from ...backends.tape.entries import memory_of

SPOILT = 85  # fits every integer, and is neither a placeholder nor a likely count


class EmulatedGraph:
    """`with graph.capture(): body()`, then `graph.replay()` as often as wanted."""

    live = False
    refused = None
    size = 0  # a graph is launched by one call

    def refuse(self, reason: str) -> NoReturn:
        """Raises `CannotCapture`, as a body could not go on in a capture on a GPU."""
        raise CannotCapture(reason)

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []
        self._made: list[Tensor] = []
        self._noting: _Noting | None = None

    @contextmanager
    def capture(self) -> Iterator[None]:
        """A capture that fails has done nothing, as with a graph: what it changed is put back."""
        noting = self._noting = _Noting(self.calls, self._made)
        try:
            with noting:
                yield
        except BaseException:
            noting.undo()
            raise
        self.spoil()

    def between(self, call: Callable[..., None], *tensors: Tensor) -> None:
        """A call on `tensors[...]` is no part of it: what comes before is done by then."""
        assert self._noting is not None, "within a capture"
        self.calls.append(partial(call, *tensors))
        self._noting.paused = True
        try:
            call(*tensors)
        finally:
            self._noting.paused = False

    def replay(self) -> None:
        self.again()
        self.spoil()

    @torch.inference_mode()
    def again(self) -> None:
        """What was captured; whoever captured more in the same memory finds it there."""
        for call in self.calls:
            call()

    @torch.inference_mode()
    def spoil(self) -> None:
        """What another graph does to the memory in which this one works."""
        for tensor in self._made:
            if tensor.dtype == torch.bool:
                tensor.logical_not_()
            else:
                tensor.fill_(math.nan if tensor.is_floating_point() else SPOILT)


class _Noting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, calls: list[Callable[[], None]], made: list[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._calls, self._made = calls, made
        self.paused = False
        self._before: dict[int, tuple[Tensor, Tensor]] = {}  # memory -> (as bytes, what it held)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.paused:
            return func(*args, **kwargs)
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if asks(func, args):
            name = func.overloadpacket.__name__
            raise CannotCapture(f"{name} asks the device for a number that the host waits for")
        if func._schema.is_mutable:
            self._remember(given)
        result = func(*args, **kwargs)
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        owned = {memory_of(tensor) for tensor in given}
        new = [memory_of(tensor) not in owned for tensor in made]
        if any(new) or func._schema.is_mutable:  # else a view: it lies where it lay
            self._calls.append(_again(func, args, kwargs, made, new))
            self._made += [tensor for tensor, mine in zip(made, new, strict=True) if mine]
        return result

    def undo(self) -> None:
        for memory, held in self._before.values():
            memory.copy_(held)

    def _remember(self, tensors: list[Tensor]) -> None:
        for tensor in tensors:
            if memory_of(tensor) not in self._before:
                memory = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
                self._before[memory_of(tensor)] = (memory, memory.clone())


def _again(
    func: Any, args: tuple[Any, ...], kwargs: Any, made: list[Tensor], new: list[bool]
) -> Callable[[], None]:
    """The same call, its new results put where the first ones lie."""

    def call() -> None:
        results = [leaf for leaf in tree_leaves(func(*args, **kwargs)) if isinstance(leaf, Tensor)]
        for place, result, elsewhere in zip(made, results, new, strict=True):
            if elsewhere:
                place.copy_(result)

    return call
