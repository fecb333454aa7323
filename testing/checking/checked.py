"""The checks of one op, of whatever it does while its function runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from torch import Tensor

from ...executors.context import Context
from ...executors.errors import ContractViolation
from ...executors.report import Unused
from ...executors.source_line import where
from ...graph.immutable import mutable_part
from ...graph.modes import Mode
from ...graph.node import OpContext, Read, Run
from ...graph.step_graph import StepGraph, Vertex
from .guards import AT_WORK
from .memory import Block, fingerprint
from .monitor import Monitor, Use, may_ask, refused
from .owners import Entry, Key
from .published import NOTHING, Published
from .races import Access
from .reach import content, contents
from .references import references
from .seen import Seen

if TYPE_CHECKING:
    from .strict import CheckedRun

_WRITE, _LOOK = Use.WRITE, Use.LOOK  # looked up once: an enum takes its time


class Checked:
    """The checks of one op; used by one thread at a time, for one step after the other."""

    def __init__(
        self,
        strict: CheckedRun,
        graph: StepGraph,
        vertex: Vertex,
        initial: Mapping[str, Published],
    ) -> None:
        op = vertex.op
        self.strict, self.graph, self.initial = strict, graph, initial
        self.modes = {mode.name: mode for mode in graph.modes}
        self.keyed = {name for name, state in graph.states.items() if state.keys is not None}
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
        self.may_change = frozenset(self.states_written)
        # Users of another class may change other parts of a state with keys meanwhile.
        self.only_read = tuple(
            name
            for name in self.states_read
            if name not in self.may_change
            and all(
                self._users(name) in ("", other.op.class_of(name))
                for other in graph.vertices.values()
                if name in other.op.writes
            )
        )
        self.may_touch = self.may_change | frozenset(self.states_read)
        self.looked_up = False  # what its function refers to
        self.step = -1
        self.mode: Mode | None = None  # of its step, if it is told
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
        declared = [(read, self._key(read, step)) for read in self.values]
        reads = [each for each in declared if self._has(each[0].name)]
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
            if name in self.only_read:
                before += self._fingerprints(name, strict.states[name])
        for name in self.states_written:
            self.writable |= strict.states[name].entries
        held = [(name, each) for name in self.only_read for each in contents(strict.objects[name])]
        assert isinstance(context, Context), "executors give ops contexts of their own"
        try:
            if self.body is not None:
                self._perform(self.body, context)
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
        for name, (container, was) in held:
            if content(container) != was:
                kind = type(container).__name__
                self._input_changed(name, f"a {kind} of state {name!r}", at_line=False)
        self._note_use(found)
        if self.states_written:
            strict.look_at(self.states_written)
        for name in self.written:
            key = Key(name, step)
            if key not in strict.published:
                strict.published[key] = NOTHING
            strict.writer_done(key)
        for _, key in declared:
            strict.reader_done(key, step)

    def _perform(self, body: Run, context: Context) -> None:
        if not self.looked_up:
            self.looked_up = True
            self._look_up(body)
        seen = Seen(context, self)
        with self.monitor:
            AT_WORK.op = self
            try:
                body(seen)
            finally:
                AT_WORK.op = None

    def _begin(self, step: int) -> None:
        self.step, self.mode = step, self.modes.get(self.strict.told(step))
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
        if not self._has(read.name):
            self._refuse_untouched(read.name)
        strict = self.strict
        key = self._key(read, self.step)
        if key.version == -1:
            return
        access = Access(self.vertex.name, self.step, False)
        self._race(strict.races.named(strict.cell(key), access), False, read.name, "", at_line)
        version = strict.published.get(key, NOTHING)
        for entry in version.entries:
            self._touch(entry, False, at_line=at_line)
        other = strict.races.read_arrays(version.blocks, self.vertex.name, self.step)
        self._race(other, False, read.name, "", at_line)

    def writes_value(
        self, name: str, blocks: Iterable[Block] = (), *, at_line: bool = True
    ) -> None:
        """The op publishes a version, of this memory."""
        strict, op, step = self.strict, self.vertex.name, self.step
        self.accessed.add(name)
        cell = strict.cell(Key(name, step))
        other = strict.races.named(cell, Access(op, step, True))
        for read in self.values:
            version = self._key(read, step)
            if read.name == name and version.version != -1 and strict.cell(version) == cell:
                other = Access(op, step, False)  # it writes over what it reads
        self._race(other, True, name, "", at_line)
        other = strict.races.publish_arrays(blocks, op, step)
        self._race(other, True, name, " (an array in it)", at_line)

    def uses_state(self, name: str, *, at_line: bool = True) -> None:
        """The op takes a state, to read or to change it as it declares."""
        if name in self.accessed or name not in (*self.states_read, *self.states_written):
            return
        self.accessed.add(name)
        if not self._has(name):
            self._refuse_untouched(name)
        writes = name in self.states_written
        access = Access(self.vertex.name, self.step, writes)
        other = self.strict.races.named((name, self._users(name)), access)
        self._race(other, writes, name, "", at_line)

    def _users(self, state: str) -> str:
        """The class of users for which it accesses a state with keys: others use other keys.

        That a key does not change hands too early is checked where it is granted (`grants.py`).
        """
        return self.vertex.op.class_of(state) if state in self.keyed else ""

    def _access_the_rest(self) -> None:
        """What is declared may be accessed in every step, though it was not in this one."""
        for read in self.values:
            if self._has(read.name):
                self.reads_value(str(read), at_line=False)
        for name in self.written:
            if name not in self.accessed:
                self.writes_value(name, at_line=False)
        for name in (*self.states_read, *self.states_written):
            if self._has(name):
                self.uses_state(name, at_line=False)

    def _has(self, name: str) -> bool:
        """Whether the op touches a value or state that it declares in the mode of this step."""
        return self.mode is None or self.mode.touches(self.vertex, name, self.graph.told_by)

    def _refuse_untouched(self, name: str) -> NoReturn:
        mode = "" if self.mode is None else self.mode.name
        self._violate(
            "SW-MODE",
            name,
            f"touches {name!r}, which in mode {mode!r} it does not, as the graph says: so "
            "nothing orders it there. Take it out of `untouched` or `skips` of that mode",
        )

    def _touch(self, entry: Entry, writes: bool, *, at_line: bool = True) -> None:
        access = Access(self.vertex.name, self.step, writes)
        users = "" if entry.home is None else self._users(entry.home.name)
        other = self.strict.races.touch(entry.piece(users), access)
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

    def _key(self, read: Read, step: int) -> Key:
        """Which version a read of a step means."""
        value = self.graph.values[read.name]
        return Key(read.name, self.strict.legs.version(value, read.carry, step))

    def _the_version(self, context: OpContext, read: Read, key: Key) -> Published:
        datum = context.read(str(read))
        version = self.strict.published.get(key)
        if key.version == -1:
            version = self.initial[read.name]
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
        if name == self.graph.told_by and isinstance(datum, str):
            self.strict.tell(self.step, datum)
        version = self.strict.publish(Key(name, self.step), datum, self.born)
        self.touched |= version.entries  # what it read and hands on has been used
        self.writes_value(name, version.blocks)
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

    # --- objects and containers on the host

    def reaches(self, owners: Collection[str], what: str, *, writes: bool) -> NoReturn:
        """The op touches, or is about to change, an object of these states."""
        declared = self.may_touch.intersection(owners)
        if declared:
            self._input_changed(min(declared), what, at_line=True)
        verb, code = ("writes", "WRITE") if writes else ("reads", "READ")
        self._violate(
            f"SW-UNDECLARED-{code}",
            min(owners),
            f"{verb} {what} of state {min(owners)!r}, which it does not declare",
        )

    def _look_up(self, body: Run) -> None:
        """What its function refers to must be no container of a state that it does not declare."""
        for found in references(body):
            state, _ = self.strict.containers.get(id(found.datum), (None, None))
            if state is not None and state not in self.may_touch:
                self._violate(
                    "SW-UNDECLARED-READ",
                    state,
                    f"refers, by its variable {found.variable!r}, to a "
                    f"{type(found.datum).__name__} of state {state!r}, which it does not declare",
                    at=(found.file, found.line),
                )

    # --- what torch tells

    def meets(self, tensor: Tensor, address: int) -> None:
        """What an op writes in `tensor[...]`, and did not allocate, is known from then on."""
        if address and address not in self.born and self._near(address) is None:
            block = Block.of_tensor(tensor, "")
            if block is not None:
                self.strict.owners.note(block)

    def uses(self, address: int, use: Use) -> None:
        entry = self._near(address)
        if entry is None:
            return
        if use is _WRITE:
            if entry in self.writable:
                if entry not in self.changed:
                    self.changed.add(entry)
                    self._touch(entry, True)
                return
        elif entry in self.readable or (use is _LOOK and entry in self.writable):
            if entry not in self.touched:
                self.touched.add(entry)
                self._touch(entry, False)
            return
        found = self.strict.owners.find(address)
        if found is not entry and found is not None:
            self.uses(address, use)  # the first had expired
        elif found is not None and self._is_declared(found, use):
            self.uses(address, use)
        elif found is not None and not found.free:
            self._refuse(found, use)
        elif found is not None and address not in self.born:
            self._touch(found, use is Use.WRITE)

    def _is_declared(self, entry: Entry, use: Use) -> bool:
        """Whether it is memory of a declared state that an op beside this one has noted since.

        Users of different keys of a state may give it more memory (a workspace) at the same time.
        """
        name = "" if entry.home is None else entry.home.name
        if name in self.states_read:
            self.readable.add(entry)
        if name in self.states_written:
            self.writable.add(entry)
        return (
            entry in self.writable
            if use is _WRITE
            else (entry in self.readable or (use is _LOOK and entry in self.writable))
        )

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

    def _violate(
        self,
        code: str,
        value: str,
        what: str,
        *,
        at_line: bool = True,
        at: tuple[str, int] | None = None,
    ) -> NoReturn:
        raise self._violation(code, value, what, at_line=at_line, at=at)

    def _violation(
        self, code: str, value: str, what: str, *, at_line: bool, at: tuple[str, int] | None = None
    ) -> ContractViolation:
        file: str | None
        line: int | None
        if at is not None:
            file, line = at
            said = f"{file}:{line}"
        else:
            file, line, said = where() if at_line else (None, None, "")
        self.violation = ContractViolation(
            code, self.vertex, value, self.step, f"{what}{f' ({said})' if said else ''}", file, line
        )
        return self.violation


def _field(name: str, entry: Entry) -> str:
    return f"{name}{entry.paths.get(name, '')}"
