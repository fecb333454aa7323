"""What is noted of the operations of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from torch import Tensor

from ..operations import mutates
from .program import Operation, leaves


def memory_of(tensor: Tensor) -> int:
    """A name for the memory in which `tensor[...]` lies, as long as it is alive."""
    if tensor.is_mkldnn:  # a library's own order of weights, in memory that nobody else sees
        return -id(tensor)
    return int(tensor.untyped_storage()._cdata)


@dataclass(eq=False)
class Entry:
    """One operation: what it was given and what came out."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: Sequence[Tensor]  # each [...]
    again: Callable[..., Sequence[Operation]] | None = None
    """Of its arguments and results: how it is done again. None: nothing is to be done."""
    part: int = 0
    """Of the recording."""
    mutates: bool = field(init=False)
    """It changes what it was given."""
    reads: frozenset[int] = field(init=False)
    writes: frozenset[int] = field(init=False)
    lies: dict[int, int] = field(init=False)
    """Bytes of each memory that it is given or makes."""

    def __post_init__(self) -> None:
        self.lies = {}
        given = self._noted(leaves((*self.args, *self.kwargs.values())))
        made = self._noted(self.results)
        self.mutates = mutates(self.func)
        self.reads = given
        self.writes = (_changed(self) | (made - given)) if self.mutates else made - given

    def _noted(self, tensors: Iterable[Tensor]) -> frozenset[int]:
        found = []
        for tensor in tensors:
            memory = memory_of(tensor)
            found.append(memory)
            if memory not in self.lies:
                self.lies[memory] = 0 if memory < 0 else tensor.untyped_storage().nbytes()
        return frozenset(found)


OUTSIDE = 0
"""A name for memory that no recording makes."""


class Called(Entry):
    """A call that is made anew each time, of whatever: it may change its tensors and what it knows
    beside them."""

    def __init__(self, call: Callable[..., None], tensors: Sequence[Tensor], part: int) -> None:
        """It is given `tensors[...]`."""
        self.func, self.args, self.kwargs, self.results = call, tuple(tensors), {}, ()
        self.again = lambda args, kwargs, results: (Operation(call, args),)
        self.part, self.mutates, self.lies = part, True, {}
        self.reads = self._noted(tensors)
        self.writes = self.reads | {OUTSIDE}


def _changed(entry: Entry) -> frozenset[int]:
    """The memory of the arguments that the operation changes."""
    found: set[int] = set()
    for place, name in _written(entry.func):
        given = entry.args[place] if place < len(entry.args) else entry.kwargs.get(name)
        found |= set(map(memory_of, leaves([given])))
    return frozenset(found)


@cache
def _written(func: Any) -> tuple[tuple[int, str], ...]:
    """Place and name of the arguments that the operation changes."""
    return tuple(
        (len(func._schema.arguments) if argument.kwarg_only else place, argument.name)
        for place, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )
