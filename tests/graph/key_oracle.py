"""Brute force on keys: who has which key in which step, and what could touch it at once.

Nothing here knows a lease's rule, a distance or a shortest path. A plan's programs are unrolled
(`oracle.Order`), keys are given from class to class as soon as the plan's leases permit, and every
two accesses of one key, of which one writes, must be in the order of their users: in the unrolled
plan and in the serial program.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from random import Random
from typing import NamedTuple

from stepweave.graph.plan import Lease, Plan, Wait
from stepweave.graph.planner.bounds import without_bounds
from tests.graph import oracle
from tests.graph.oracle import Instance


class Tenure(NamedTuple):
    """A class of users has a key from one step to another, both included."""

    users: str
    first: int
    last: int


class Meeting(NamedTuple):
    """Two accesses of one key that may run in the wrong order."""

    state: str
    before: Instance
    after: Instance


@dataclass(frozen=True)
class Keys:
    """The unrolled order of a plan, with keys that are handed on in it."""

    plan: Plan
    steps: int
    order: oracle.Order

    @staticmethod
    def of(plan: Plan, steps: int) -> Keys:
        unrolled = oracle.Unrolled(plan, steps, oracle.padding_for(plan))
        return Keys(plan, steps, oracle.Order(unrolled))

    def users(self, state: str, users: str) -> list[tuple[str, bool]]:
        """(op, whether it writes) of a class."""
        found = []
        for name, vertex in self.plan.graph.vertices.items():
            reads = any(read.name == state for read in vertex.op.reads)
            writes = state in vertex.op.writes
            if (reads or writes) and vertex.op.class_of(state) == users:
                found.append((name, writes))
        return found

    def accesses(self, state: str, tenure: Tenure) -> list[tuple[Instance, bool]]:
        steps = range(max(tenure.first, 0), min(tenure.last + 1, self.steps))
        ops = self.users(state, tenure.users)
        return [(Instance(op, step), writes) for step in steps for op, writes in ops]

    def meetings(self, state: str, tenures: Sequence[Tenure]) -> Iterator[Meeting]:
        """What goes wrong on one key with these tenures, one after another."""
        for old, new in combinations(tenures, 2):
            for before, wrote in self.accesses(state, old):
                for after, writes in self.accesses(state, new):
                    if (wrote or writes) and not self._in_order(before, after):
                        yield Meeting(state, before, after)

    def _in_order(self, before: Instance, after: Instance) -> bool:
        return self._serially(before) < self._serially(after) and self.order.before(before, after)

    def _serially(self, at: Instance) -> tuple[int, int]:
        vertex = self.plan.graph.vertices[at.op]
        return at.step + vertex.offset, vertex.position

    def handed_on(self, lease: Lease) -> Iterator[Meeting]:
        """What goes wrong with a key that is handed on as soon as a lease permits."""
        last = self.steps // 2 - max(lease.steps, 0) // 2 - min(lease.steps, 0)
        new = Tenure(lease.target, last + lease.steps, self.steps)
        yield from self.meetings(lease.state, [Tenure(lease.source, 0, last), new])


def steps_for(plan: Plan) -> int:
    """A window in which a key is with its old users and its new ones."""
    return 8 + 2 * max((abs(lease.steps) for lease in plan.leases), default=0)


def early(plan: Plan) -> list[Meeting]:
    """Every two accesses that some lease of the plan lets meet. Empty: keys are safe."""
    keys = Keys.of(plan, steps_for(plan))
    return [found for lease in plan.leases for found in keys.handed_on(lease)]


def early_at_random(plan: Plan, seed: int) -> list[Meeting]:
    """The same for keys that pass through several classes, each grant as early as all permit."""
    random, steps = Random(seed), 2 * steps_for(plan)
    keys = Keys.of(plan, steps)
    found: list[Meeting] = []
    for state in dict.fromkeys(lease.state for lease in plan.leases):
        leases = {(e.source, e.target): e.steps for e in plan.leases if e.state == state}
        tenures: list[Tenure] = []
        while not tenures or tenures[-1].last < steps:
            users = random.choice(sorted({each for pair in leases for each in pair}))
            first = max(
                (t.last + leases[t.users, users] for t in tenures if (t.users, users) in leases),
                default=0,
            )
            first = max([first, *(t.first for t in tenures)])
            tenures.append(Tenure(users, first, first + random.randrange(3)))
        found += keys.meetings(state, tenures)
    return found


def never_handed_on(plan: Plan, window: int = 24) -> list[tuple[str, str, str]]:
    """(state, from, to): classes between which no number of steps in a window is enough.

    Bounds do not count.
    """
    free = without_bounds(plan)
    keys = Keys.of(free, window)
    if keys.order.stuck:
        return [("stuck", "", "")]
    classes = {
        s: {v.op.class_of(s) for v in free.graph.vertices.values()} for s in free.graph.states
    }
    found = []
    for state, datum in free.graph.states.items():
        for source in classes[state] if datum.keys is not None else ():
            for target in classes[state]:
                if not all(
                    keys.order.before(Instance(u, 1), Instance(v, window - 1))
                    for u, wrote in keys.users(state, source)
                    for v, writes in keys.users(state, target)
                    if wrote or writes
                ):
                    found.append((state, source, target))
    return found


def is_lease_wait(wait: Wait) -> bool:
    """Whether it is there for nothing but keys."""
    return {each.hazard for each in wait.protects} == {"LEASE"}


def without(plan: Plan, wait: Wait) -> Plan:
    """The plan without a wait, and without the one that puts the launches in its order."""
    ops = plan.graph.vertices
    launches = (ops[wait.source].launch, ops[wait.target].launch)

    def is_of(other: Wait) -> bool:
        only = {each.hazard for each in other.protects} == {"LAUNCH"}
        return other is wait or (only and (other.source, other.target) == launches)

    return replace(plan, waits=tuple(each for each in plan.waits if not is_of(each)))


def nearer(plan: Plan, wait: Wait) -> Plan:
    """The plan with a wait one step nearer, and the launches in the order that this asks for."""
    ops = plan.graph.vertices
    closer = replace(wait, distance=wait.distance - 1)
    more = [closer]
    first, then = ops[wait.source].launch, ops[wait.target].launch
    if first is not None and then is not None and first != then:
        more.append(Wait(first, then, closer.distance))
    others = [each for each in plan.waits if each is not wait]
    return replace(plan, waits=(*others, *more))
