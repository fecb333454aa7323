"""What a plan must order, from the declarations, and what it does order, from its programs.

The verifier's own derivation: it shares no code with the planner's requirements, events and paths.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..plan import Plan
from .words import instant

Arc = tuple[str, str, int]  # (u, v, d): u of step i is done before v of step i + d starts


@dataclass(frozen=True, slots=True)
class Need:
    """before(i) must be done when after(i + distance) starts."""

    hazard: str
    value: str
    carry: int
    before: str
    after: str
    distance: int

    def __str__(self) -> str:
        what = f"{self.hazard} {self.value}".strip()
        return f"{what}: {instant(self.before, self.after, self.distance)}"


def needs_without_rates(plan: Plan) -> Iterator[Need]:
    """Every required ordering of a graph in which all nodes fire once a step."""
    ops = plan.graph.vertices
    writer = {name: op.name for op in ops.values() for name in op.op.writes}
    for op in ops.values():
        for read in op.op.reads:
            if read.name in plan.graph.states or read.name not in writer:
                continue  # states below; an external value never changes
            wrote, copies = writer[read.name], plan.slots.get(read.name)
            yield Need("RAW", read.name, read.carry, wrote, op.name, read.carry)
            if copies is not None:  # the version read is overwritten `copies` versions later
                gap = copies - read.carry
                yield Need("WAR", read.name, read.carry, op.name, wrote, gap)
    for name, wrote in writer.items():
        copies = plan.slots.get(name)
        if name not in plan.graph.states and copies is not None:
            yield Need("WAW", name, 0, wrote, wrote, copies)
    for state in plan.graph.states:
        yield from state_needs(state, list(touches_without_rates(plan, state)), 1)


class Touch(NamedTuple):
    """An access of a state by an op, and where that stands in the reference order."""

    op: str
    users: str  # the class on whose behalf
    letter: str
    step: int  # step + offset, of an op of the first cycle
    place: tuple[int, ...]  # within that


def touches_without_rates(plan: Plan, state: str) -> Iterator[Touch]:
    """Who accesses a state; of one op a read comes first."""
    for op in plan.graph.vertices.values():
        at = (op.offset, (op.position,))
        for letter, names in (("R", [read.name for read in op.op.reads]), ("W", op.op.writes)):
            if state in names:
                yield Touch(op.name, op.op.class_of(state), letter, *at)


def state_needs(state: str, touching: Sequence[Touch], cycle: int) -> Iterator[Need]:
    """Conflicting accesses of a state, in the reference order."""
    for first in touching:
        for then in touching:
            if first.letter == then.letter == "R" or first.users != then.users:
                continue  # a key that passes between classes: `leases.py`
            hazard = f"{then.letter}A{first.letter}"
            yield Need(hazard, state, 0, first.op, then.op, least_gap(first, then, cycle))


def least_gap(first: Touch, then: Touch, cycle: int) -> int:
    """The least number of cycles after which the second access comes later than the first."""
    cycles, steps = divmod(first.step - then.step, cycle)
    return cycles + (steps > 0 or then.place <= first.place)


def feeds_of(plan: Plan) -> Iterator[Need]:
    """What streams need of the order between launch ops, as far as one thread's does not say it."""
    ops = plan.graph.vertices
    waits = dict.fromkeys((wait.source, wait.target, wait.distance) for wait in plan.waits)
    for u, v, d in (*program_arcs(plan), *waits):
        first, second = ops[u].launch, ops[v].launch
        if first is None or second is None or (first == second and d >= 0):
            continue
        if ops[first].actor != ops[second].actor or (u, v, d) in waits:
            yield Need("LAUNCH", "", 0, first, second, d)


def arcs_of(plan: Plan) -> Iterator[Arc]:
    """Every ordering that running the plan gives: programs, launches, meetings of ranks, waits."""
    yield from program_arcs(plan)
    yield from _meeting_arcs(plan)
    for op in plan.graph.vertices.values():
        if op.launch is not None:
            yield op.launch, op.name, 0
    for wait in plan.waits:
        yield wait.source, wait.target, wait.distance


def program_arcs(plan: Plan) -> Iterator[Arc]:
    for program in plan.actors.values():
        following = [*program[1:], *program[:1]]
        for place, ((u, at), (v, then)) in enumerate(zip(program, following, strict=True)):
            # In iteration t the actor runs u for step t - at, and v for step t - then.
            yield u, v, at - then + (place == len(program) - 1)


def _meeting_arcs(plan: Plan) -> Iterator[Arc]:
    """What the ends of a comm node wait for: the last op of one for the first of the other."""
    meeting = [node for node in plan.graph.nodes if node.comm is not None]
    for here in meeting:
        for there in meeting:
            one, other = here.comm, there.comm
            if one is None or other is None or here.rank == there.rank or one.name != other.name:
                continue
            parts = [node.op_names("device" if node.device else "host") for node in (here, there)]
            if one.kind == "collective" or here.rank == one.members[0]:
                yield parts[0][0], parts[1][-1], 0
            elif one.capacity is not None:
                yield parts[0][0], parts[1][-1], one.capacity


class Distances:
    """The least distance d such that u(i) is done before v(i + d) starts, for all u and v.

    By at least one ordering: an op is not before itself. Needs cycles of positive distance.
    """

    def __init__(self, ops: Sequence[str], arcs: Iterable[Arc]) -> None:
        self._index = {op: place for place, op in enumerate(ops)}
        self._arcs = list(arcs)
        table: NDArray[np.float64] = np.full((len(ops), len(ops)), np.inf)
        for u, v, d in self._arcs:
            i, j = self._index[u], self._index[v]
            table[i, j] = min(table[i, j], d)
        for k in range(len(ops)):
            np.minimum(table, table[:, k, None] + table[None, k, :], out=table)
        self._table = table

    def __call__(self, u: str, v: str) -> int | None:
        least = self._table[self._index[u], self._index[v]]
        return int(least) if np.isfinite(least) else None

    def ordered(self, u: str, v: str, most: int) -> bool:
        least = self(u, v)
        return least is not None and least <= most

    def path(self, u: str, v: str) -> tuple[tuple[str, int], ...]:
        """A shortest path as (op, total distance so far), of fewest arcs; empty if unordered."""
        least = self(u, v)
        if least is None:
            return ()
        rounds: list[dict[str, tuple[int, str]]] = [{u: (0, u)}]  # by number of arcs
        while v not in rounds[-1] or len(rounds) == 1 or rounds[-1][v][0] > least:
            reached: dict[str, tuple[int, str]] = {}
            for source, target, d in self._arcs:
                if source in rounds[-1]:
                    total = rounds[-1][source][0] + d
                    if target not in reached or total < reached[target][0]:
                        reached[target] = (total, source)
            rounds.append(reached)
        found: list[tuple[str, int]] = []
        at = v
        for reached in reversed(rounds):
            found.append((at, reached[at][0]))
            at = reached[at][1]
        return tuple(reversed(found))


def stuck_cycle(ops: Sequence[str], arcs: Sequence[Arc]) -> list[tuple[str, int]]:
    """A cycle of total distance ≤ 0 as (op, distance to the next), or nothing.

    Bellman-Ford with lengths d * (n + 1) - 1: those of a simple cycle sum to less than zero
    exactly if its distances sum to zero or less.
    """
    length = dict.fromkeys(ops, 0)
    came: dict[str, Arc] = {}
    last: str | None = None
    for _ in range(len(ops) + 1):
        last = None
        for u, v, d in arcs:
            if length[u] + d * (len(ops) + 1) - 1 < length[v]:
                length[v] = length[u] + d * (len(ops) + 1) - 1
                came[v] = (u, v, d)
                last = v
        if last is None:
            return []
    assert last is not None, "the loop above returned otherwise"
    for _ in ops:  # walk back into the cycle, then once around it
        last = came[last][0]
    cycle: list[tuple[str, int]] = []
    at = last
    while not cycle or at != last:
        u, _, d = came[at]
        cycle.append((u, d))
        at = u
    return cycle[::-1]
