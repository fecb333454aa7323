"""The proof of a plan: for each requirement, a path that orders it, and how the path came to be.

A requirement is met `by`
- `order`: the program of the one actor that runs both ops;
- `launch`: the launch of the device op by the very op it must follow;
- `wait`: one wait (and the launch edge, where the wait is at the launch);
- `path`: anything longer. Such a requirement is protected only incidentally: removing an
  unrelated node may take its path away, which is why every compilation proves all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np

from ..plan import By, Edge
from ..step_graph import StepGraph
from .paths import FAR, HOP, ShortestPaths
from .requirements import Gate, Requirement, gate
from .waits import Frame, Synchronization

Steps = list[tuple[str, int]]  # ops with the distance from the first


class Prover:
    """Finds the witness of each requirement in one synchronized graph."""

    def __init__(self, frame: Frame, found: Synchronization) -> None:
        self._frame = frame
        self._found = found
        self._shortest = ShortestPaths(found.weights, np.asfortranarray(found.paths))
        self._names = list(frame.index)
        self._waits = {(wait.source, wait.target): wait for wait in found.waits}
        self._free = {(u, v): d for u, v, d, _ in reversed(frame.free)}
        self._paths: dict[tuple[str, str], Steps] = {}

    def prove(self, needed: Iterable[Requirement]) -> tuple[Edge, ...]:
        """One edge with its witness for each requirement, in the same order."""
        return tuple(self._edge(requirement) for requirement in needed)

    def _edge(self, needed: Requirement) -> Edge:
        by, event, witness = self._witness(needed)
        vertices = self._frame.graph.vertices
        return Edge(
            source=needed.source,
            target=needed.target,
            value=needed.value,
            carry=needed.carry,
            distance=needed.distance,
            hazard=needed.hazard,
            from_stream=vertices[needed.source].actor,
            to_stream=vertices[needed.target].actor,
            by=by,
            event=event,
            witness=tuple(witness),
        )

    def _witness(self, needed: Requirement) -> tuple[By, str | None, Steps]:
        vertices = self._frame.graph.vertices
        at = gate(self._frame.graph, needed)
        tail = _onward(self._frame.graph, needed, at)
        if vertices[needed.source].actor == vertices[needed.target].actor:
            chain = self._chain(needed)
            if chain[-1][1] <= needed.distance:
                return "order", None, chain
        if tail and at.source == at.target:
            return "launch", None, _joined([(needed.source, 0)], tail)
        wait = self._waits.get((at.source, at.target))
        if wait is not None and wait.distance <= at.distance:
            direct = [(wait.source, 0), (wait.target, wait.distance)]
            return "wait", wait.source, _joined(direct, tail)
        path = self._path(at)
        assert path[-1][1] <= at.distance, f"{at} is not implied"
        return "path", self._last_event(path), _joined(path, tail)

    def _chain(self, needed: Requirement) -> Steps:
        """From source to target along their actor's program, into the next iteration if need be."""
        program = self._frame.actors[self._frame.graph.vertices[needed.source].actor]
        ops = [op for op, _ in program]
        begin, end = ops.index(needed.source), ops.index(needed.target)
        length = end - begin if end > begin else end - begin + len(ops)
        start = program[begin][1]
        places = [divmod(begin + hop, len(ops)) for hop in range(length + 1)]
        return [(ops[rank], start - program[rank][1] + turn) for turn, rank in places]

    def _path(self, at: Gate) -> Steps:
        known = self._paths.get((at.source, at.target))
        if known is not None:
            return known
        index, found = self._frame.index, self._found
        source, target = index[at.source], index[at.target]
        path = self._shortest.between(source, target)
        steps, total = [(at.source, 0)], 0
        for u, v in pairwise(path):
            total += int(found.weights[u, v]) // HOP
            steps.append((self._names[v], total))
        self._paths[at.source, at.target] = steps
        return steps

    def _last_event(self, path: Steps) -> str | None:
        for (u, at_u), (v, at_v) in reversed(list(pairwise(path))):
            wait = self._waits.get((u, v))
            if wait is not None and at_v - at_u < self._free.get((u, v), FAR):
                return wait.source
        return None


def _onward(graph: StepGraph, needed: Requirement, at: Gate) -> list[str]:
    """The ops from the gate to the target, where that is not the gate: a launch, or an entry."""
    target = graph.vertices[needed.target]
    if at.target == target.name:
        return []
    phases = target.node.op_names(target.side)
    begin = 0 if at.target == target.launch else 1
    return list(phases[begin : phases.index(target.name) + 1])


def _joined(path: Steps, tail: Iterable[str]) -> Steps:
    return [*path, *((op, path[-1][1]) for op in tail)]
