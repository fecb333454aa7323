"""Memory that stays where it is: what a captured graph may know by address.

The buffers of slots do, as long as their plan is run. What a segment itself makes is copied to a
place of its slot that is kept for it; a place becomes larger where a larger datum comes, and the
memory it had before lives on only as long as a graph that works in it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from .contents import Unstable, mapped, signature, tensors


class Places:
    """Memory that stays where it is, and what lies in the static slots of captured values."""

    def __init__(self) -> None:
        self._slots: dict[tuple[str, int, int], Tensor] = {}  # (value, slot, place) -> bytes
        self._slot_memory: dict[int, Any] = {}  # of those, also where one was smaller, as below
        self._staying: dict[int, Any] = {}  # weak references to storages, by address
        self._published: dict[int, tuple[Any, Hashable]] = {}  # by id, while a recording has them

    @property
    def nbytes(self) -> int:
        """Of the static slots."""
        return sum(map(len, self._slots.values()))

    def stay(self, datum: Any) -> None:
        """The memory of all tensors of `datum` stays where it is, for as long as it lives."""
        for tensor in tensors(datum):
            storage = tensor.untyped_storage()
            self._staying[storage.data_ptr()] = _weakly(storage)

    def settle(self, name: str, slot: int, datum: Any) -> Any:
        """The datum, copied to where its slot lies."""
        places = count()

        def settled(tensor: Tensor) -> Tensor:
            return self._slot((name, slot, next(places)), tensor).copy_(tensor)

        return mapped(datum, settled)

    def apart(self, datum: Any) -> Any:
        """The datum, without memory of static slots: copied are the tensors that lie in one.

        Somebody passes on what he has read. The version that he read is protected from the next
        only until he is done; under its new name nothing would protect it.
        """
        if not any(self._in_a_slot(tensor) for tensor in tensors(datum)):
            return datum
        return mapped(datum, lambda each: each.clone() if self._in_a_slot(each) else each)

    def _in_a_slot(self, tensor: Tensor) -> bool:
        held = self._slot_memory.get(tensor.untyped_storage().data_ptr())
        return held is not None and not held.expired()

    def reserve(self, name: str, slot: int, datum: Any) -> None:
        """Make room for such a datum: within a capture there would be none outside it."""
        for place, tensor in enumerate(tensors(datum)):
            self._slot((name, slot, place), tensor)

    def _slot(self, place: tuple[str, int, int], tensor: Tensor) -> Tensor:
        size = tensor.numel() * tensor.element_size()
        held = self._slots.get(place)
        if held is None or len(held) < size:
            held = torch.empty(max(size, 1), dtype=torch.uint8, device=tensor.device)
            self._slots[place] = held
            self._staying, self._slot_memory = (
                {at: each for at, each in known.items() if not each.expired()}
                for known in (self._staying, self._slot_memory)
            )
            self.stay(held)
            at = held.untyped_storage().data_ptr()
            self._slot_memory[at] = self._staying[at]
        return held[:size].view(tensor.dtype).view(tensor.shape)

    def signature(self, datum: Any) -> Hashable:
        """All that a body can see of a datum but the contents of its tensors.

        Raises `Unstable` also for a tensor in memory that is not known to stay.
        """
        published = self._published.get(id(datum))
        if published is not None and published[0] is datum:
            return published[1]
        return Hashed(signature(datum, self._staying_place))

    def publish(self, datum: Any, known: Hashable) -> None:
        """Note what a recording publishes in each replay, and its signature: nobody changes it."""
        self._published[id(datum)] = datum, known

    def withdraw(self, datum: Any) -> None:
        """It is given up with its recording."""
        self._published.pop(id(datum), None)

    def _staying_place(self, tensor: Tensor) -> Hashable:
        known = self._staying.get(tensor.untyped_storage().data_ptr())
        if known is None or known.expired():
            raise Unstable("the memory that it reads is elsewhere in each step")
        return place(tensor)


class Hashed:
    """A signature whose hash is computed once: a tuple computes its own at each look-up."""

    __slots__ = ("_hash", "_signature")

    def __init__(self, signature: Hashable) -> None:
        self._signature, self._hash = signature, hash(signature)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Hashed)
            and self._hash == other._hash
            and self._signature == other._signature
        )


def place(tensor: Tensor) -> Hashable:
    """All that a body can see of `tensor[...]` but its contents."""
    return (
        type(tensor),
        tensor.data_ptr(),
        tensor.shape,
        tensor.stride(),
        tensor.dtype,
        tensor.device,
        tensor.is_neg() or tensor.is_conj(),
    )


_weakly: Callable[[torch.UntypedStorage], Any] = StorageWeakRef
