"""How many copies each value needs: least period, then fewest waits, then fewest bytes.

The number of slots K enters only through the WAR and WAW distances K − c and K. More slots
never order anything more, so the least period is that of unlimited slots, and a value has
nothing to gain beyond the K at which the rest of the graph implies all its WAR and WAW (modulo
variable expansion, Lam 1988, takes the same number from lifetimes). Between the K that the
period asks for and that one, all choices are compared. Ties go to fewer slots for the
value declared first.

Values with the same accesses share a choice: the smallest K among them sets the waits, so none
gains by having more than another.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .requirements import Requirement, gate, launch_order, value_requirements
from .step_graph import StepGraph
from .trials import Ints, SlotGate, Trials
from .waits import Frame, nearest_gates

LIMIT = 1024  # choices compared exhaustively; beyond it, one value at a time
_BATCH = 256


@dataclass(frozen=True)
class Group:
    """Values with the same accesses, so with the same need for slots."""

    values: tuple[str, ...]
    gates: tuple[SlotGate, ...]
    bytes: int  # of one slot of each


@dataclass(frozen=True)
class SlotChoice:
    """The number of slots of each open value; `exact` unless there were too many choices."""

    slots: Mapping[str, int]
    exact: bool


def choose_slots(
    frame: Frame,
    fixed: Sequence[Requirement],
    values: Sequence[str],
    costs: Mapping[str, float],
) -> SlotChoice:
    """Choose for all `values` together, given the other requirements.

    The fixed requirements must be orderable (`synchronize` raises where they are not).
    """
    groups = _groups(frame, values)
    if not groups:
        return SlotChoice({}, exact=True)
    everything = [*fixed, *launch_order(frame.graph, frame.actors, fixed)]
    gates = frame.numbered([gate(frame.graph, requirement) for requirement in everything])
    trials = Trials.of(frame, nearest_gates(gates), [group.gates for group in groups], costs)
    ranges = _ranges(trials, len(groups))
    exact = math.prod(len(each) for each in ranges) <= LIMIT
    search = _exhaustive if exact else _one_at_a_time
    best = search(trials, groups, ranges)
    chosen = {name: k for group, k in zip(groups, best, strict=True) for name in group.values}
    return SlotChoice({name: chosen[name] for name in values}, exact)


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
    for group in guarded if len(guarded) > 1 else []:
        high[group] = max(high[group], trials.enough(group, high) or 1)
    return [range(a, b + 1) for a, b in zip(low, high, strict=True)]


Choice = tuple[int, ...]


def _exhaustive(trials: Trials, groups: Sequence[Group], ranges: Sequence[range]) -> Choice:
    return _best(trials, groups, list(itertools.product(*ranges)))


def _one_at_a_time(trials: Trials, groups: Sequence[Group], ranges: Sequence[range]) -> Choice:
    """From the most slots, improve one group after another until none improves."""
    best = tuple(each[-1] for each in ranges)
    while True:
        before = best
        for group, each in enumerate(ranges):
            best = _best(trials, groups, [(*best[:group], k, *best[group + 1 :]) for k in each])
        if best == before:
            return best


def _best(trials: Trials, groups: Sequence[Group], choices: Sequence[Choice]) -> Choice:
    """The choice of least (waits, bytes, slots in order of declaration) that keeps the period."""
    ranked: list[tuple[int, int, Choice]] = []
    for start in range(0, len(choices), _BATCH):
        some: Ints = np.array(choices[start : start + _BATCH], dtype=np.int64)
        some = some[trials.possible(some)]
        if len(some) == 0:
            continue
        for choice, waits in zip(some.tolist(), trials.waits(some).tolist(), strict=True):
            size = sum(k * group.bytes for k, group in zip(choice, groups, strict=True))
            ranked.append((waits, size, tuple(choice)))
    assert ranked, "the most slots keep the period"
    return min(ranked)[2]
