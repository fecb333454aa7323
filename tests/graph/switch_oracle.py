"""Brute force for switches: both plans unrolled far beyond it, and every two accesses asked.

Nothing here knows a requirement, a least distance or a clock. There are instances of ops, the arcs
that running both plans and the switch gives, and places of memory: slots of either plan, states.
For each place the accesses are listed in the order of the serial program; of each two of which one
writes, the first must reach the second over arcs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from itertools import pairwise
from typing import Any

from stepweave.graph.plan import Plan, Wait
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
            launch = self.op(at).launch
            if launch is not None:
                found[Instance(at.part, launch, at.step)].add(at)
            for wait in self.waits[at.part][at.op]:
                source = Instance(at.part, wait.source, at.step - wait.distance)
                if source in found:
                    found[source].add(at)
        for once in self.switch.waits:
            if once not in self.without and once.target in found:
                blocked = once.source not in found  # waits for what never comes: for ever
                found[once.target if blocked else once.source].add(once.target)
        return found

    @cached_property
    def waits(self) -> tuple[Mapping[str, list[Wait]], ...]:
        """By plan and op, what it waits for in each step."""
        found: tuple[dict[str, list[Wait]], ...] = (defaultdict(list), defaultdict(list))
        for part, plan in enumerate(self.plans):
            for wait in plan.waits:
                found[part][wait.target].append(wait)
        return found

    @cached_property
    def number(self) -> dict[Instance, int]:
        """The bit of each instance in sets of them."""
        return {at: place for place, at in enumerate(self.onward)}

    @cached_property
    def order(self) -> list[int] | None:
        """The numbers in some order in which all can run; None if they block."""
        onward, left = self.arcs, [0] * len(self.arcs)
        for targets in onward:
            for at in targets:
                left[at] += 1
        ready = [at for at, count in enumerate(left) if not count]
        for at in ready:
            for target in onward[at]:
                left[target] -= 1
                if not left[target]:
                    ready.append(target)
        return ready if len(ready) == len(left) else None

    @cached_property
    def arcs(self) -> list[list[int]]:
        """`onward`, by number."""
        return [[self.number[each] for each in targets] for targets in self.onward.values()]

    @cached_property
    def followers(self) -> list[int]:
        """By number, all that must follow an instance: one bit for each."""
        assert self.order is not None
        found = [0] * len(self.order)
        for at in reversed(self.order):
            bits = 0
            for target in self.arcs[at]:
                bits |= found[target] | 1 << target
            found[at] = bits
        return found

    def before(self, u: Instance, v: Instance) -> bool:
        """Whether u is done when v starts."""
        if self.op(u).side == "host":
            v = self.met_at(v)
        return u == v or bool(self.followers[self.number[u]] >> self.number[v] & 1)

    def met_at(self, at: Instance) -> Instance:
        """Where it can wait for a host op: a stream cannot, but at a launch."""
        launch = self.op(at).launch
        return at if launch is None else Instance(at.part, launch, at.step)

    def op(self, at: Instance) -> Any:
        return self.plans[at.part].graph.vertices[at.op]

    def running(self) -> Iterator[Instance]:
        for part, plan in enumerate(self.plans):
            for step in range(0, self.far) if part else range(-self.far, 0):
                for op in plan.graph.vertices:
                    yield Instance(part, op, step)

    @cached_property
    def listed(self) -> tuple[Mapping[str, tuple[int, ...]], ...]:
        """By plan and op the offset, and the place in one listing of both plans' nodes."""
        names = [[node.name for node in plan.graph.nodes] for plan in self.plans]
        listed: list[str] = []
        while any(names):
            own = [each for each in names if each]
            one = next((e for e in own if not any(e[0] in o for o in own if o is not e)), None)
            listed.append(own[0][0] if one is None else one[0])
            names = [each[1:] if each and each[0] == listed[-1] else each for each in names]
        return tuple(
            {
                op: (
                    vertex.offset,
                    listed.index(vertex.node.name),
                    vertex.side == "device",
                    vertex.node.op_names(vertex.side).index(op),
                )
                for op, vertex in plan.graph.vertices.items()
            }
            for plan in self.plans
        )

    def turn(self, at: Instance) -> tuple[int, ...]:
        """The place in the serial program."""
        offset, *places = self.listed[at.part][at.op]
        late = self.switch.delay if at.part else 0
        return (at.step + offset + late, *places, at.part)

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

    def is_over(self, step: int) -> bool:
        """Whether nobody touches memory of the plan before once an op comes to that step."""
        last = [Instance(0, op, -1) for op in self.plans[0].graph.vertices]
        last += [
            at
            for at in self.running()
            if at.part
            and any(
                read.carry > at.step and self._slot(1, read.name, at.step - read.carry)
                for read in self.op(at).op.reads
            )
        ]
        onward = self.plans[1].graph.vertices
        begun = [Instance(1, op, step) for op in onward]
        return all(u != v and self.before(u, v) for u in last for v in begun)

    def races(self) -> bool:
        """Whether no chain of arcs orders some two conflicting accesses."""
        number, must_follow = self.number, dict.fromkeys(self.onward, 0)
        for accesses in self.touched().values():
            later = {(side, writes): 0 for side in ("host", "device") for writes in (0, 1)}
            for _, writes, at in reversed(accesses):
                own, side = 1 << number[at], self.op(at).side
                must_follow[at] |= later[side, 1] | (later[side, 0] if writes else 0)
                later["device", writes] |= own
                later["host", writes] |= 1 << number[self.met_at(at)]
        return any(
            bits & ~self.followers[number[at]] & ~(1 << number[at])
            for at, bits in must_follow.items()
        )

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
        return wrong or self.races() or bool(self.unfed())
