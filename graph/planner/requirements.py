"""What correctness needs: an order for every two conflicting accesses, and for the launches.

The hazards are the classical three. The part that is ours is the distance: a reader with carry
c reads version i − c, and version i lives in slot i mod K, so the reader must be done before
the writer of step i + K − c starts. An access is one op reading, or one op writing; an op that
does both has two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal, NamedTuple

from ..node import Turn
from ..plan import Hazard
from ..step_graph import StepGraph, Vertex
from .events import Actors, program_edges


@dataclass(frozen=True, slots=True)
class Requirement:
    """`source` of step i must be done before `target` of step i + distance starts."""

    source: str
    target: str
    distance: int
    hazard: Literal["RAW", "WAR", "WAW", "LAUNCH", "LEASE", "BOUND"]
    value: str = ""
    carry: int = 0

    def __str__(self) -> str:
        return f"{self.hazard} {self.value}".strip()


class Gate(NamedTuple):
    """The order between two ops that meets a requirement, where a wait can be placed."""

    source: str
    target: str
    distance: int


def requirements(graph: StepGraph, slots: Mapping[str, int | None]) -> list[Requirement]:
    """Every RAW, WAR and WAW of the declared accesses.

    A value whose slots are None is never overwritten: either it is fresh, or its number of
    slots is still open and thought of as unlimited.
    """
    found = []
    for value in graph.values:
        found += value_requirements(graph, value, slots.get(value))
    for state in graph.states:
        found += state_requirements(graph, state)
    return found


def value_requirements(graph: StepGraph, value: str, slots: int | None) -> list[Requirement]:
    """RAW for each read; WAR for each read and WAW, where the value lives in `slots` copies."""
    writer = graph.writers.get(value)
    if writer is None:
        return []
    reads = graph.reads.get(value, ())
    found = [Requirement(writer, reader, c, "RAW", value, c) for reader, c in reads]
    if slots is not None:
        turn = graph.values[value].turn
        following, after = (writer, slots) if turn is None else _next_in_slot(graph, turn, slots)
        found += [Requirement(reader, following, after - c, "WAR", value, c) for reader, c in reads]
        found.append(Requirement(writer, following, after, "WAW", value))
    return found


def _next_in_slot(graph: StepGraph, turn: Turn, slots: int) -> tuple[str, int]:
    """Who writes next to the slot of a version, and how many cycles later."""
    later, index = divmod(turn.index + slots, turn.of)
    name = turn.name(index)
    return graph.writers[name], later


def state_requirements(graph: StepGraph, state: str) -> list[Requirement]:
    """Any two accesses of which one writes, in the reference order.

    The order is by (step + offset, listing position), so of two ops the one listed later
    follows in the same iteration, and the one listed earlier in the next. Farther pairs follow.
    It is the *declared* order and offsets that count: which order the host threads are given
    later must not change what the pipeline means. Users of different classes never have one key
    at a time, and `leases.py` orders those who have it one after another.
    """
    accesses: list[tuple[Vertex, bool]] = []
    for vertex in graph.vertices.values():
        if any(read.name == state for read in vertex.op.reads):
            accesses.append((vertex, False))
        if state in vertex.op.writes:
            accesses.append((vertex, True))
    users = {vertex.name: vertex.op.class_of(state) for vertex, _ in accesses}
    return [
        Requirement(u.name, v.name, reference_distance(u, v), _hazard(u_writes, v_writes), state)
        for (u, u_writes), (v, v_writes) in product(accesses, repeat=2)
        if (u_writes or v_writes) and users[u.name] == users[v.name]
    ]


def reference_distance(u: Vertex, v: Vertex) -> int:
    """The least d such that u(i) stands before v(i + d) in the reference order."""
    later = 0 if u.position < v.position else 1
    return u.offset - v.offset + later


def _hazard(first_writes: bool, then_writes: bool) -> Hazard:
    if first_writes:
        return "WAW" if then_writes else "RAW"
    return "WAR"


def launch_order(
    graph: StepGraph, actors: Actors, needed: Sequence[Requirement]
) -> list[Requirement]:
    """What streams need of the host order, as requirements between launch ops.

    A stream can wait only for an event that is already recorded, so an order between two
    device ops must hold between their launches too. So must the order of the ops on a stream
    that several host threads launch on: it runs them as launched. One requirement for each
    pair, the nearest.
    """
    pairs = [(r.source, r.target, r.distance) for r in needed]
    for program in actors.values():
        if len({_launching_thread(graph, op) for op, _ in program}) > 1:
            pairs += [(u, v, distance) for u, v, distance, _ in program_edges(program)]
    nearest: dict[tuple[str, str], int] = {}
    for u, v, distance in pairs:
        first, then = graph.vertices[u].launch, graph.vertices[v].launch
        if first is None or then is None or (first == then and distance >= 0):
            continue  # a host op, or the phases of one launch, which it issues in order
        pair = (first, then)
        nearest[pair] = min(distance, nearest.get(pair, distance))
    return [Requirement(u, v, d, "LAUNCH") for (u, v), d in nearest.items()]


def _launching_thread(graph: StepGraph, op: str) -> str | None:
    launch = graph.vertices[op].launch
    return graph.vertices[launch].actor if launch else None


def gate(graph: StepGraph, needed: Requirement) -> Gate:
    """Where a requirement is met: at the launch op, for a host op that a device op must follow.

    A comm node waits before it enters: it cannot wait for anybody else once it has. An op is before
    its own later part at every distance ≥ 0 although it is not before itself in the same step; as
    an order of the op to itself that is one step more.
    """
    source, target = graph.vertices[needed.source], graph.vertices[needed.target]
    at = target.name
    if source.side == "host" and target.side == "device":
        at = target.launch or ""
    elif target.node.comm is not None:
        at = target.node.op_names(target.side)[0]
    own = 1 if at == source.name != target.name else 0
    return Gate(source.name, at, needed.distance + own)
