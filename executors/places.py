"""Memory that stays where it is: what a captured graph may know by address.

The buffers of slots do, as long as their plan is run. What a segment itself makes is copied to a
place of its slot that is kept for it; a place becomes larger where a larger datum comes, and the
memory it had before lives on only as long as a graph that works in it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from ..backends.operations import in_other_bits
from ..graph.errors import StepweaveError
from .contents import Unstable, ends, mapped, signature, tensors
from .parts import Patience, is_array, reached


class Places:
    """Memory that stays where it is, and what lies in the static slots of captured values.

    Streams ask on threads of their own: what they look up is replaced, and never changed.
    """

    def __init__(self) -> None:
        self._growing = Lock()
        self._slots: dict[tuple[Hashable, int, int], Tensor] = {}  # (name, slot, place) -> bytes
        self._slot_memory: dict[int, Any] = {}  # of those, also where one was smaller, as below
        self._staying: dict[int, Any] = {}  # weak references to storages, by address
        self._published: dict[int, tuple[Any, Hashable]] = {}  # by id, while a recording has them

    @property
    def nbytes(self) -> int:
        """Of the static slots."""
        return sum(map(len, self._slots.values()))

    def stay(self, datum: Any) -> None:
        """The memory of all tensors of `datum` stays where it is, for as long as it lives."""
        storages = [tensor.untyped_storage() for tensor in tensors(datum)]
        with self._growing:
            self._staying = _with(self._staying, storages)

    def settle(self, name: Hashable, slot: int, datum: Any) -> Any:
        """The datum, copied to where its slot lies; views of one memory together."""
        settled: dict[int, Tensor] = {}
        for place, line in enumerate(_lines(datum)):
            held = self._slot((name, slot, place), line.whole).copy_(line.whole)
            settled.update((id(part), line.part_of(held, part)) for part in line.parts)
        return mapped(datum, lambda tensor: settled[id(tensor)])

    def apart(self, datum: Any) -> Any:
        """The datum, without memory of static slots: copied are the tensors that lie in one.

        Somebody passes on what he has read. The version that he read is protected from the next
        only until he is done; under its new name nothing would protect it.

        Raises `StepweaveError` where one lies in something that nobody can make anew.
        """
        found = [*ends(datum)]
        for hidden in found:
            if not isinstance(hidden, Tensor) and self._reaches_a_slot(hidden):
                raise StepweaveError(
                    f"what it publishes holds, in a {type(hidden).__name__}, memory of a value "
                    "that it has read and that will be written again: publish a copy",
                    code="SW-SHARED-MEMORY",
                )
        if not any(isinstance(each, Tensor) and self._in_a_slot(each) for each in found):
            return datum
        return mapped(datum, lambda each: each.clone() if self._in_a_slot(each) else each)

    def _reaches_a_slot(self, hidden: object) -> bool:
        for _, part in reached(hidden, Patience()):
            while is_array(part) and part.base is not None:
                part = part.base  # the tensor whose memory an array shows
            if isinstance(part, Tensor) and self._in_a_slot(part):
                return True
        return False

    def _in_a_slot(self, tensor: Tensor) -> bool:
        try:
            address = tensor.untyped_storage().data_ptr()
        except (NotImplementedError, RuntimeError):  # sparse, or of a subclass without storage
            return False
        held = self._slot_memory.get(address)
        return held is not None and not held.expired()

    def reserve(self, name: Hashable, slot: int, datum: Any) -> None:
        """Make room for such a datum: within a capture there would be none outside it."""
        for place, line in enumerate(_lines(datum)):
            self._slot((name, slot, place), line.whole)

    def beside(self, name: Hashable, slot: int, datum: Any) -> list[tuple[Tensor, Tensor]]:
        """Of a datum that was settled in another slot: where it lies, and would lie in this one.

        Pairs `[...]` of equal shape, one for each line of memory.
        """
        return [
            (line.whole, self._slot((name, slot, place), line.whole))
            for place, line in enumerate(_lines(datum))
        ]

    def _slot(self, place: tuple[Hashable, int, int], tensor: Tensor) -> Tensor:
        size = tensor.numel() * tensor.element_size()
        held = self._slots.get(place)
        if held is None or len(held) < size:
            held = torch.empty(max(size, 1), dtype=torch.uint8, device=tensor.device)
            with self._growing:
                self._slots[place] = held
                storage = [held.untyped_storage()]
                self._staying = _with(self._staying, storage)
                self._slot_memory = _with(self._slot_memory, storage)
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


@dataclass(frozen=True)
class _Line:
    """Tensors that are copied at once: `parts` (each [...]) of `whole[...]`, a line of memory."""

    whole: Tensor
    parts: Sequence[Tensor]

    def part_of(self, copy: Tensor, part: Tensor) -> Tensor:
        """What `part[...]` is in a copy of the whole."""
        if part is self.whole:
            return copy
        begin = _bytes(part).start - _bytes(self.whole).start
        size = self.whole.element_size()
        elements = copy[begin // size : (begin + part.nbytes) // size]
        return elements.view(part.dtype).view(part.shape)


def _lines(datum: Any) -> list[_Line]:
    """What is copied of a datum: the tensors, those that lie together in one memory as a line."""
    found = {id(tensor): tensor for tensor in tensors(datum)}
    memories: dict[int, list[Tensor]] = {}
    for tensor in found.values():
        memories.setdefault(tensor.untyped_storage()._cdata, []).append(tensor)
    lines: list[_Line] = []
    for parts in memories.values():
        whole = _around(parts) if len(parts) > 1 else None
        alone = [_Line(part, [part]) for part in parts]
        lines += alone if whole is None else [_Line(whole, parts)]
    return lines


def _around(parts: Sequence[Tensor]) -> Tensor | None:
    """The line of memory from the first of some views to the last; None where they are not parts
    of one, or most of it is something else."""
    first, *others = (_bytes(part) for part in parts)
    begin = min(first.start, *(each.start for each in others))
    end = max(first.stop, *(each.stop for each in others))
    size = parts[0].element_size()
    for part, where in zip(parts, (first, *others), strict=True):
        if not part.is_contiguous() or in_other_bits(part):
            return None
        if (where.start - begin) % max(size, part.element_size()) or where.stop % size:
            return None  # not so many elements, or not where such elements may lie
    if begin % size or end - begin > 2 * sum(part.nbytes for part in parts):
        return None
    return parts[0].as_strided(((end - begin) // size,), (1,), begin // size)


def _bytes(tensor: Tensor) -> range:
    """Where `tensor[...]`, which has no gaps, lies in its memory."""
    begin = tensor.storage_offset() * tensor.element_size()
    return range(begin, begin + tensor.nbytes)


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
        in_other_bits(tensor),
    )


def _with(known: Mapping[int, Any], storages: Sequence[torch.UntypedStorage]) -> dict[int, Any]:
    """Weak references by address: those to what still lives, and to these."""
    living = {at: each for at, each in known.items() if not each.expired()}
    return {**living, **{each.data_ptr(): _weakly(each) for each in storages}}


_weakly: Callable[[torch.UntypedStorage], Any] = StorageWeakRef
