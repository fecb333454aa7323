"""What is noted of the operations of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from torch import Tensor

from .program import Operation


def leaves(parts: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors `[...]` among the arguments or results of an operation."""
    for part in parts:
        if isinstance(part, Tensor):
            yield part
        elif isinstance(part, list | tuple):
            yield from leaves(part)


def memory_of(tensor: Tensor) -> int:
    """A name for the memory in which `tensor[...]` lies, as long as it is alive."""
    if tensor.is_mkldnn:  # a library's own order of weights, in memory that nobody else sees
        return -id(tensor)
    return int(tensor.untyped_storage()._cdata)


@cache
def mutates(func: Any) -> bool:
    """Whether the operation changes what it is given."""
    return bool(func._schema.is_mutable)


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
    reads: frozenset[int] = field(init=False)
    writes: frozenset[int] = field(init=False)

    @property
    def mutates(self) -> bool:
        """Whether it changes what it was given."""
        return mutates(self.func)

    def __post_init__(self) -> None:
        given = frozenset(map(memory_of, leaves((*self.args, *self.kwargs.values()))))
        made = frozenset(map(memory_of, self.results))
        self.reads = given
        self.writes = (_changed(self) | (made - given)) if self.mutates else made - given


OUTSIDE = 0
"""A name for memory that no recording makes."""


class Called(Entry):
    """A call that is made anew each time, of whatever: it may change its tensors and what it knows
    beside them."""

    mutates = True

    def __init__(self, call: Callable[..., None], tensors: Sequence[Tensor], part: int) -> None:
        """It is given `tensors[...]`."""
        self.func, self.args, self.kwargs, self.results = call, tuple(tensors), {}, ()
        self.again = lambda args, kwargs, results: (Operation(call, args),)
        self.part = part
        self.reads = frozenset(map(memory_of, tensors))
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
