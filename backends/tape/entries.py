"""What is noted of the operations of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor


def leaves(parts: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors `[...]` among the arguments or results of an operation."""
    for part in parts:
        if isinstance(part, Tensor):
            yield part
        elif isinstance(part, list | tuple):
            yield from leaves(part)


def memory_of(tensor: Tensor) -> int:
    """A name for the memory in which `tensor[...]` lies, as long as it is alive."""
    return int(tensor.untyped_storage()._cdata)


@dataclass(eq=False)
class Entry:
    """One operation: what it was given and what came out."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: Sequence[Tensor]  # each [...]
    again: Callable[..., Callable[[], object]] | None = None
    """Of its arguments and results: how it is done again. None: nothing is to be done."""
    reads: frozenset[int] = field(init=False)
    writes: frozenset[int] = field(init=False)

    @property
    def mutates(self) -> bool:
        """Whether it changes what it was given."""
        return bool(self.func._schema.is_mutable)

    def __post_init__(self) -> None:
        given = frozenset(map(memory_of, leaves((*self.args, *self.kwargs.values()))))
        made = frozenset(map(memory_of, self.results))
        self.reads = given
        self.writes = (_changed(self) | (made - given)) if self.mutates else made - given


def _changed(entry: Entry) -> frozenset[int]:
    """The memory of the arguments that the operation changes."""
    found: set[int] = set()
    for place, argument in enumerate(entry.func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        if not argument.kwarg_only and place < len(entry.args):
            given = entry.args[place]
        else:
            given = entry.kwargs.get(argument.name)
        found |= set(map(memory_of, leaves([given])))
    return frozenset(found)
