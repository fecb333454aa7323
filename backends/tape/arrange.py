"""From noted operations to calls on planned memory.

What nobody reads is left out. What depends on nothing is computed once; so is the margin of what is
padded, which has memory of its own. What is copied as a whole into memory from outside is computed
there. All other results share the memory of a pool: two of one recording where one is dead before
the other begins, and those of different recordings always, since recordings of one pool never run
at the same time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..operations import address_of
from .entries import OUTSIDE, Entry, memory_of
from .program import Operation, changed

_LINE = 64  # bytes; new tensors begin at a multiple of it, and kernels may depend on that

CONSTANT = 1 << 16
"""Bytes of a result that is always the same, up to which it is kept and not computed again."""


@dataclass
class Pool:
    """Memory in which recordings work that never run at the same time: `blocks[i][bytes]`."""

    blocks: list[Tensor] = field(default_factory=list)  # each [bytes]
    _sizes: list[int] = field(default_factory=list)

    def take(self, size: int, free: list[int]) -> int:
        """Number of the smallest of the `free` blocks with that many bytes, or of a new block."""
        sizes = self._sizes
        fitting = [
            (sizes[number], place) for place, number in enumerate(free) if sizes[number] >= size
        ]
        if fitting:
            return free.pop(min(fitting)[1])
        self.blocks.append(torch.empty(-(-max(size, 1) // _LINE) * _LINE, dtype=torch.uint8))
        sizes.append(len(self.blocks[-1]))
        return len(sizes) - 1


def arranged(entries: Sequence[Entry], pool: Pool) -> list[tuple[int, Operation]]:
    """What does `entries` again, in order, each with its part of the recording."""
    made = {memory for each in entries if not each.mutates for memory in each.writes}
    noted, entries = entries, _read_by_someone(entries, made)
    dropped = frozenset(noted).difference(entries)
    left = made.difference(*(each.writes for each in dropped if each.mutates))
    constant = _constants(entries, left)
    framed = _framed(entries, left - constant)
    once = constant | framed
    entries = [each for each in entries if not each.writes or not _same_again(each, once)]
    placed = Placed(pool)
    entries = _written_through(entries, made - once, placed)
    placed.plan(entries, made - once)
    steps: list[tuple[int, Operation]] = []
    for entry in entries:
        if entry.again is not None:
            args, kwargs = placed.moved(entry.args), placed.moved_named(entry.kwargs)
            again = entry.again(args, kwargs, placed.moved(entry.results))
            kept = (each for each in again if not (entry.writes <= framed and _fills(each)))
            steps += [(entry.part, operation) for operation in kept]
    return steps


def _read_by_someone(entries: Sequence[Entry], made: set[int]) -> list[Entry]:
    """Those whose results somebody reads: a later one of them, or whoever reads other memory."""
    wanted: set[int] = set()
    found = []
    for entry in reversed(entries):
        if entry.again is None and not entry.writes:
            continue  # a view
        if any(memory in wanted or memory not in made for memory in entry.writes):
            wanted |= entry.reads
            found.append(entry)
    found.reverse()
    return found


def _constants(entries: Sequence[Entry], made: set[int]) -> set[int]:
    """Memory of `made` whose content is the same each time: written once, from constants only."""
    changed = {memory for entry in entries if entry.mutates for memory in entry.writes}
    found: set[int] = set()
    for entry in entries:
        pure = entry.again is not None and not entry.mutates
        if sum(each.numel() * each.element_size() for each in entry.results) > CONSTANT:
            continue  # each recording would have its own
        if pure and entry.reads <= found and entry.writes <= made - changed:
            found |= entry.writes
    return found


def _framed(entries: Sequence[Entry], made: set[int]) -> set[int]:
    """Memory of `made` that begins as constants, of which the same part is written over each time,
    and which is read only after that: what is around that part stays."""
    begun: dict[int, int] = {}  # where its contents are whole
    read: dict[int, int] = {}  # where first
    others: set[int] = set()
    for at, entry in enumerate(entries):
        for memory in entry.writes & made:
            if _writes_over(entry, memory) if memory in begun else _begins(entry):
                begun[memory] = at
            else:
                others.add(memory)
        for memory in entry.reads - entry.writes:
            read.setdefault(memory, at)
        if sum(each.numel() * each.element_size() for each in entry.results) > CONSTANT:
            others |= entry.writes
    return {
        memory
        for memory, at in begun.items()
        if memory not in others and at < read.get(memory, len(entries))
    }


_PAD = torch.ops.aten.constant_pad_nd.default
_EMPTY = (
    torch.ops.aten.zeros.default,
    torch.ops.aten.zeros_like.default,
    torch.ops.aten.new_zeros.default,
)


def _begins(entry: Entry) -> bool:
    """Whether it makes constants, or those around a place for something else."""
    return entry.again is not None and (entry.func in _EMPTY or entry.func is _PAD)


def _writes_over(entry: Entry, memory: int) -> bool:
    """Whether it copies something else to a place in the memory."""
    if entry.func is not torch.ops.aten.copy_.default:
        return False
    return memory_of(entry.args[0]) == memory != memory_of(entry.args[1])


def _same_again(entry: Entry, once: set[int]) -> bool:
    """Whether what it would write is there."""
    return entry.writes <= once and not entry.mutates and entry.func is not _PAD


def _fills(operation: Operation) -> bool:
    return operation.func in (torch.ops.aten.fill_.Scalar, torch.ops.aten.zero_.default)


def _written_through(entries: Sequence[Entry], made: set[int], placed: Placed) -> list[Entry]:
    """Without copies into memory from outside of what can be computed there."""
    touches: dict[int, list[int]] = {}
    writers: dict[int, list[int]] = {}
    for at, entry in enumerate(entries):
        for memory in entry.reads | entry.writes:
            touches.setdefault(memory, []).append(at)
        for memory in entry.writes:
            writers.setdefault(memory, []).append(at)
    calls = writers.get(OUTSIDE, [])  # which may look at any target, and change it
    kept = []
    for at, entry in enumerate(entries):
        if not _copies_whole(entry):
            kept.append(entry)
            continue
        target, source = entry.args[0], entry.args[1]
        memory, there = memory_of(source), memory_of(target)
        free = memory in made and there not in made and memory not in placed.elsewhere
        # From the first write of the source on, nobody may touch the target but this copy. After
        # it nobody may write the source, or the target as long as the source is read.
        if (
            free
            and not any(touches[memory][0] <= each < at for each in (*touches[there], *calls))
            and writers[memory][-1] < at
            and not any(at < each <= touches[memory][-1] for each in (*writers[there], *calls))
        ):
            placed.elsewhere[memory] = target
            touches[there] += touches[memory]  # or another source would be moved there meanwhile
            writers[there] += writers[memory]
            continue
        kept.append(entry)
    return kept


def _copies_whole(entry: Entry) -> bool:
    if entry.func is not torch.ops.aten.copy_.default or len(entry.args) < 2:
        return False
    target, source = entry.args[:2]
    return bool(
        target.dtype == source.dtype
        and target.shape == source.shape
        and target.is_contiguous()
        and source.is_contiguous()
        and source.storage_offset() == 0
        and source.numel() * source.element_size() == source.untyped_storage().nbytes()
        and address_of(target) % _LINE == 0
    )


@dataclass
class Placed:
    """Where the memory of a recording lies when its operations are done again."""

    pool: Pool
    elsewhere: dict[int, Tensor] = field(default_factory=dict)  # memory -> what lies there [...]
    _moved: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)  # id -> (old, new)

    def plan(self, entries: Sequence[Entry], made: set[int]) -> None:
        """Give each memory of `made` a block of the pool for as long as it is used."""
        sizes: dict[int, int] = {}
        last: dict[int, int] = {}
        for at, entry in enumerate(entries):
            for memory, size in entry.lies.items():
                if memory in made and memory not in self.elsewhere:
                    sizes[memory] = size
                    last[memory] = at
        free, ends = list(range(len(self.pool.blocks))), _by_end(last)
        taken: dict[int, int] = {}
        for at, entry in enumerate(entries):
            for memory in (*entry.writes, *entry.reads):
                if memory in sizes and memory not in taken:
                    taken[memory] = self.pool.take(sizes[memory], free)
            free += [taken[memory] for memory in ends.get(at, ())]
        self.elsewhere |= {memory: self.pool.blocks[number] for memory, number in taken.items()}

    def moved(self, parts: Iterable[Any]) -> Any:
        """The same arguments, with tensors where they are now."""
        return tuple(changed(part, self._tensor) for part in parts)

    def moved_named(self, parts: dict[str, Any]) -> dict[str, Any]:
        return {name: changed(part, self._tensor) for name, part in parts.items()}

    def _tensor(self, tensor: Tensor) -> Tensor:
        place = self.elsewhere.get(memory_of(tensor))
        if place is None:
            return tensor
        known = self._moved.get(id(tensor))
        if known is None:
            begin = place.storage_offset() * place.element_size() // tensor.element_size()
            new = torch.empty(0, dtype=tensor.dtype).set_(
                place.untyped_storage(),
                begin + tensor.storage_offset(),
                tensor.shape,
                tensor.stride(),
            )
            known = self._moved[id(tensor)] = tensor, new
        return known[1]


def _by_end(last: dict[int, int]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for memory, at in last.items():
        found.setdefault(at, []).append(memory)
    return found
