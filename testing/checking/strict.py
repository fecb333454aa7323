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

Where a run goes over to other plans, their ops are checked too, each step by the plan that runs it.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from ...executors.course import Course, Turned
from ...executors.modes import REMEMBERED
from ...executors.report import Unused
from ...graph.errors import GraphError
from ...graph.immutable import mutable_part
from ...graph.node import Op, Value
from ...graph.plan import Plan
from .checked import Checked
from .grants import watched
from .guards import Guards
from .legs import Leg, Legs
from .memory import Walker, poison
from .owners import Key, Owners
from .published import NOTHING, Published
from .races import Races
from .reach import CHANGEABLE, CONTAINERS, reached


class CheckedRun:
    """The checks of one run. `plan` and `course` are those given with every op's function checked.

    Raises `GraphError` for a value whose initial version can be changed.
    """

    def __init__(
        self,
        plan: Plan,
        states: Mapping[str, object],
        keep: Collection[str] = (),
        course: Course | None = None,
    ) -> None:
        self._told: dict[int, str] = {}  # the modes of the last steps
        self.legs = Legs(plan, course, self._told.get)
        self.races = Races(self.legs)
        self.grants = watched(self.legs, states.values())
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
        self.look_at(tuple(states))
        self.checks: list[Checked] = []
        self._plans: dict[int, Plan] = {}
        self.plan = self._checked(plan)
        self.course = None if course is None else course.rewritten(self._checked, self._turn)

    def _checked(self, plan: Plan) -> Plan:
        """The plan with every op's function checked."""
        if id(plan) in self._plans:
            return self._plans[id(plan)]
        graph = plan.graph
        initial = {name: self._initial(value) for name, value in graph.values.items()}
        checks = {
            name: Checked(self, graph, vertex, initial) for name, vertex in graph.vertices.items()
        }
        self.checks += checks.values()

        def checked(name: str, op: Op) -> Op:
            return replace(op, run=checks[name].run)

        nodes = [
            replace(
                node,
                host=tuple(map(checked, node.op_names("host"), node.host)),
                device=tuple(map(checked, node.op_names("device"), node.device)),
            )
            for node in graph.nodes
        ]
        self._plans[id(plan)] = replace(plan, graph=replace(graph, nodes=tuple(nodes)))
        return self._plans[id(plan)]

    def _initial(self, value: Value) -> Published:
        own = () if value.allocate is None else (value.initial,)  # as its buffers are
        if (found := mutable_part(value.initial, value.name, own)) is not None:
            raise GraphError(
                f"value {value.name!r}: its initial version can be changed: {found}",
                code="SW-MUTABLE-VALUE",
            )
        return self._note(Key(value.name, -1), value.initial)

    def unused(self) -> tuple[Unused, ...]:
        """Declared accesses that could have happened and never did, in order of the graph.

        Of several plans those of each op that ran.
        """
        ran = (check for check in self.checks if self.course is None or check.step >= 0)
        return tuple(dict.fromkeys(each for check in ran for each in check.unused()))

    def _turn(self, turned: Turned) -> None:
        """The run goes over: what only plans long before could read, nobody does.

        The plan before the one that is on may not have ended yet.
        """
        self.legs.turn(turned)
        for leg in self.legs.ended():
            for key in [key for key in list(self.published) if self._leg(key) is leg]:
                self.end(key, poisoned=False)
            for name, slots in leg.plan.slots.items():
                for slot in range(slots or 0):
                    self.races.forget(leg.cell(name, slot))

    # --- which mode a step is in

    def tell(self, step: int, mode: str) -> None:
        """The op that decides the mode of a step has written it."""
        self._told[step] = mode
        self._told.pop(step - REMEMBERED, None)

    def told(self, step: int) -> str:
        """The name of the mode of a step; empty where nothing has told it yet, or ever does."""
        return self._told.get(step, "")

    # --- what belongs to whom

    def publish(self, key: Key, datum: Any, born: Collection[int] = ()) -> Published:
        """A new version is there. `born`: addresses that its op has allocated."""
        found = self.published[key] = self._note(key, datum, born)
        return found

    def _note(self, key: Key, datum: Any, born: Collection[int] = ()) -> Published:
        """Note the memory of a version."""
        blocks = self.walker.blocks(datum)
        known = {block.start for block in blocks if self.owners.find(block.start) is not None}
        entries = self.owners.claim(blocks, key)
        for entry in entries:
            if entry.start in born and entry.start not in known:
                entry.born = True
        return Published(datum, blocks, frozenset(entries))

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

    def cell(self, key: Key) -> tuple[int, str, int]:
        """The cell that a version lies in."""
        assert key.version is not None, "a state has no versions"
        return self._leg(key).cell(key.name, key.version)

    def _leg(self, key: Key) -> Leg:
        """The leg that writes a version."""
        assert key.version is not None, "a state has no versions"
        return self.legs.at(key.version)

    def reader_done(self, key: Key, step: int) -> None:
        """One reader of a version is done; the last one's end is the version's.

        What readers of another plan may still look for stays.
        """
        leg = self.legs.at(step)
        if key.version == -1 or self._leg(key) is not leg or key.name in leg.held:
            return
        with self._lock:
            done = self._done[key] = self._done.get(key, 0) + 1
            if done < leg.readers[key.name]:
                return
            del self._done[key]
        self.end(key)

    def writer_done(self, key: Key) -> None:
        """A version that nobody reads ends with its writer, one that is held is written over."""
        leg, version = self._leg(key), key.version
        assert version is not None, "a state has no versions"
        if key.name in leg.held:
            older = Key(key.name, version - leg.held[key.name])
            if self._leg(older) is leg:
                self.end(older, poisoned=False)
        elif not leg.readers.get(key.name):
            self.end(key)

    def end(self, key: Key, *, poisoned: bool = True) -> None:
        """Poison what a version leaves behind.

        Values are functional: a later version, or another value, may share memory with this one,
        and a published tensor may be a constant of the model. So only memory is filled that no
        other version and no state has, and that the op which published it had allocated itself.
        The buffer of a slot is the value's own and is always filled, since the next version in
        that slot comes after all readers of this one. Versions that the run hands out are spared.
        """
        version, leg = self.published.pop(key, NOTHING), self._leg(key)
        if leg.plan.slots.get(key.name) is None:
            self.races.forget(self.cell(key))
        value = leg.plan.graph.values[key.name]
        copied = value.allocate is not None and key.name in leg.readers
        spared = key.name in self.keep and not copied
        left = self.owners.retire(version.blocks, key)
        if spared or not poisoned:
            return
        for block in left:
            poison(block)
        for block in version.blocks:
            entry = self.owners.find(block.start)
            if entry is not None and entry.home == Key(key.name) and entry.filled == key.version:
                poison(block)
