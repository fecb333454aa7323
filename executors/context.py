"""Where versions of values live during a run, and what of it an op can reach.

A fresh value's version is dropped as soon as its last reader is done. The versions of a value
with slots share K physical cells, and a read returns whatever its cell holds: if a plan fails to
order a reader before the next writer, the reader really reads the wrong version. Where the value
says how to allocate, each slot has a buffer of its own, its home: see `homes.py`.
"""

from __future__ import annotations

import copy
import itertools
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NoReturn

from ..graph.answers.orderings import Orderings
from ..graph.errors import StepweaveError, did_you_mean
from ..graph.node import Read, Value
from ..graph.pieces import Pieces
from ..graph.plan import Plan
from ..graph.step_graph import StepGraph, Vertex
from .errors import ContractViolation, UndeclaredAccess
from .frontier import BEFORE_ALL, Frontier
from .homes import Home, Homes, fill, fits, share
from .parts import PLAIN, is_tensor
from .source_line import where
from .turns import Slots, in_turn

UNBOUNDED = 128  # versions of a fresh value, where a plan that nobody verified sets no limit
Release = tuple[Slots, int, int, "list[Iterator[int]] | None", int]


@dataclass(slots=True)
class Cells:
    """The versions of one value: version i is in cell i mod `len(cells)`."""

    value: Value
    cells: Slots
    readers: int  # how many (op, carry) read each version
    buffers: list[Any] | None = None  # slots with `allocate`: the home of each
    written: list[int] | None = None  # slots: the step that last wrote each
    counts: list[Iterator[int]] = field(default_factory=list)  # fresh: readers done, ever

    @staticmethod
    def of(
        value: Value,
        size: int,
        readers: int,
        kept: list[Any] | None = None,
        shared: Slots | None = None,
    ) -> Cells:
        """`kept`: the buffers of an earlier run, to be used again; `shared`: slots in turn."""
        if value.external:
            return Cells(value, [value.initial], 0)
        if value.storage == "fresh":
            counts: list[Iterator[int]] = []
            if readers > 1:
                counts = [itertools.count() for _ in range(size)]
            return Cells(value, [None] * size, readers, counts=counts)
        buffers = None
        if value.allocate is not None:
            buffers = list(kept) if kept else [value.allocate() for _ in range(size)]
        cells: Slots = [None] * size if shared is None else shared
        return Cells(value, cells, readers, buffers, [BEFORE_ALL] * len(cells))

    def before(self, version: int) -> Any:
        """What is read of a version before the first that is written here."""
        return self.value.initial

    def fresh_buffer(self) -> Any:
        """A buffer for one version of a fresh value. Raises `StepweaveError` if it is not new."""
        assert self.value.allocate is not None, "only what can be allocated has buffers"
        made = self.value.allocate()
        held = (self.cells[slot] for slot in range(len(self.cells)))
        if any(each is not None and share(each, made) for each in held):
            raise StepweaveError(
                f"value {self.value.name!r}: `allocate` gave a step the memory of a version that is"
                " still read. Make a new buffer in each call.",
                code="SW-SHARED-MEMORY",
            )
        return made

    def release(self, carry: int) -> Release:
        """What to do when a reader is done: the last of them empties the cell.

        Readers of one version may end on several threads at once; `next` of a shared count
        is atomic, so exactly one of them finds that it is the last.
        """
        counts = self.counts if self.readers > 1 else None
        return (self.cells, len(self.cells), carry, counts, self.readers)


class Earlier:
    """Versions of steps before a switch, where the plan before has written them."""

    def __init__(self, cells: Mapping[str, Cells], first: int) -> None:
        self._cells = cells
        self._first = first

    def note(self, homes: Homes) -> None:
        """Whose the buffers are that these versions lie in: their plan may write them again."""
        for name, cells in self._cells.items():
            for slot, buffer in enumerate(cells.buffers or ()):
                homes.add_slot(f"{name} of the plan before", slot, buffer)

    def reader(self, value: Value) -> Callable[[int], Any]:
        """What a reader of the plan after finds; `initial`, where nobody wrote that version."""

        def read(version: int) -> Any:
            cells = self._cells.get(value.name)
            if cells is None or value.external or version < self._first:
                return value.initial
            if cells.value.external:
                return value.initial
            return cells.cells[version % len(cells.cells)]

        return read


class Context:
    """What an op may touch, of one step at a time: exactly what it declared.

    One per op, made before the run and reused, with a table of its own names: an access costs
    a look-up in a small dict, a refusal costs nothing until it happens.
    """

    __slots__ = (
        "_buffers",
        "_first",
        "_frontier",
        "_homes",
        "_reads",
        "_states",
        "_writes",
        "pieces",
        "step",
        "vertex",
        "waited_s",
    )
    firing = 0  # unrolled nodes know theirs (`graph/rates.py`)

    def __init__(
        self,
        vertex: Vertex,
        store: Mapping[str, Cells],
        states: Mapping[str, object],
        frontier: Frontier,
        homes: Homes,
        earlier: Earlier | None = None,
    ) -> None:
        self.vertex = vertex
        self.step = BEFORE_ALL
        self.waited_s = 0.0
        self.pieces: Pieces | None = None
        self._frontier = frontier
        self._first = frontier.first
        self._homes = homes
        self._reads: dict[str, tuple[Slots, int, int, Callable[[int], Any]]] = {}
        self._writes: dict[str, tuple[Slots, int, list[int] | None, list[Any]]] = {}
        self._buffers: dict[str, Cells] = {}
        self._states: dict[str, object] = {}
        # The bare name means the nearest version, where an op reads several.
        for read in sorted(vertex.op.reads, key=lambda read: -read.carry):
            if (cells := store.get(read.name)) is None:
                self._declare_state(read.name, states)
                continue
            before = cells.before if earlier is None else earlier.reader(cells.value)
            entry = (cells.cells, len(cells.cells), read.carry, before)
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
            cells, size, carry, before = self._reads[name]
        except KeyError:
            self._refuse("read", name, self._reads)
        version = self.step - carry
        return cells[version % size] if version >= self._first else before(version)

    def buffer(self, name: str) -> Any:
        """The buffer of this step's slot. Raises `UndeclaredAccess` if there is none."""
        try:
            cells = self._buffers[name]
        except KeyError:
            self._refuse("buffer", name, self._buffers)
        if cells.buffers is not None:
            return cells.buffers[self.step % len(cells.buffers)]
        if cells.value.allocate is not None:
            return cells.fresh_buffer()
        raise UndeclaredAccess(
            f"node {self.vertex.node.name!r}: op {self.vertex.name!r} asks for the buffer of "
            f"{name!r}, which has none: publish a new datum in each step, or declare the value "
            "with `allocate`, a function that makes the buffer of a slot"
        )

    def write(self, name: str, datum: Any) -> None:
        try:
            cells, size, written, buffers = self._writes[name]
        except KeyError:
            self._refuse("write", name, self._writes)
        slot = self.step % size
        if type(datum) not in PLAIN and not (buffers and datum is buffers[slot]):
            datum = self._placed(name, slot, buffers[slot] if buffers else None, datum)
        cells[slot] = datum
        if written is not None:
            written[slot] = self.step

    def write_again(self, name: str, datum: Any) -> None:
        """`write` of what `write` has placed before, in the same slot."""
        cells, size, written, _ = self._writes[name]
        slot = self.step % size
        cells[slot] = datum
        if written is not None:
            written[slot] = self.step

    def published(self, name: str) -> Any:
        """What `write` has put into the cell of this step: the datum, or the home that got it."""
        cells, size, _, _ = self._writes[name]
        return cells[self.step % size]

    def _placed(self, name: str, slot: int, home: Any, datum: Any) -> Any:
        """What goes into the cell: `datum`, or the slot's home with its content."""
        mine, owners = Home(name, slot), self._homes.of(datum)
        if home is None:
            if owners <= {None}:
                return datum
        elif not owners or (mine in owners and owners <= {mine, None}):
            return datum
        elif fits(home, datum) and not self._beside_the_stream(name):
            fill(home, datum)
            return home
        self._refuse_memory(name, owners - {mine, None}, home)

    def _beside_the_stream(self, name: str) -> bool:
        """Whether a copy of host memory would be made at once, and not in the stream's order."""
        return self.vertex.side == "device" and self._buffers[name].value.place != "device"

    def _refuse_memory(self, name: str, owners: set[Home | None], home: Any) -> NoReturn:
        others = sorted(str(owner) for owner in owners)
        of = f"memory of {others[0]}, which will be written again" if others else "other memory"
        if home is None:
            advice = "publish a copy"
        elif self._beside_the_stream(name):
            advice = f"fill `ctx.buffer({name!r})` on the stream and publish that"
        else:
            advice = f"fill `ctx.buffer({name!r})` and publish that; this does not fit into it"
        file, line, at = where()
        raise ContractViolation(
            "SW-SHARED-MEMORY",
            self.vertex,
            name,
            self.step,
            f"publishes {of}, as {name!r}: {advice}{f' ({at})' if at else ''}",
            file,
            line,
        )

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


def cells_in_flight(plan: Plan) -> dict[str, int]:
    """K for a value with slots; for a fresh one, as many versions as can be in flight.

    The version that a reader of step i reads, with carry c, was written in step i - c. Where the
    plan has the reader before the writer of step i + d, that version is not the last but c + d.
    """
    cells = {name: plan.slots.get(name) or 1 for name in plan.graph.values}
    vertices = plan.graph.vertices
    writer = {name: vertex.name for vertex in vertices.values() for name in vertex.op.writes}
    orders = Orderings(plan.always)
    for vertex in vertices.values():
        for read in vertex.op.reads:
            value = plan.graph.values.get(read.name)
            if value is None or value.storage == "slots" or read.name not in writer:
                continue
            apart = orders.distance(vertex.name, writer[read.name])
            apart = UNBOUNDED if apart is None else apart
            cells[read.name] = max(cells[read.name], read.carry, read.carry + apart)
    return cells


@dataclass(frozen=True)
class Memory:
    """The cells and contexts of one run, and the history of the values to keep."""

    contexts: Mapping[str, Context]
    cells: Mapping[str, Cells]
    kept: Mapping[str, list[Any]]
    first: int  # the step that it begins with
    earlier: Earlier | None = None
    incomplete: dict[str, Incomplete] = field(default_factory=dict)  # by op
    kept_elsewhere: set[str] = field(default_factory=set)  # by who runs the ops of these values
    held: frozenset[str] = frozenset()  # values whose versions stay until they are overwritten

    @staticmethod
    def of(
        graph: StepGraph,
        sizes: Mapping[str, int],
        states: Mapping[str, object],
        keep: Sequence[str],
        frontier: Frontier,
        buffers: Mapping[str, list[Any]] = MappingProxyType({}),
        earlier: Earlier | None = None,
        held: Collection[str] = (),
    ) -> Memory:
        """`buffers` of earlier runs are used again; `earlier`: steps of another plan; `held`:
        values whose versions another plan may still read when their readers are done. Raises
        `StepweaveError` for a state or value that the graph does not have.
        """
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
        shared = in_turn(graph.values, sizes)
        cells = {
            name: Cells.of(
                value, sizes[name], readers.get(name, 0), buffers.get(name), shared.get(name)
            )
            for name, value in graph.values.items()
        }
        homes = _homes(cells, states)
        if earlier is not None:
            earlier.note(homes)
        contexts = {
            name: Context(vertex, cells, states, frontier, homes, earlier)
            for name, vertex in graph.vertices.items()
        }
        kept: dict[str, list[Any]] = {name: [] for name in keep}
        return Memory(contexts, cells, kept, frontier.first, earlier, held=frozenset(held))

    def before(self, name: str) -> Callable[[int], Any]:
        """What is read of versions before the first step."""
        cells = self.cells[name]
        return cells.before if self.earlier is None else self.earlier.reader(cells.value)

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

    def unwritten(self, vertex: Vertex) -> tuple[tuple[Slots, int, list[int]], ...]:
        """Slots that hold an old version where an op that declared a write made none.

        A fresh value needs no such check: its cell was emptied by the last reader.
        """
        mine = (self.cells[name] for name in vertex.op.writes if name in self.cells)
        return tuple(
            (each.cells, len(each.cells), each.written) for each in mine if each.written is not None
        )

    def keep_late(self, vertex: Vertex) -> Incomplete | None:
        """Make an op that fills host buffers by work on a stream leave them to be copied later.

        None where it fills none that are kept. Whoever calls this copies them when they are
        complete, and before the slot is filled again: see `hold.py`.
        """
        filled = [self.cells[name] for name in vertex.op.writes if name in self.kept]
        late = [c for c in filled if c.buffers is not None and c.value.place != "device"]
        if not late:
            return None
        return self.incomplete.setdefault(
            vertex.name,
            Incomplete(tuple(c.value.name for c in late), min(len(c.cells) for c in late)),
        )

    def keepers(self, vertex: Vertex) -> tuple[tuple[Callable[[Any], None], Slots], ...]:
        """Where to append the versions that are kept. Buffers filled in place are copied."""
        late = self.incomplete.get(vertex.name)
        return tuple(
            (_keep(self.kept[name], self.cells[name].value, late), self.cells[name].cells)
            for name in vertex.op.writes
            if name in self.kept and name not in self.kept_elsewhere
        )

    def _fresh(self, name: str) -> bool:
        cells = self.cells.get(name)
        if cells is None or name in self.held:
            return False
        return cells.value.storage == "fresh" and not cells.value.external

    def _has_readers(self, name: str) -> bool:
        return name in self.cells and self.cells[name].readers > 0


def _homes(cells: Mapping[str, Cells], states: Mapping[str, object]) -> Homes:
    """Raises `StepweaveError` where two of them share memory."""
    homes = Homes()
    for name, state in states.items():
        homes.add_state(name, state)
    for name, each in cells.items():
        for slot, buffer in enumerate(each.buffers or ()):
            homes.add_slot(name, slot, buffer)
    for name, each in cells.items():
        homes.check_initial(name, each.value.initial)
    return homes


@dataclass
class Incomplete:
    """Versions in host buffers that one op has published, and its stream may still be filling."""

    values: tuple[str, ...]  # what the op publishes in each step
    slots: int  # the fewest of them
    versions: deque[tuple[list[Any], Any]] = field(default_factory=deque)  # (history, buffer)

    def copy_step(self) -> None:
        """Append copies of the oldest step's to where they are kept, if there is one."""
        for _ in range(min(len(self.values), len(self.versions))):
            history, datum = self.versions.popleft()
            history.append(_copied(datum))


def _keep(history: list[Any], value: Value, late: Incomplete | None) -> Callable[[Any], None]:
    if value.allocate is None or value.storage == "fresh":
        return history.append  # nobody writes it again
    if late is not None and value.place != "device":
        return lambda datum: late.versions.append((history, datum))
    return lambda datum: history.append(_copied(datum))


def _copied(datum: Any) -> Any:
    """On a stream, a copy in its order: `deepcopy` of a tensor copies its whole storage."""
    return datum.detach().clone() if is_tensor(datum) else copy.deepcopy(datum)


def _read_key(read: Read) -> tuple[str, int]:
    return (read.name, read.carry)
