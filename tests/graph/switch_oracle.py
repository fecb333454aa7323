"""Brute force for switches: both plans unrolled far beyond it, and every two accesses asked.

Nothing here knows a requirement, a least distance or a clock. There are instances of ops, the arcs
that running both plans and the switch gives, and places of memory: slots of either plan, states.
For each place the accesses are listed in the order of the serial program; of each two of which one
writes, the first must reach the second over arcs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from functools import cached_property
from itertools import combinations, pairwise
from typing import Any

from stepweave.graph.plan import Plan
from stepweave.graph.switch import Instance, Switch, WaitOnce

Place = tuple[object, ...]


class Around:
    """The steps from `far` before a switch to `far` after it, and all that its programs have."""

    def __init__(self, switch: Switch, *, far: int = 9, without: Collection[WaitOnce] = ()) -> None:
        listed = [at.step for ops in switch.programs.values() for at in ops]
        self.far = max([far, *(1 + abs(step) for step in listed)])
        self.switch, self.without = switch, without
        self.plans: tuple[Plan, Plan] = (switch.before, switch.after)

    @cached_property
    def chains(self) -> dict[str, list[Instance]]:
        switch = self.switch
        reach = self.far + 6 + max(len(ops) for ops in switch.programs.values())

        def alone(part: int, actor: str, iterations: range) -> list[Instance]:
            program = self.plans[part].actors.get(actor, ())
            return [Instance(part, op, t - at) for t in iterations for op, at in program]

        return {
            actor: alone(0, actor, range(switch.leaves - reach, switch.leaves + 1))
            + list(switch.programs.get(actor, ()))
            + alone(1, actor, range(switch.enters, switch.enters + reach))
            for actor in {**self.plans[0].actors, **self.plans[1].actors}
        }

    @cached_property
    def onward(self) -> dict[Instance, set[Instance]]:
        """Who directly follows whom."""
        found: dict[Instance, set[Instance]] = {
            at: set() for ops in self.chains.values() for at in ops
        }
        for ops in self.chains.values():
            for u, v in pairwise(ops):
                found[u].add(v)
        for at in found:
            plan = self.plans[at.part]
            launch = plan.graph.vertices[at.op].launch
            if launch is not None:
                found[Instance(at.part, launch, at.step)].add(at)
            for wait in plan.waits:
                source = Instance(at.part, wait.source, at.step - wait.distance)
                if wait.target == at.op and source in found:
                    found[source].add(at)
        for once in self.switch.waits:
            if once not in self.without and once.target in found:
                blocked = once.source not in found  # waits for what never comes: for ever
                found[once.target if blocked else once.source].add(once.target)
        return found

    @cached_property
    def order(self) -> list[Instance] | None:
        """Some order in which all can run; None if they block."""
        left = dict.fromkeys(self.onward, 0)
        for targets in self.onward.values():
            for at in targets:
                left[at] += 1
        ready = [at for at, count in left.items() if not count]
        for at in ready:
            for target in self.onward[at]:
                left[target] -= 1
                if not left[target]:
                    ready.append(target)
        return ready if len(ready) == len(left) else None

    @cached_property
    def followers(self) -> dict[Instance, int]:
        """All that must follow an instance: one bit for each."""
        assert self.order is not None
        number = {at: place for place, at in enumerate(self.order)}
        found: dict[Instance, int] = {}
        for at in reversed(self.order):
            found[at] = 0
            for target in self.onward[at]:
                found[at] |= found[target] | 1 << number[target]
        return found

    @cached_property
    def number(self) -> dict[Instance, int]:
        assert self.order is not None
        return {at: place for place, at in enumerate(self.order)}

    def before(self, u: Instance, v: Instance) -> bool:
        """Whether u is done when v starts; a stream cannot wait for a host op but at a launch."""
        if self.op(u).side == "host" and (launch := self.op(v).launch) is not None:
            v = Instance(v.part, launch, v.step)
        return u == v or bool(self.followers[u] >> self.number[v] & 1)

    def op(self, at: Instance) -> Any:
        return self.plans[at.part].graph.vertices[at.op]

    def running(self) -> Iterator[Instance]:
        for part, plan in enumerate(self.plans):
            for step in range(0, self.far) if part else range(-self.far, 0):
                for op in plan.graph.vertices:
                    yield Instance(part, op, step)

    def turn(self, at: Instance) -> tuple[int, ...]:
        """The place in the serial program."""
        vertex = self.op(at)
        names = [[node.name for node in plan.graph.nodes] for plan in self.plans]
        listed: list[str] = []
        while any(names):
            own = [each for each in names if each]
            one = next((e for e in own if not any(e[0] in o for o in own if o is not e)), None)
            listed.append(own[0][0] if one is None else one[0])
            names = [each[1:] if each and each[0] == listed[-1] else each for each in names]
        phases = vertex.node.op_names(vertex.side)
        late = self.switch.delay if at.part else 0
        return (
            at.step + vertex.offset + late,
            listed.index(vertex.node.name),
            vertex.side == "device",
            phases.index(at.op),
            at.part,
        )

    def touched(self) -> dict[Place, list[tuple[tuple[int, ...], int, Instance]]]:
        """Of each place of memory who reads (0) or writes (1) it, as the serial program does.

        In a slot a version is read after it is written, and before the next is.
        """
        found: dict[Place, list[tuple[tuple[int, ...], int, Instance]]] = defaultdict(list)
        turns = {at: self.turn(at) for at in self.running()}
        for at in turns:
            vertex = self.op(at)
            for name, carry, writes in [
                *((read.name, read.carry, 0) for read in vertex.op.reads),
                *((name, 0, 1) for name in vertex.op.writes),
            ]:
                if name in self.plans[at.part].graph.states:
                    users = vertex.op.class_of(name)
                    found["state", name, users].append((turns[at], writes, at))
                elif (where := self._slot(at.part, name, at.step - carry)) is not None:
                    key = (at.step - carry, 1 - writes)
                    found[where].append((key, writes, at))
        for accesses in found.values():
            accesses.sort(key=lambda each: (each[0], each[1]))
        return found

    def _slot(self, part: int, name: str, version: int) -> Place | None:
        owner = 0 if version < 0 else 1
        known = [self.plans[each].graph.values.get(name) for each in (part, owner)]
        if any(value is None or value.external for value in known):
            return None
        slots = self.plans[owner].slots[name]
        return owner, name, version if slots is None else version % slots

    def races(self) -> list[tuple[Instance, Instance]]:
        """Conflicting accesses that no chain of arcs orders."""
        return [
            (u, v)
            for accesses in self.touched().values()
            for (_, first, u), (_, then, v) in combinations(accesses, 2)
            if (first or then) and u != v and not self.before(u, v)
        ]

    def unfed(self) -> list[tuple[Instance, Instance]]:
        """Device ops that a stream may get in another order than it runs them."""
        found = []
        for ops in self.chains.values():
            near = [at for at in ops if abs(at.step) < self.far and self.op(at).launch]
            for u, v in pairwise(near):
                first = Instance(u.part, self.op(u).launch, u.step)
                then = Instance(v.part, self.op(v).launch, v.step)
                if first != then and not self.before(first, then):
                    found.append((u, v))
        for wait in self.switch.waits:
            launches = [self.op(at).launch for at in (wait.source, wait.target)]
            if wait not in self.without and all(launches):
                first = Instance(wait.source.part, launches[0], wait.source.step)
                then = Instance(wait.target.part, launches[1], wait.target.step)
                if not self.before(first, then):
                    found.append((wait.source, wait.target))
        return found

    def backward(self) -> bool:
        """Whether some op comes to a step of the plan after before one of the plan before."""
        first, then = (plan.graph.vertices for plan in self.plans)
        return any(
            self.turn(Instance(1, op, 0)) < self.turn(Instance(0, op, -1))
            for op in first
            if op in then
        )

    def unsound(self) -> bool:
        """Whether something can go wrong."""
        wrong = self.order is None or self.backward()
        return wrong or bool(self.races()) or bool(self.unfed())
