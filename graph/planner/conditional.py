"""Waits that only some modes need: left out in the others, where both of their ends know the mode.

A requirement is there only in steps in whose modes both of its ops touch what it is about: what is
not read need not be written before. So a wait may be left out in a mode if all that must be ordered
still is. It must be whatever the modes of other steps are, so only those paths count that use waits
of all modes, and waits that depend on the very step, or two steps, whose modes make the
requirement. Whether a wait takes place must be known at both of its ends, when the one would record
and the other wait: the op that writes the mode comes before both on a path that is always there.

From first to last, each wait is left out in one mode after another where it can be. Leaving out
only takes paths away, so what cannot be left out at its turn cannot be left out at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import numpy.typing as npt

from ..modes import mode_writer
from ..plan import Lease, Protected, Wait
from ..step_graph import StepGraph
from .bounds import MOST, least_bound, unbounded
from .events import Precedence
from .leases import moves
from .paths import HOP, Weights, closure, weight, with_empty
from .period import period
from .requirements import Requirement
from .waits import Frame, Needs, Synchronization

Modes = Mapping[int, str]
"""What is known of the modes of steps, by their distance from the step of the first op."""


def waits_by_mode(
    frame: Frame,
    needed: Sequence[Requirement],
    found: Synchronization,
    leases: Sequence[Lease],
    costs: Mapping[str, float],
) -> tuple[Wait, ...]:
    """The waits, each only in the modes in which it is needed; every one stays in one at least.

    `leases` hold by waits of all modes alone. By these every op is bounded, too: where it was so
    only by waits that are now left out in some modes, there are waits of a large distance.
    """
    graph = frame.graph
    if graph.told_by is None:
        return found.waits
    asked = _Asked.of(frame, [*needed, *_handed_on(graph, leases)])
    waits = list(found.waits)
    for index, wait in enumerate(waits):
        for told in dict.fromkeys((0, wait.distance)):
            for mode in graph.modes:
                before = waits[index]
                modes = before.modes or tuple(each.name for each in graph.modes)
                fewer = tuple(name for name in modes if name != mode.name)
                waits[index] = replace(wait, modes=fewer, told=told)
                if not fewer or not asked.met_by(waits):
                    waits[index] = before
            if waits[index].modes is not None:
                break
    return (*waits, *_bounding(frame, waits, found, costs))


def _bounding(
    frame: Frame, waits: Sequence[Wait], found: Synchronization, costs: Mapping[str, float]
) -> list[Wait]:
    """What bounds the plan in every mode, at a distance that costs nothing in the period."""
    pairs = unbounded(frame, paths_of_all_modes(frame, waits))
    if not pairs:
        return []
    orders = found.orders(frame)
    distance, free_us = least_bound(found.paths), period(frame.graph, orders, costs).us
    while True:
        tied = [Precedence(first, then, distance, "wait") for first, then in pairs]
        if distance >= MOST or period(frame.graph, [*orders, *tied], costs).us <= free_us:
            return [
                Wait(first, then, distance, (Protected("BOUND", "", first, then),))
                for first, then in pairs
            ]
        distance *= 2


def _handed_on(graph: StepGraph, leases: Sequence[Lease]) -> Iterator[Requirement]:
    """What leases promise, as requirements."""
    steps = {(each.state, each.source, each.target): each.steps for each in leases}
    for move in moves(graph):
        for pair in move.pairs:
            yield replace(pair, distance=steps[move.state, move.source, move.target])


def conditional_notes(graph: StepGraph, waits: Iterable[Wait]) -> list[str]:
    """What is to be said of the waits that do not take place in all modes."""
    return [
        f"wait {wait.source} → {wait.target} (+{wait.distance}) only in mode "
        f"{' or '.join(wait.modes)}: {graph.told_by!r} tells both sides the mode of "
        + ("the same step" if wait.told == 0 else f"step i{wait.told:+d}")
        for wait in waits
        if wait.modes is not None
    ]


def paths_of_all_modes(frame: Frame, waits: Sequence[Wait]) -> Weights:
    """The paths of all that is there in every mode."""
    index, weights = frame.index, frame.weights.copy()
    for wait in waits:
        if wait.modes is None:
            at = index[wait.source], index[wait.target]
            weights[at] = min(weights[at], weight(wait.distance))
    return closure(weights)


@dataclass(frozen=True)
class _Asked:
    """Every order that some modes ask for: (source, target, distance), with these modes."""

    frame: Frame
    orders: tuple[tuple[int, int, int, tuple[Modes, ...]], ...]

    @staticmethod
    def of(frame: Frame, needed: Sequence[Requirement]) -> _Asked:
        needs = Needs.of(frame, needed)
        gates = frame.numbered(needs.gates)
        modes = (tuple(_asking(frame.graph, each)) for each in needs.requirements)
        orders = ((*gate, each) for gate, each in zip(gates, modes, strict=True) if each)
        return _Asked(frame, tuple(orders))

    def met_by(self, waits: Sequence[Wait]) -> bool:
        """Whether these waits order all, in all modes, and their ends know when they take place."""
        always = paths_of_all_modes(self.frame, waits)
        some = [wait for wait in waits if wait.modes is not None]
        if not all(self._is_known(wait, always) for wait in some):
            return False
        steps = with_empty(always) // HOP
        return all(
            steps[source, target] <= distance
            or all(self._reach(steps, source, some, each)[target] <= distance for each in modes)
            for source, target, distance, modes in self.orders
        )

    def _is_known(self, wait: Wait, always: Weights) -> bool:
        """Whether both ends know the mode: device ops by the ops that launch them."""
        graph, index = self.frame.graph, self.frame.index
        writer = index[mode_writer(graph) or ""]
        records, waits = (
            index[graph.vertices[op].launch or op] for op in (wait.source, wait.target)
        )
        told = bool(with_empty(always)[writer, records] // HOP <= -wait.told)
        return told and bool(always[writer, waits] // HOP <= wait.distance - wait.told)

    def _reach(
        self, steps: npt.NDArray[np.int64], source: int, some: Sequence[Wait], known: Modes
    ) -> npt.NDArray[np.int64]:
        """How far each op is from `source`, with the waits that the known modes let take place."""
        index = self.frame.index
        best: npt.NDArray[np.int64] = steps[source].copy()
        left = [
            (index[wait.source], index[wait.target], at - wait.told, wait.distance)
            for wait, (at, mode) in product(some, known.items())
            if wait.modes is not None and mode in wait.modes
        ]
        while ready := [each for each in left if best[each[0]] <= each[2]]:
            left = [each for each in left if each not in ready]
            for _, target, step, distance in ready:
                best = np.minimum(best, steps[target] + step + distance)
        return best


def _asking(graph: StepGraph, needed: Requirement) -> Iterator[Modes]:
    """The modes in which a requirement is there; without any for one that always is."""
    if needed.hazard in ("LAUNCH", "LEASE", "BOUND"):
        yield {}
        return
    source, target = graph.vertices[needed.source], graph.vertices[needed.target]
    reads_only = needed.value in graph.values  # what is written is written in all modes, be it none
    if reads_only and graph.values[needed.value].storage == "fresh":
        yield {}  # a version goes when its last reader is done, whether that has read it or not
        return
    ends = (
        None if reads_only and needed.hazard != "WAR" else source,
        None if reads_only and needed.hazard != "RAW" else target,
    )
    for first, then in product(graph.modes, repeat=2):
        if needed.distance == 0 and first is not then:
            continue
        if all(
            op is None or mode.touches(op, needed.value, graph.told_by)
            for mode, op in zip((first, then), ends, strict=True)
        ):
            yield {0: first.name, needed.distance: then.name}
