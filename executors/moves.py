"""What steps have in common that differ only in where their data lie, and the way between them.

A plan gives a value several slots, and steps of one shape work in them in turn. To record each of
these steps takes as long as some ten steps, though nothing but addresses differs. So what was
recorded of one is done for the others on their data (`Recording.moved`), where it can be.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..backends.operations import in_other_bits
from .contents import Unstable, signature, tensors

ALIGNED = 64
"""Bytes. Kernels may depend on where in such a line their data begin."""


class CannotMove(Exception):
    """These data do not lie as the others do."""


def alike(data: Iterable[Any]) -> Hashable:
    """Equal for data that a body could tell apart only by the addresses of tensors.

    Those of one memory stay in one memory. An object that is known by its identity (`fixed`) is
    taken for its contents if they can be compared.
    """
    of_tensor = _Shape()
    return tuple(signature(datum, of_tensor, of_fixed=_entered(of_tensor)) for datum in data)


def _entered(of_tensor: Callable[[Tensor], Hashable]) -> Callable[[Any], Hashable]:
    def of_fixed(datum: Any) -> Hashable:
        try:
            return signature(datum, of_tensor, of_fixed=None)
        except Unstable:
            return id(datum)

    return of_fixed


class _Shape:
    """All that a body can see of a tensor but its contents and its address."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}  # of memories, in the order in which they come up

    def __call__(self, tensor: Tensor) -> Hashable:
        memory = tensor.untyped_storage()
        return (
            type(tensor),
            self._numbers.setdefault(memory._cdata, len(self._numbers)),
            memory.data_ptr() % ALIGNED,
            tensor.storage_offset(),
            tensor.shape,
            tensor.stride(),
            tensor.dtype,
            tensor.device,
            in_other_bits(tensor),
        )


class Moves:
    """A change of tensors: what lies in the memory of some lies in that of others."""

    def __init__(self) -> None:
        self._memories: dict[int, tuple[Any, Any]] = {}  # name of the old one -> both
        self._taken: dict[int, int] = {}  # name of the new one -> that of the old one
        self._moved: dict[int, tuple[Tensor, Tensor]] = {}  # by id

    def add(self, before: Tensor, now: Tensor) -> None:
        """What lies where `before[...]` does is to lie where `now[...]`, of the same shape, does.

        Raises `CannotMove` where that contradicts what was added before.
        """
        old, new = before.untyped_storage(), now.untyped_storage()
        known = self._memories.setdefault(old._cdata, (old, new))
        from_there = self._taken.setdefault(new._cdata, old._cdata)
        lie_alike = (
            before.storage_offset() * before.element_size()
            == now.storage_offset() * now.element_size()
            and old.data_ptr() % ALIGNED == new.data_ptr() % ALIGNED
        )
        if known[1]._cdata != new._cdata or from_there != old._cdata or not lie_alike:
            raise CannotMove

    def add_all(self, before: Any, now: Any) -> None:
        """All tensors of a datum, in the order in which `alike` saw them. Raises `CannotMove`."""
        for old, new in zip(_all(before), _all(now), strict=True):
            self.add(old, new)

    def __call__(self, tensor: Tensor) -> Tensor:
        """The same `[...]` where `tensor[...]` lies now.

        Raises `CannotMove` if there is no room for it.
        """
        if tensor.is_mkldnn:  # weights in a library's own order, in memory of their own
            return tensor
        memory = tensor.untyped_storage()
        old, new = self._memories.get(memory._cdata, (memory, memory))
        if old._cdata == new._cdata:
            return tensor
        known = self._moved.get(id(tensor))
        if known is None:
            known = self._moved[id(tensor)] = tensor, _in(new, tensor)
        return known[1]


def _in(memory: torch.UntypedStorage, tensor: Tensor) -> Tensor:
    if type(tensor) is not Tensor or in_other_bits(tensor):
        raise CannotMove
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    last = tensor.storage_offset() + sum((size - 1) * stride for size, stride in sizes)
    if tensor.numel() and (last + 1) * tensor.element_size() > memory.nbytes():
        raise CannotMove
    with torch.inference_mode():
        return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(
            memory, tensor.storage_offset(), tensor.shape, tensor.stride()
        )


def _all(datum: Any) -> Sequence[Tensor]:
    return [*tensors(datum)]
