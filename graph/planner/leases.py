"""When a key of a pool may change hands: KV blocks, request rows, adapters, stage buffers.

A keyed state has contents, which ops access by key, and a pool of keys, which the host hands out.
Taking a key back touches only the pool; declared as a write to the contents it would put the host
on the critical cycle. The hazard that remains is between the old users' last access and the new
users' first, and who they are says how long it lasts.

Ops access the state on behalf of a *class* of users: the request that owns a block, a copy to
other memory. One class has a key at a time. If users of class U had it in step s at last (a request
that has ended may still run in steps scheduled before its end was known), users of class V may have
it from step s + r(U, V) on, where r is the longest of the shortest paths from an op of U to an op
of V of which one writes: whichever came last and whichever comes first, the plan orders the two.
So does the serial program: r is at least the distance at which it has them in that order. Bounds
do not count: they order any two ops, but so late that a pool would run dry.

Different keys need no order at all. A wait is added only where r would be infinite: where it
leaves the least infinite, then the least leases, at the least distance that keeps the period.
Then those that the others make dispensable go, and each distance is lowered as far as the period
permits. A lease that the author pins is required as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from ..errors import DeadlockError, GraphError
from ..plan import Lease, Plan, Wait
from ..step_graph import StepGraph, Vertex
from .paths import HOP, Weights, reachable
from .period import period
from .requirements import Requirement, gate, reference_distance
from .waits import Frame, Synchronization, synchronize

MOST = 1 << 14  # where even a wait of such a distance costs time, it is only that of a launch
PLACES = 24  # of a wait that are compared at once


@dataclass(frozen=True)
class Move:
    """Keys that pass from one class of users to another, and the accesses that conflict.

    Each pair is a requirement at the distance that it has in the serial program.
    """

    state: str
    source: str
    target: str
    pairs: tuple[Requirement, ...]
    pinned: int | None = None

    def open_pairs(self, frame: Frame, paths: Weights) -> list[Requirement]:
        """Those that nothing orders."""
        return [pair for pair in self.pairs if _steps(frame, paths, pair) is None]

    def lease(self, frame: Frame, paths: Weights) -> Lease:
        """The least that is safe. Every pair must be ordered."""
        found = [(_steps(frame, paths, pair), pair.distance) for pair in self.pairs]
        steps = max(max(path, serial) for path, serial in found if path is not None)
        return Lease(self.state, self.source, self.target, steps)


def _steps(frame: Frame, paths: Weights, pair: Requirement) -> int | None:
    """The total of a shortest path between two accesses, met where any requirement is."""
    met = gate(frame.graph, pair)
    path = paths[frame.index[met.source], frame.index[met.target]]
    return int(path) // HOP - (met.distance - pair.distance) if reachable(path) else None


def moves(graph: StepGraph) -> list[Move]:
    """Every two classes of users of a keyed state whose accesses conflict."""
    found = []
    for name, state in graph.states.items():
        if state.keys is None:
            continue
        classes = _users(graph, name)
        pins = {(source, target): steps for source, target, steps in state.leases}
        for source, target in product(classes, repeat=2):
            pairs = tuple(
                Requirement(u.name, v.name, reference_distance(u, v), "LEASE", name)
                for u, v in product(classes[source], classes[target])
                if name in u.op.writes or name in v.op.writes
            )
            if pairs:
                found.append(Move(name, source, target, pairs, pins.get((source, target))))
    return found


def _users(graph: StepGraph, state: str) -> Mapping[str, list[Vertex]]:
    """The ops that access a state, by class, in the order of the listing."""
    found: dict[str, list[Vertex]] = {}
    for vertex in graph.vertices.values():
        if state in vertex.op.writes or any(read.name == state for read in vertex.op.reads):
            found.setdefault(vertex.op.class_of(state), []).append(vertex)
    return found


def leased(
    frame: Frame, needed: Sequence[Requirement], found: Synchronization, costs: Mapping[str, float]
) -> tuple[list[Requirement], Synchronization, tuple[Lease, ...]]:
    """The requirements, with those that leases need, the waits that meet them all, and the leases.

    Pinned leases are among the requirements: see `pinned_leases`.
    """
    every = moves(frame.graph)
    if any(move.open_pairs(frame, found.paths) for move in every):
        free_us = period(frame.graph, found.orders(frame), costs).us
        bridges = _Bridges(frame, needed, every, costs, free_us).bridged(found)
        needed = [*needed, *bridges]
        found = synchronize(frame, needed)
    return [*needed], found, tuple(move.lease(frame, found.paths) for move in every)


def pinned_leases(graph: StepGraph) -> list[Requirement]:
    """What pinned leases require, in any order of the host threads.

    Raises `GraphError` for one that the serial program does not keep.
    """
    return [pair for move in moves(graph) for pair in _pinned(graph, move)]


def _pinned(graph: StepGraph, move: Move) -> list[Requirement]:
    if move.pinned is None:
        return []
    serial = max(move.pairs, key=lambda pair: pair.distance)
    if move.pinned < serial.distance:
        raise GraphError(
            f"a key of {move.state!r} cannot pass from {move.source!r} to {move.target!r} after "
            f"{move.pinned} steps: the serial program has {serial.source!r} before "
            f"{serial.target!r} of {serial.distance} steps later at the earliest. Pin "
            f"{serial.distance} or more.",
            code="SW-LEASE",
            line=graph.states[move.state].line,
        )
    return [replace(pair, distance=move.pinned) for pair in move.pairs]


@dataclass(frozen=True)
class _Bridges:
    """The waits without which some lease would be infinite."""

    frame: Frame
    needed: Sequence[Requirement]
    moves: Sequence[Move]
    costs: Mapping[str, float]
    free_us: float

    def bridged(self, found: Synchronization) -> list[Requirement]:
        chosen: list[Requirement] = []
        while left := self._first_open(found.paths):
            chosen.append(self._best(left, chosen))
            found = synchronize(self.frame, [*self.needed, *chosen])
        for each in tuple(chosen):
            others = [other for other in chosen if other is not each]
            without = synchronize(self.frame, [*self.needed, *others])
            if not self._first_open(without.paths):
                chosen = others
        for number, each in enumerate(chosen):
            chosen[number] = self._nearest(each, [*chosen[:number], *chosen[number + 1 :]])[0]
        return chosen

    def _first_open(self, paths: Weights) -> list[Requirement]:
        """What nothing orders, of the first move of which something is not."""
        every = (move.open_pairs(self.frame, paths) for move in self.moves)
        return next((pairs for pairs in every if pairs), [])

    def _best(self, pairs: Sequence[Requirement], others: Sequence[Requirement]) -> Requirement:
        """The place that leaves the least open, then has the least leases; latest sources first."""
        ranked: list[tuple[int, int, int, Requirement]] = []
        for number, pair in enumerate(pairs[-PLACES:]):
            nearest, found = self._nearest(pair, others)
            still = [move.open_pairs(self.frame, found.paths) for move in self.moves]
            known = [m for m, left in zip(self.moves, still, strict=True) if not left]
            leases = sum(move.lease(self.frame, found.paths).steps for move in known)
            ranked.append((sum(map(len, still)), leases, -number, nearest))
        return min(ranked, key=lambda each: each[:3])[3]

    def _nearest(
        self, pair: Requirement, others: Sequence[Requirement]
    ) -> tuple[Requirement, Synchronization]:
        """The pair at the least distance at which it closes no cycle and costs no time."""
        declared = next(p for m in self.moves for p in m.pairs if _ends(p) == _ends(pair))
        least, fits, step = declared.distance, declared.distance, 1
        while (found := self._fitting(pair, fits, others)) is None:
            least, fits, step = fits + 1, fits + step, 2 * step
        while least < fits:
            middle = (least + fits) // 2
            nearer = self._fitting(pair, middle, others)
            if nearer is None:
                least = middle + 1
            else:
                fits, found = middle, nearer
        return replace(pair, distance=fits), found

    def _fitting(
        self, pair: Requirement, distance: int, others: Sequence[Requirement]
    ) -> Synchronization | None:
        asked = [*self.needed, *others, replace(pair, distance=distance)]
        try:
            found = synchronize(self.frame, asked)
        except DeadlockError:
            return None
        if distance >= MOST:
            return found
        us = period(self.frame.graph, found.orders(self.frame), self.costs).us
        return found if us <= self.free_us else None


def _ends(pair: Requirement) -> tuple[str, str, str]:
    return pair.source, pair.target, pair.value


def lease_notes(waits: Sequence[Wait]) -> list[str]:
    """What is to be said of the waits that exist only so that keys can change hands."""
    found = []
    for wait in waits:
        if all(each.hazard == "LEASE" for each in wait.protects):
            states = dict.fromkeys(repr(each.value) for each in wait.protects)
            found.append(
                f"lease wait {wait.source} → {wait.target} (+{wait.distance}): "
                f"keys of {', '.join(states)} change hands by it"
            )
    return found


def pool_leases(plan: Plan, keys: str) -> dict[tuple[str, str], int]:
    """After how many steps a key of that pool may pass from one class of users to another.

    For all states whose parts it names. A pair of classes that is not in it never conflicts. Where
    nodes have rates, leases of the plan count cycles, so these are multiples of a cycle. Raises
    `GraphError` for a state of the pool that nothing writes.
    """
    states = [name for name, state in plan.graph.states.items() if state.keys == keys]
    found: dict[tuple[str, str], int] = {}
    for name in states:
        own = [lease for lease in plan.leases if lease.state == name]
        if not own:
            raise GraphError(
                f"keys of {name!r} can never be granted anew: nothing orders those who use it. "
                f"Declare what writes {name!r}.",
                code="SW-UNORDERED",
                line=plan.graph.states[name].line,
            )
        for lease in own:
            pair = (lease.source, lease.target)
            steps = lease.steps * plan.graph.cycle
            found[pair] = max(steps, found.get(pair, steps))
    return found
