"""The fewest waits that meet every requirement for given actor orders, and who needs each.

A requirement that no free order implies becomes a candidate wait; a candidate goes if the rest
leaves a path at most as long. With all cycles positive two candidates can never stand in for
each other (that would be a cycle of distance ≤ 0), so all redundant ones go at once
and the result is unique: the fewest waits among plans that add no order beyond the
required one (Aho, Garey and Ullman 1972 for graphs without cycles; Midkiff and Padua 1987 for
loops).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..plan import Protected, Wait
from ..step_graph import StepGraph
from .deadlock import deadlock
from .events import Actors, Precedence, free_edges
from .paths import (
    FAR,
    HOP,
    Weights,
    adjacency,
    closure,
    ordered,
    weight,
    with_empty,
    within,
)
from .protection import broken_without
from .requirements import Gate, Requirement, gate, launch_order


@dataclass(frozen=True)
class Frame:
    """Given actor programs, their free edges, and the paths these make."""

    graph: StepGraph
    actors: Actors
    free: tuple[Precedence, ...]
    index: Mapping[str, int]
    weights: Weights
    paths: Weights

    @staticmethod
    def of(graph: StepGraph, actors: Actors) -> Frame:
        index = {name: number for number, name in enumerate(graph.vertices)}
        free = tuple(free_edges(graph, actors))
        weights = adjacency(len(index), [(index[u], index[v], d) for u, v, d, _ in free])
        return Frame(graph, actors, free, index, weights, closure(weights))

    def numbered(self, gates: Sequence[Gate]) -> list[tuple[int, int, int]]:
        return [(self.index[u], self.index[v], d) for u, v, d in gates]


@dataclass(frozen=True)
class Synchronization:
    """The waits for one frame and its requirements, with the paths of the whole graph."""

    waits: tuple[Wait, ...]
    launch_order: tuple[Requirement, ...]
    weights: Weights
    paths: Weights

    def orders(self, frame: Frame) -> list[Precedence]:
        """Every order that there is: the free ones of the frame, and the waits."""
        waits = [Precedence(w.source, w.target, w.distance, "wait") for w in self.waits]
        return [*frame.free, *waits]


@dataclass(frozen=True)
class Needs:
    """Everything a frame must order: the requirements, the launch order, and where each is met."""

    requirements: tuple[Requirement, ...]
    launches: tuple[Requirement, ...]
    gates: tuple[Gate, ...]

    @staticmethod
    def of(frame: Frame, needed: Sequence[Requirement]) -> Needs:
        launches = launch_order(frame.graph, frame.actors, needed)
        everything = (*needed, *launches)
        gates = tuple(gate(frame.graph, requirement) for requirement in everything)
        return Needs(everything, tuple(launches), gates)


def synchronize(frame: Frame, needed: Sequence[Requirement]) -> Synchronization:
    """Meet every requirement. Raises `DeadlockError` if no set of waits can."""
    needs = Needs.of(frame, needed)
    kept = fewest_waits(frame, needs)
    weights = frame.weights.copy()
    for source, target, distance in kept:
        weights[source, target] = weight(distance)
    paths = closure(weights)
    names = list(frame.index)
    broken = broken_without(frame.paths, paths, kept, frame.numbered(needs.gates))
    return Synchronization(
        waits=tuple(
            Wait(names[source], names[target], distance, _protected(needs, numbers))
            for (source, target, distance), numbers in zip(kept, broken, strict=True)
        ),
        launch_order=needs.launches,
        weights=weights,
        paths=paths,
    )


def fewest_waits(frame: Frame, needs: Needs) -> list[tuple[int, int, int]]:
    """The waits (source, target, distance) that no others imply. Raises `DeadlockError`."""
    candidates = _candidates(frame, frame.numbered(needs.gates))
    wanted = frame.weights.copy()
    for source, target, distance in candidates:
        wanted[source, target] = min(wanted[source, target], weight(distance))
    paths = closure(wanted)
    if not ordered(paths):
        raise deadlock(frame.graph, frame.actors, frame.free, needs.requirements, needs.gates)
    extra = redundant(wanted, paths, candidates)
    return [wait for wait, drop in zip(candidates, extra, strict=True) if not drop]


def nearest_gates(gates: Sequence[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """The nearest order needed between any two ops: it implies the others."""
    nearest: dict[tuple[int, int], int] = {}
    for source, target, distance in gates:
        pair = (source, target)
        nearest[pair] = min(distance, nearest.get(pair, distance))
    return sorted((source, target, d) for (source, target), d in nearest.items())


def _candidates(frame: Frame, gates: Sequence[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """The nearest order needed between any two ops, where the free edges do not imply it."""
    return [each for each in nearest_gates(gates) if not within(frame.paths, *each)]


def redundant(
    weights: Weights, paths: Weights, candidates: Sequence[tuple[int, int, int]]
) -> list[bool]:
    """For each candidate, whether the other edges imply it.

    A path around the edge starts with another edge out of its source; it cannot come back
    to the edge later, since that would close a cycle of distance ≤ 0.
    """
    if not candidates:
        return []
    source, target, distance = (np.array(column) for column in zip(*candidates, strict=True))
    first = weights[source]  # one row for each candidate: the edges out of its source
    first[np.arange(len(source)), target] = FAR
    around = (first + with_empty(paths)[:, target].T).min(axis=1)
    result: list[bool] = (around < (distance + 1) * HOP).tolist()
    return result


def _protected(needs: Needs, numbers: Sequence[int]) -> tuple[Protected, ...]:
    found = [needs.requirements[number] for number in numbers]
    return tuple(Protected(r.hazard, r.value, r.source, r.target) for r in found)
