"""Where versions of values live during a run, and what of it an op can reach.

A fresh value's version is dropped as soon as its last reader is done. The versions of a value
with slots share K physical cells, and a read returns whatever its cell holds: if a plan fails to
order a reader before the next writer, the reader really reads the wrong version.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NoReturn

from ..graph.errors import StepweaveError, did_you_mean
from ..graph.node import Read, Value
from ..graph.plan import Plan
from ..graph.step_graph import StepGraph, Vertex
from .errors import UndeclaredAccess
from .frontier import BEFORE_ALL, Frontier

Release = tuple[list[Any], int, int, "list[Iterator[int]] | None", int]


@dataclass(slots=True)
class Cells:
    """The versions of one value: version i is in cell i mod `len(cells)`."""

    value: Value
    cells: list[Any]
    readers: int  # how many (op, carry) read each version
    buffers: list[Any] | None = None  # slots: the buffer of each, kept through steps of None
    written: list[int] | None = None  # slots: the step that last wrote each
    counts: list[Iterator[int]] = field(default_factory=list)  # fresh: readers done, ever

    @staticmethod
    def of(value: Value, size: int, readers: int, kept: list[Any] | None = None) -> Cells:
        """`kept`: the buffers of an earlier run, to be used again."""
        if value.external:
            return Cells(value, [value.initial], 0)
        if value.storage == "fresh":
            counts: list[Iterator[int]] = []
            if readers > 1:
                counts = [itertools.count() for _ in range(size)]
            return Cells(value, [None] * size, readers, counts=counts)
        buffers = list(kept) if kept else [_allocated(value) for _ in range(size)]
        return Cells(value, list(buffers), readers, buffers, [BEFORE_ALL] * size)

    def release(self, carry: int) -> Release:
        """What to do when a reader is done: the last of them empties the cell.

        Readers of one version may end on several threads at once; `next` of a shared count
        is atomic, so exactly one of them finds that it is the last.
        """
        counts = self.counts if self.readers > 1 else None
        return (self.cells, len(self.cells), carry, counts, self.readers)


class Context:
    """What an op may touch, of one step at a time: exactly what it declared.

    One per op, made before the run and reused, with a table of its own names: an access costs
    a look-up in a small dict, a refusal costs nothing until it happens.
    """

    __slots__ = (
        "_buffers",
        "_frontier",
        "_reads",
        "_states",
        "_writes",
        "step",
        "vertex",
        "waited_s",
    )

    def __init__(
        self,
        vertex: Vertex,
        store: Mapping[str, Cells],
        states: Mapping[str, object],
        frontier: Frontier,
    ) -> None:
        self.vertex = vertex
        self.step = BEFORE_ALL
        self.waited_s = 0.0
        self._frontier = frontier
        self._reads: dict[str, tuple[list[Any], int, int, Any]] = {}
        self._writes: dict[str, tuple[list[Any], int, list[int] | None, list[Any]]] = {}
        self._buffers: dict[str, Cells] = {}
        self._states: dict[str, object] = {}
        # The bare name means the nearest version, where an op reads several.
        for read in sorted(vertex.op.reads, key=lambda read: -read.carry):
            if (cells := store.get(read.name)) is None:
                self._declare_state(read.name, states)
                continue
            entry = (cells.cells, len(cells.cells), read.carry, cells.value.initial)
            self._reads[read.name] = self._reads[str(read)] = entry
        for name in vertex.op.writes:
            if (cells := store.get(name)) is None:
                self._declare_state(name, states)
                continue
            whole = (cells.cells, len(cells.cells), cells.written, cells.buffers or [])
            self._writes[name] = whole
            self._buffers[name] = cells

    def _declare_state(self, name: str, states: Mapping[str, object]) -> None:
        if name in states:
            self._states[name] = states[name]

    def read(self, name: str) -> Any:
        try:
            cells, size, carry, initial = self._reads[name]
        except KeyError:
            self._refuse("read", name, self._reads)
        version = self.step - carry
        return cells[version % size] if version >= 0 else initial

    def buffer(self, name: str) -> Any:
        try:
            cells = self._buffers[name]
        except KeyError:
            self._refuse("buffer", name, self._buffers)
        if cells.buffers is None:
            return cells.value.allocate() if cells.value.allocate else None
        return cells.buffers[self.step % len(cells.buffers)]

    def write(self, name: str, datum: Any) -> None:
        try:
            cells, size, written, buffers = self._writes[name]
        except KeyError:
            self._refuse("write", name, self._writes)
        slot = self.step % size
        cells[slot] = datum
        if written is not None:
            written[slot] = self.step
            if datum is not None:
                buffers[slot] = datum

    def state(self, name: str) -> Any:
        try:
            return self._states[name]
        except KeyError:
            self._refuse("state", name, self._states)

    def stop(self) -> None:
        self._frontier.stop(self.step)

    def _refuse(self, access: str, name: str, declared: Mapping[str, object]) -> NoReturn:
        vertex = self.vertex
        if access == "state" and name in self._state_names():
            raise StepweaveError(
                f"node {vertex.node.name!r}: op {vertex.name!r} asks for state {name!r}, but the "
                "run was given no object for it: pass it in `states`"
            )
        verb = {
            "read": "reads",
            "buffer": "asks for the buffer of",
            "write": "writes",
            "state": "asks for state",
        }[access]
        names = self._state_names() if access == "state" else declared
        hint = did_you_mean(name, names) or " (it declares none)"
        raise UndeclaredAccess(
            f"node {vertex.node.name!r}: op {vertex.name!r} {verb} {name!r}, which it does not "
            f"declare{hint}"
        ) from None

    def _state_names(self) -> set[str]:
        op = self.vertex.op
        named = {read.name for read in op.reads} | set(op.writes)
        return named - set(self._reads) - set(self._writes)


def cells_in_flight(plan: Plan, ahead: int) -> dict[str, int]:
    """K for a value with slots; for a fresh one, as many versions as can be in flight.

    `ahead`: how many steps an op may be before another.
    """
    carries: dict[str, int] = {}
    for vertex in plan.graph.vertices.values():
        for read in vertex.op.reads:
            carries[read.name] = max(read.carry, carries.get(read.name, 0))
    return {
        name: slots
        if value.storage == "slots" and slots is not None
        else ahead + carries.get(name, 0) + 1
        for name, value in plan.graph.values.items()
        for slots in (plan.slots.get(name),)
    }


@dataclass(frozen=True)
class Memory:
    """The cells and contexts of one run, and the history of the values to keep."""

    contexts: Mapping[str, Context]
    cells: Mapping[str, Cells]
    kept: Mapping[str, list[Any]]

    @staticmethod
    def of(
        graph: StepGraph,
        sizes: Mapping[str, int],
        states: Mapping[str, object],
        keep: Sequence[str],
        frontier: Frontier,
        buffers: Mapping[str, list[Any]] = MappingProxyType({}),
    ) -> Memory:
        """`buffers` of earlier runs are used again. Raises `StepweaveError` for a state or value
        that the graph does not have."""
        for what, names, known in (("state", states, graph.states), ("value", keep, graph.values)):
            for name in names:
                if name not in known:
                    raise StepweaveError(
                        f"{graph.name}: there is no {what} {name!r}{did_you_mean(name, known)}"
                    )
        readers: dict[str, int] = {}
        for vertex in graph.vertices.values():
            for read in set(vertex.op.reads):
                readers[read.name] = readers.get(read.name, 0) + 1
        cells = {
            name: Cells.of(value, sizes[name], readers.get(name, 0), buffers.get(name))
            for name, value in graph.values.items()
        }
        contexts = {
            name: Context(vertex, cells, states, frontier)
            for name, vertex in graph.vertices.items()
        }
        return Memory(contexts, cells, {name: [] for name in keep})

    def histories(self, steps: int) -> dict[str, list[Any]]:
        """The kept versions; an external value is its initial one in every step."""
        return {
            name: [cells.value.initial] * steps if cells.value.external else self.kept[name]
            for name in self.kept
            if (cells := self.cells[name])
        }

    def releases(self, vertex: Vertex) -> tuple[Release, ...]:
        """What an op gives back when it is done. A version nobody reads goes with its writer."""
        done = [(read.name, read.carry) for read in sorted(set(vertex.op.reads), key=_read_key)]
        done += [(name, 0) for name in vertex.op.writes if not self._has_readers(name)]
        return tuple(self.cells[name].release(carry) for name, carry in done if self._fresh(name))

    def unwritten(self, vertex: Vertex) -> tuple[tuple[list[Any], list[int]], ...]:
        """Slots that hold an old version where an op that declared a write made none.

        A fresh value needs no such check: its cell was emptied by the last reader.
        """
        mine = (self.cells[name] for name in vertex.op.writes if name in self.cells)
        return tuple((cells.cells, cells.written) for cells in mine if cells.written is not None)

    def keepers(self, vertex: Vertex) -> tuple[tuple[Callable[[Any], None], list[Any]], ...]:
        """Where to append the versions that are kept. Buffers filled in place are copied."""
        return tuple(
            (_keep(self.kept[name], self.cells[name].value), self.cells[name].cells)
            for name in vertex.op.writes
            if name in self.kept
        )

    def _fresh(self, name: str) -> bool:
        cells = self.cells.get(name)
        return cells is not None and cells.value.storage == "fresh" and not cells.value.external

    def _has_readers(self, name: str) -> bool:
        return name in self.cells and self.cells[name].readers > 0


def _allocated(value: Value) -> Any:
    return value.allocate() if value.allocate else None


def _keep(history: list[Any], value: Value) -> Callable[[Any], None]:
    if value.allocate is None:
        return history.append
    return lambda datum: history.append(copy.deepcopy(datum))


def _read_key(read: Read) -> tuple[str, int]:
    return (read.name, read.carry)
