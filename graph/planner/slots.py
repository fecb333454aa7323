"""How many copies each value needs: least period, then fewest waits, then fewest bytes.

The number of slots K enters only through the WAR and WAW distances K − c and K. More slots
never order anything more, so the least period is that of unlimited slots, and a value has
nothing to gain beyond the K at which the rest of the graph implies all its WAR and WAW (modulo
variable expansion, Lam 1988, takes the same number from lifetimes). Between the K that the
period asks for and that one, all choices are compared, smallest first, until one has no more waits
than every choice must have. Ties go to fewer slots for the value declared first.

Where that would take too long, values are compared one at a time; and in the largest graphs each
gets the K beyond which it has nothing to gain. How far to go is decided by the number of cells of
matrices, not by a clock.

Values with the same accesses share a choice: the smallest K among them sets the waits, so none
gains by having more than another.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..step_graph import StepGraph
from .budget import Budget
from .requirements import Requirement, gate, launch_order, value_requirements
from .trials import Ints, SlotGate, Trials
from .waits import Frame, nearest_gates

LIMIT = 1024  # choices compared exhaustively
CELLS = 100_000_000  # of matrices, for one comparison: half a second
_BATCH = 256  # choices at once, at most
_BATCH_CELLS = 1 << 20

Compared = Literal["all", "one at a time", "none"]


@dataclass(frozen=True)
class Group:
    """Values with the same accesses, so with the same need for slots."""

    values: tuple[str, ...]
    gates: tuple[SlotGate, ...]
    bytes: int  # of one slot of each


@dataclass(frozen=True)
class SlotChoice:
    """The number of slots of each open value, and which choices were compared to find it."""

    slots: Mapping[str, int]
    compared: Compared


def choose_slots(
    frame: Frame,
    fixed: Sequence[Requirement],
    values: Sequence[str],
    costs: Mapping[str, float],
    budget: Budget,
) -> SlotChoice:
    """Choose for all `values` together, given the other requirements.

    The fixed requirements must be orderable (`synchronize` raises where they are not). Raises
    `Spent` if it takes more cells than the budget has.
    """
    groups = _groups(frame, values)
    if not groups:
        return SlotChoice({}, "all")
    everything = [*fixed, *launch_order(frame.graph, frame.actors, fixed)]
    gates = frame.numbered([gate(frame.graph, requirement) for requirement in everything])
    trials = Trials.of(frame, nearest_gates(gates), [group.gates for group in groups], costs)
    search = _Search(trials, groups, budget)
    best, compared = search.best(_ranges(trials, len(groups)))
    chosen = {name: k for group, k in zip(groups, best, strict=True) for name in group.values}
    return SlotChoice({name: chosen[name] for name in values}, compared)


def _groups(frame: Frame, values: Sequence[str]) -> list[Group]:
    alike: dict[tuple[SlotGate, ...], list[str]] = {}
    for value in values:
        alike.setdefault(_slot_gates(frame, value), []).append(value)
    declared = frame.graph.values
    return [
        Group(tuple(names), gates, sum(declared[name].nbytes or 1 for name in names))
        for gates, names in alike.items()
    ]


def _slot_gates(frame: Frame, value: str) -> tuple[SlotGate, ...]:
    """The orders that K slots need, as distances beyond K, launch order included."""
    graph, nearest = frame.graph, dict[tuple[str, str], int]()
    for needed in value_requirements(graph, value, 0):
        if needed.hazard == "RAW":
            continue
        orders = [gate(graph, needed)]
        orders += [gate(graph, each) for each in _launches(graph, needed)]
        for source, target, distance in orders:
            pair = (source, target)
            nearest[pair] = min(distance, nearest.get(pair, distance))
    return tuple(
        SlotGate(frame.index[u], frame.index[v], d) for (u, v), d in sorted(nearest.items())
    )


def _launches(graph: StepGraph, needed: Requirement) -> list[Requirement]:
    first, then = graph.vertices[needed.source].launch, graph.vertices[needed.target].launch
    if first is None or then is None or first == then:
        return []
    return [Requirement(first, then, needed.distance, "LAUNCH")]


def _ranges(trials: Trials, groups: int) -> list[range]:
    """The numbers of slots worth comparing, for each group.

    Where nothing ever implies a WAR, a guarding wait is due at any K; then the range ends
    where the period is reached, or where the guards of the others imply it.
    """
    low = [trials.least(group) for group in range(groups)]
    implied = [trials.enough(group) for group in range(groups)]
    high = [max(k, known or 1) for k, known in zip(low, implied, strict=True)]
    guarded = [group for group in range(groups) if implied[group] is None]
    while guarded and not trials.possible(np.array([high], dtype=np.int64))[0]:
        for group in guarded:
            high[group] += 1
    few = 1 < len(guarded) <= CELLS // trials.cells
    for group in guarded if few else []:
        high[group] = max(high[group], trials.enough(group, high) or 1)
    return [range(a, b + 1) for a, b in zip(low, high, strict=True)]


Choice = tuple[int, ...]


@dataclass(frozen=True)
class _Search:
    """The choice of least (waits, bytes, slots in order of declaration) that keeps the period."""

    trials: Trials
    groups: Sequence[Group]
    budget: Budget

    def best(self, ranges: Sequence[range]) -> tuple[Choice, Compared]:
        low, high = (tuple(each[end] for each in ranges) for end in (0, -1))
        some = sum(len(each) for each in ranges if len(each) > 1)
        every = math.prod(len(each) for each in ranges)
        if every == 1:
            return high, "all"
        if every <= LIMIT and every * self.trials.cells <= CELLS:
            fewest = self.trials.certain(low, high)
            return self._least(itertools.product(*ranges), fewest), "all"
        rounds = CELLS // (some * self.trials.cells)
        if rounds == 0:
            return high, "none"
        return self._one_at_a_time(ranges, rounds), "one at a time"

    def _one_at_a_time(self, ranges: Sequence[range], rounds: int) -> Choice:
        """From the most slots, improve one group after another until none improves."""
        best = tuple(each[-1] for each in ranges)
        for _ in range(rounds):
            before = best
            for group, each in enumerate(ranges):
                if len(each) > 1:
                    best = self._least((*best[:group], k, *best[group + 1 :]) for k in each)
            if best == before:
                break
        return best

    def _least(self, choices: Iterable[Choice], fewest: int = 0) -> Choice:
        """The best of these; `fewest` is a number of waits that none of them can go below."""
        ranked = sorted((self._bytes(choice), choice) for choice in choices)
        best: tuple[int, int, Choice] | None = None
        most, start = max(1, min(_BATCH, _BATCH_CELLS // self.trials.size**2)), 0
        for count in itertools.chain((8, 64), itertools.repeat(_BATCH)):
            batch = ranked[start : start + min(count, most)]
            if not batch or (best is not None and best[0] <= fewest):
                break
            start += len(batch)
            self.budget.compute(len(batch) * self.trials.cells)
            some: Ints = np.array([choice for _, choice in batch], dtype=np.int64)
            possible = np.flatnonzero(self.trials.possible(some))
            if len(possible):
                waits = self.trials.waits(some[possible]).tolist()
                found = ((w, *batch[k]) for w, k in zip(waits, possible.tolist(), strict=True))
                best = min(found if best is None else (best, *found))
        assert best is not None, "the most slots keep the period"
        return best[2]

    def _bytes(self, choice: Choice) -> int:
        return sum(k * group.bytes for k, group in zip(choice, self.groups, strict=True))
