"""Checking mode: every op does what it declared, and nothing else.

A declaration is believed by the planner, so an access that is not declared is a race that no proof
can see. In this mode torch tells what each op does with memory (`monitor.py`), and fingerprints are
taken of what it may only read (`memory.py`). Memory is mapped to the values and states that it
belongs to (`owners.py`), which is known because data are published through the context.

It is a rewriting of the graph: every op's function is wrapped, so it works under every executor and
leaves nothing behind where it is off.

- An op that touches memory of a value or state that it did not declare: an error.
- An op that changes what it only reads, through torch, numpy or a foreign kernel: an error.
- A device op that makes the host wait, unless its node says `allow_sync`: an error.
- What a version leaves behind when its last reader is done is poisoned, so that whoever still reads
  it computes with garbage; through torch, it is an error.
- A declared access that never happens is reported, since it costs overlap.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from torch import Tensor

from ...executors.context import Context
from ...executors.errors import ContractViolation
from ...executors.report import Unused
from ...executors.source_line import where
from ...graph.immutable import mutable_part
from ...graph.node import Node, Op, OpContext, Read, Run
from ...graph.plan import Plan
from ...graph.step_graph import StepGraph, Vertex
from ..forwarding import Forwarding
from .clocks import Clocks
from .memory import Block, Walker, fingerprint, poison
from .monitor import Monitor, Use, may_ask, refused
from .owners import Entry, Key, Owners
from .races import Access, Races


@dataclass(frozen=True, slots=True)
class Published:
    """One version of a value, or what a state reaches now: its memory, all of it and the owned."""

    datum: Any
    blocks: tuple[Block, ...]
    entries: frozenset[Entry]


NOTHING = Published(None, (), frozenset())


class CheckedRun:
    """The checks of one run. `graph` is the given one with every op's function checked."""

    def __init__(
        self, plan: Plan, states: Mapping[str, object], keep: Collection[str] = ()
    ) -> None:
        graph = plan.graph
        self.values = graph.values
        self.slots = plan.slots
        self.races = Races(Clocks(plan))
        self.keep = frozenset(keep)
        self.objects = states
        self.owners = Owners()
        self.walker = Walker()
        self.published: dict[Key, Published] = {}
        self.states: dict[str, Published] = {}
        self._lock = threading.Lock()
        self._done: dict[Key, int] = {}
        self._readers: dict[str, int] = {}
        for vertex in graph.vertices.values():
            for read in set(vertex.op.reads):
                self._readers[read.name] = self._readers.get(read.name, 0) + 1
        for name, value in graph.values.items():
            self.publish(Key(name, -1), value.initial)
        for name in states:
            self.look_at_state(name)
        self.checks = {
            name: Checked(self, graph, vertex) for name, vertex in graph.vertices.items()
        }
        self.graph = replace(graph, nodes=tuple(map(self._rewritten, graph.nodes)))

    def _rewritten(self, node: Node) -> Node:
        def checked(name: str, op: Op) -> Op:
            return replace(op, run=self.checks[name].run)

        return replace(
            node,
            host=tuple(map(checked, node.op_names("host"), node.host)),
            device=tuple(map(checked, node.op_names("device"), node.device)),
        )

    def unused(self) -> tuple[Unused, ...]:
        """Declared accesses that could have happened and never did, in order of the graph."""
        return tuple(each for check in self.checks.values() for each in check.unused())

    # --- what belongs to whom

    def publish(self, key: Key, datum: Any, born: Collection[int] = ()) -> Published:
        """Note the memory of a new version. `born`: addresses that its op has allocated."""
        blocks = self.walker.blocks(datum)
        known = {block.start for block in blocks if self.owners.find(block.start) is not None}
        entries = self.owners.claim(blocks, key)
        for entry in entries:
            if entry.start in born and entry.start not in known:
                entry.born = True
        found = Published(datum, blocks, frozenset(entries))
        self.published[key] = found
        return found

    def look_at_state(self, name: str) -> None:
        """Note the memory that a state reaches now: ops may give it more."""
        blocks = self.walker.blocks(self.objects[name])
        entries = self.owners.claim(blocks, Key(name), home=True)
        self.states[name] = Published(self.objects[name], blocks, frozenset(entries))

    def version(self, read: Read, step: int) -> Key:
        """Which version a read of `step` means."""
        external = self.values[read.name].external
        return Key(read.name, -1 if external else max(step - read.carry, -1))

    def cell(self, key: Key) -> tuple[str, int]:
        """The cell that a version lies in: a slot, or one of its own."""
        assert key.version is not None, "a state has no versions"
        slots = self.slots.get(key.name)
        return key.name, key.version if slots is None else key.version % slots

    def reader_done(self, key: Key) -> None:
        """One reader of a version is done; the last one's end is the version's."""
        if key.version == -1:
            return
        with self._lock:
            done = self._done[key] = self._done.get(key, 0) + 1
            if done < self._readers[key.name]:
                return
            del self._done[key]
        self.end(key)

    def writer_done(self, key: Key) -> None:
        """A version that nobody reads ends with its writer."""
        if not self._readers.get(key.name):
            self.end(key)

    def end(self, key: Key) -> None:
        """Poison what a version leaves behind.

        Values are functional: a later version, or another value, may share memory with this one,
        and a published tensor may be a constant of the model. So only memory is filled that no
        other version and no state has, and that the op which published it had allocated itself.
        The buffer of a slot is the value's own and is always filled, since the next version in
        that slot comes after all readers of this one. Versions that the run hands out are spared.
        """
        version = self.published.pop(key, NOTHING)
        if self.slots.get(key.name) is None:
            self.races.forget(self.cell(key))
        value = self.values[key.name]
        copied = value.allocate is not None and key.name in self._readers
        spared = key.name in self.keep and not copied
        left = self.owners.retire(version.blocks, key)
        if spared:
            return
        for block in left:
            poison(block)
        for block in version.blocks:
            entry = self.owners.find(block.start)
            if entry is not None and entry.home == Key(key.name) and entry.filled == key.version:
                poison(block)


class Checked:
    """The checks of one op; used by one thread at a time, for one step after the other."""

    def __init__(self, strict: CheckedRun, graph: StepGraph, vertex: Vertex) -> None:
        op = vertex.op
        self.strict = strict
        self._near = strict.owners.near
        self.vertex = vertex
        self.body: Run | None = op.run
        self.values = tuple(dict.fromkeys(read for read in op.reads if read.name in graph.values))
        self.written = tuple(name for name in op.writes if name in graph.values)
        self.homed = frozenset(
            name
            for name in self.written
            if graph.values[name].storage == "slots" and graph.values[name].allocate is not None
        )
        named = {read.name for read in op.reads}
        self.states_read = tuple(name for name in strict.objects if name in named)
        self.states_written = tuple(name for name in strict.objects if name in op.writes)
        self.step = -1
        # The bare name means the nearest version, as for the op's context.
        self.by_name: dict[str, Read] = {}
        for read in sorted(self.values, key=lambda read: -read.carry):
            self.by_name[read.name] = self.by_name[str(read)] = read
        self.accessed: set[object] = set()
        self.readable: set[Entry] = set()
        self.writable: set[Entry] = set()
        self.touched: set[Entry] = set()
        self.changed: set[Entry] = set()
        self.born: set[int] = set()
        self.buffers: list[Any] = []  # that it asked for in this step
        self.allocates = self.born.add
        self.violation: ContractViolation | None = None
        self.idle: dict[str, bool] = {}  # declared read, as written: there, and never touched yet
        self.monitor = Monitor(self, may_ask=vertex.side == "host" or vertex.node.allow_sync)
        self.unwritten = set(self.states_written) if vertex.side == "device" else set()

    def run(self, context: OpContext) -> None:
        strict, step = self.strict, context.step
        self._begin(step)
        reads = [(read, strict.version(read, step)) for read in self.values]
        before: list[tuple[str, Block, Entry | None, Any]] = []
        found = {}
        for read, key in reads:
            version = found[str(read)] = self._the_version(context, read, key)
            self.readable |= {
                e for e in version.entries if e.home is None or e.home.name == key.name
            }
            before += self._fingerprints(str(read), version)
        for name in self.states_read:
            self.readable |= strict.states[name].entries
            if name not in self.states_written:
                before += self._fingerprints(name, strict.states[name])
        for name in self.states_written:
            self.writable |= strict.states[name].entries
        assert isinstance(context, Context), "executors give ops contexts of their own"
        seen = _Seen(context, self)
        try:
            if self.body is not None:
                with self.monitor:
                    self.body(seen)
        except ContractViolation:
            raise
        except Exception as error:
            if self.violation is not None:
                raise self.violation from error
            if refused(error):
                raise self._hidden_sync("an operation", at_line=False) from error
            raise
        if self.violation is not None:
            raise self.violation  # the op has caught it
        self._access_the_rest()
        self._compare(before)
        self._note_use(found)
        for name in self.states_written:
            strict.look_at_state(name)
        for name in self.written:
            key = Key(name, step)
            if key not in strict.published:
                strict.published[key] = NOTHING
            strict.writer_done(key)
        for _, key in reads:
            strict.reader_done(key)

    def _begin(self, step: int) -> None:
        self.step = step
        for noted in (self.readable, self.writable, self.touched, self.changed):
            noted.clear()
        self.born.clear()
        self.buffers.clear()
        self.accessed.clear()

    # --- what the plan orders

    def reads_value(self, name: str, *, at_line: bool = True) -> None:
        """The op takes a version: its cell, and all memory and objects of it."""
        read = self.by_name.get(name)
        if read is None or read in self.accessed:
            return
        self.accessed.add(read)
        strict = self.strict
        key = strict.version(read, self.step)
        if key.version == -1:
            return
        access = Access(self.vertex.name, self.step, False)
        self._race(strict.races.named(strict.cell(key), access), False, read.name, "", at_line)
        version = strict.published.get(key, NOTHING)
        for entry in version.entries:
            self._touch(entry, False, at_line=at_line)
        other = strict.races.read_arrays(version.datum, self.vertex.name, self.step)
        self._race(other, False, read.name, "", at_line)

    def writes_value(self, name: str, datum: Any, *, at_line: bool = True) -> None:
        """The op publishes a version."""
        strict, op, step = self.strict, self.vertex.name, self.step
        self.accessed.add(name)
        cell = strict.cell(Key(name, step))
        other = strict.races.named(cell, Access(op, step, True))
        for read in self.values:
            version = strict.version(read, step)
            if read.name == name and version.version != -1 and strict.cell(version) == cell:
                other = Access(op, step, False)  # it writes over what it reads
        self._race(other, True, name, "", at_line)
        other = strict.races.publish_arrays(datum, op, step)
        self._race(other, True, name, " (an array in it)", at_line)

    def uses_state(self, name: str, *, at_line: bool = True) -> None:
        """The op takes a state, to read or to change it as it declares."""
        if name in self.accessed or name not in (*self.states_read, *self.states_written):
            return
        self.accessed.add(name)
        writes = name in self.states_written
        access = Access(self.vertex.name, self.step, writes)
        self._race(self.strict.races.named(name, access), writes, name, "", at_line)

    def _access_the_rest(self) -> None:
        """What is declared may be accessed in every step, though it was not in this one."""
        for read in self.values:
            self.reads_value(str(read), at_line=False)
        for name in self.written:
            if name not in self.accessed:
                self.writes_value(name, None, at_line=False)
        for name in (*self.states_read, *self.states_written):
            self.uses_state(name, at_line=False)

    def _touch(self, entry: Entry, writes: bool, *, at_line: bool = True) -> None:
        access = Access(self.vertex.name, self.step, writes)
        other = self.strict.races.touch(entry.piece, access)
        if other is not None:
            owner = entry.home or entry.retired or max(entry.owners, default=None)
            # Nobody's by now: the name by which it was published last.
            name = next(reversed(entry.paths), "") if owner is None else owner.name
            self._race(other, writes, name, entry.paths.get(name, ""), at_line)

    def _race(
        self, other: Access | None, writes: bool, name: str, path: str, at_line: bool
    ) -> None:
        if other is None:
            return
        what = f"{name}{path}" if name else "memory that is no value's and no state's"
        self._violate(
            "SW-RACE",
            name,
            f"{'writes' if writes else 'reads'} {what}, which op {other.op!r} "
            f"{'writes' if other.writes else 'reads'} in step {other.step}, and the plan orders "
            "neither of the two before the other: in another run they may come the other way round",
            at_line=at_line,
        )

    # --- what it may touch

    def _the_version(self, context: OpContext, read: Read, key: Key) -> Published:
        datum = context.read(str(read))
        version = self.strict.published.get(key)
        if version is None or version.datum is not datum:
            self._violate(
                "SW-WRONG-VERSION",
                read.name,
                f"reads {str(read)!r}, but finds another version than that of step {key.version}: "
                + ("that one was not written yet" if version is None else "the slot was refilled"),
                at_line=False,
            )
        return version

    def takes(self, name: str, buffer: Any) -> None:
        """The op asks for the buffer of its slot: it may fill it."""
        strict = self.strict
        self.buffers.append(buffer)
        blocks = strict.walker.blocks(buffer)
        for entry in strict.owners.claim(blocks, Key(name), home=True):
            entry.filled = self.step
            self._touch(entry, True)
            if entry.home == Key(name):
                self.writable.add(entry)
                self.readable.add(entry)

    def publishes(self, name: str, datum: Any) -> None:
        """The op writes a version: what it reaches is the value's from now on."""
        self._refuse_mutable(name, datum)
        version = self.strict.publish(Key(name, self.step), datum, self.born)
        self.touched |= version.entries  # what it read and hands on has been used
        self.writes_value(name, datum)
        for entry in version.entries:
            if entry.home is not None and entry.home.name != name:
                self._violate(
                    "SW-SHARED-MEMORY",
                    name,
                    f"publishes as {_field(name, entry)} memory of {entry.home.name!r}, which its "
                    "readers would then read in no order; publish a copy",
                )
            if entry.owners == {Key(name, self.step)}:
                self.writable.add(entry)
            self.readable.add(entry)
            self._touch(entry, entry.start in self.born)

    def _refuse_mutable(self, name: str, datum: object) -> None:
        found = mutable_part(datum, name, self.buffers)
        if found is not None:
            self._violate(
                "SW-MUTABLE-VALUE",
                name,
                f"publishes what can be changed afterwards: {found}. Publish a copy that is frozen "
                "all the way down (a frozen dataclass, a tuple), or declare it as a state",
            )

    # --- what torch tells

    def meets(self, tensor: Tensor, address: int) -> None:
        """Memory that an op writes, and did not allocate, is known from then on."""
        if address and address not in self.born and self._near(address) is None:
            block = Block.of_tensor(tensor, "")
            if block is not None:
                self.strict.owners.note(block)

    def uses(self, address: int, use: Use) -> None:
        entry = self._near(address)
        if entry is None:
            return
        if use is Use.WRITE:
            if entry in self.writable:
                if entry not in self.changed:
                    self.changed.add(entry)
                    self._touch(entry, True)
                return
        elif entry in self.readable or (use is Use.LOOK and entry in self.writable):
            if entry not in self.touched:
                self.touched.add(entry)
                self._touch(entry, False)
            return
        found = self.strict.owners.find(address)
        if found is not entry and found is not None:
            self.uses(address, use)  # the first had expired
        elif found is not None and not found.free:
            self._refuse(found, use)
        elif found is not None and address not in self.born:
            self._touch(found, use is Use.WRITE)

    def asks_the_host(self, what: str) -> None:
        if not may_ask():
            raise self._hidden_sync(what)

    def _hidden_sync(self, what: str, *, at_line: bool = True) -> ContractViolation:
        return self._violation(
            "SW-HIDDEN-SYNC",
            "",
            f"{what} makes the host wait for the device; a node that must wait says "
            "`allow_sync: true`",
            at_line=at_line,
        )

    def _refuse(self, entry: Entry, use: Use) -> NoReturn:
        owner = entry.home or entry.retired or max(entry.owners)
        name, verb = owner.name, "writes" if use is Use.WRITE else "reads"
        field = _field(name, entry)
        if use is Use.WRITE and entry in self.readable:
            self._input_changed(name, field, at_line=True)
        if entry.retired is not None:
            self._violate(
                "SW-READ-TOO-LATE" if use is not Use.WRITE else "SW-UNDECLARED-WRITE",
                name,
                f"{verb} {field} of step {owner.version}, whose last declared reader is done",
            )
        version = "" if owner.version is None else f" of step {owner.version}"
        if owner.version == -1:
            version = " of before the first step"
        declared = any(read.name == name for read in self.vertex.op.reads)
        missing = "a version that it does not declare" if declared else "which it does not declare"
        self._violate(
            "SW-UNDECLARED-WRITE" if use is Use.WRITE else "SW-UNDECLARED-READ",
            name,
            f"{verb} {field}{version}, {missing}",
        )

    # --- what torch does not tell

    def _fingerprints(
        self, name: str, version: Published
    ) -> list[tuple[str, Block, Entry | None, Any]]:
        if self.body is None:
            return []
        find = self.strict.owners.find
        return [(name, block, find(block.start), fingerprint(block)) for block in version.blocks]

    def _compare(self, before: Iterable[tuple[str, Block, Entry | None, Any]]) -> None:
        for name, block, entry, seen in before:
            if (entry is None or entry not in self.writable) and fingerprint(block) != seen:
                bare = name.partition("@")[0]
                self._input_changed(bare, f"{bare}{block.path}", at_line=False)

    def _input_changed(self, name: str, field: str, *, at_line: bool) -> NoReturn:
        self._violate(
            "SW-INPUT-CHANGED",
            name,
            f"changes {field} in place, which it declares to read only: others may be reading it",
            at_line=at_line,
        )

    # --- what never happens

    def _note_use(self, found: Mapping[str, Published]) -> None:
        # A read of a state that the op writes too orders nothing that the write does not.
        states = {
            name: self.strict.states[name]
            for name in self.states_read
            if name not in self.states_written
        }
        for name, version in {**found, **states}.items():
            if version.entries and self.idle.get(name, True):
                self.idle[name] = version.entries.isdisjoint(self.touched)
        for name in self.states_written:
            if not self.strict.states[name].entries.isdisjoint(self.changed):
                self.unwritten.discard(name)

    def unused(self) -> list[Unused]:
        """Reads of data with tensors, and writes of states with tensors, that never happened."""
        node, op = self.vertex.node.name, self.vertex.name
        found = [Unused(node, op, name, "read") for name, idle in self.idle.items() if idle]
        return found + [
            Unused(node, op, name, "write")
            for name in self.states_written
            if name in self.unwritten and self.strict.states[name].entries
        ]

    def _violate(self, code: str, value: str, what: str, *, at_line: bool = True) -> NoReturn:
        raise self._violation(code, value, what, at_line=at_line)

    def _violation(self, code: str, value: str, what: str, *, at_line: bool) -> ContractViolation:
        file, line, at = where() if at_line else (None, None, "")
        self.violation = ContractViolation(
            code, self.vertex, value, self.step, f"{what}{f' ({at})' if at else ''}", file, line
        )
        return self.violation


class _Seen(Forwarding):
    """The context as the op sees it: what it publishes and fills is noted."""

    def __init__(self, context: Context, check: Checked) -> None:
        super().__init__(context)
        self.context, self.check = context, check

    def read(self, name: str) -> Any:
        datum = self.context.read(name)
        self.check.reads_value(name)
        return datum

    def buffer(self, name: str) -> Any:
        buffer = self.context.buffer(name)
        self.check.takes(name, buffer)
        return buffer

    def write(self, name: str, datum: Any) -> None:
        if name in self.check.homed and datum is not None:
            self.check.takes(name, self.context.buffer(name))  # the datum may be copied into it
        self.context.write(name, datum)
        self.check.publishes(name, self.context.published(name))

    def state(self, name: str) -> Any:
        state = self.context.state(name)
        self.check.uses_state(name)
        return state


def _field(name: str, entry: Entry) -> str:
    return f"{name}{entry.paths.get(name, '')}"
