"""Checking mode: every op does what it declared, and nothing else.

A declaration is believed by the planner, so an access that is not declared is a race that no proof
can see. In this mode torch tells what each op does with memory (`monitor.py`), and fingerprints are
taken of what it may only read (`memory.py`). Memory is mapped to the values and states that it
belongs to (`owners.py`), which is known because data are published through the context.

It is a rewriting of the graph: every op's function is wrapped, so it works under every executor and
leaves nothing behind where it is off.

- An op that touches memory of a value or state that it did not declare: an error.
- An op that changes what it only reads, through torch, numpy or a foreign kernel: an error.
- An op that touches a host object of a state that it did not declare (`guards.py`): an error.
- An op that publishes what can be changed afterwards: an error.
- A device op that makes the host wait, unless its node says `allow_sync`: an error.
- What a version leaves behind when its last reader is done is poisoned, so that whoever still reads
  it computes with garbage; through torch, it is an error.
- A key of a pool that is granted before its old users are done with it: an error (`grants.py`).
- A declared access that never happens is reported, since it costs overlap.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from ...executors.modes import REMEMBERED
from ...executors.report import Unused
from ...graph.errors import GraphError
from ...graph.immutable import mutable_part
from ...graph.modes import Mode
from ...graph.node import Node, Op, Read
from ...graph.plan import Plan
from .checked import Checked
from .clocks import Clocks
from .grants import watched
from .guards import Guards
from .memory import Walker, poison
from .owners import Key, Owners
from .published import NOTHING, Published
from .races import Races
from .reach import CHANGEABLE, CONTAINERS, reached


class CheckedRun:
    """The checks of one run. `graph` is the given one with every op's function checked.

    Raises `GraphError` for a value whose initial version can be changed.
    """

    def __init__(
        self, plan: Plan, states: Mapping[str, object], keep: Collection[str] = ()
    ) -> None:
        graph = plan.graph
        self.values = graph.values
        self.slots = plan.slots
        self.modes = {mode.name: mode for mode in graph.modes}
        self.told_by = graph.told_by
        self._told: dict[int, str] = {}  # the modes of the last steps
        clocks = Clocks(plan, self._told.get)
        self.races = Races(clocks)
        self.keyed = {name for name, state in graph.states.items() if state.keys is not None}
        self.grants = watched(graph, clocks, states.values())
        self.keep = frozenset(keep)
        self.objects = states
        self.owners = Owners()
        self.walker = Walker()
        self.guards = Guards(states)
        self.containers: dict[int, tuple[str, object]] = {
            id(each): (name, each)
            for name in states
            for each in reached(states[name], CONTAINERS)
            if isinstance(each, CHANGEABLE)
        }
        self.published: dict[Key, Published] = {}
        self.states: dict[str, Published] = {}
        self._lock = threading.Lock()
        self._done: dict[Key, int] = {}
        self._readers: dict[str, int] = {}
        for vertex in graph.vertices.values():
            for read in set(vertex.op.reads):
                self._readers[read.name] = self._readers.get(read.name, 0) + 1
        for name, value in graph.values.items():
            own = () if value.allocate is None else (value.initial,)  # as its buffers are
            if (found := mutable_part(value.initial, name, own)) is not None:
                raise GraphError(
                    f"value {name!r}: its initial version can be changed: {found}",
                    code="SW-MUTABLE-VALUE",
                )
            self.publish(Key(name, -1), value.initial)
        self.look_at(tuple(states))
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

    # --- which mode a step is in

    def tell(self, step: int, mode: str) -> None:
        """The op that decides the mode of a step has written it."""
        self._told[step] = mode
        self._told.pop(step - REMEMBERED, None)

    def mode_of(self, step: int) -> Mode | None:
        """The mode of a step; None where nothing has told it yet, or ever does."""
        return self.modes.get(self._told.get(step, ""))

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

    def look_at(self, states: Collection[str]) -> None:
        """Note what these states reach now, memory and objects: ops may give them more."""
        for name in states:
            blocks = self.walker.blocks(self.objects[name])
            entries = self.owners.claim(blocks, Key(name), home=True)
            self.states[name] = Published(self.objects[name], blocks, frozenset(entries))
        self.guards.look(states)

    def release(self) -> None:
        """The states are as they were before the run, but for what ops have done to them."""
        self.guards.release()
        for pool in self.grants:
            pool.watch = None

    def version(self, read: Read, step: int) -> Key:
        """Which version a read of `step` means."""
        external = self.values[read.name].external
        return Key(read.name, -1 if external else max(step - read.carry, -1))

    def cell(self, key: Key) -> tuple[str, int]:
        """The cell that a version lies in: a slot, or one of its own."""
        assert key.version is not None, "a state has no versions"
        slots = self.slots.get(key.name)
        if slots is None:
            return key.name, key.version
        return self.values[key.name].slot(key.version, slots)

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
