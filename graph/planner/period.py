"""The period of a plan, and the cycle that sets it.

With a duration for each op, the time per step in steady state is the maximum over the cycles of
Σ duration / Σ distance (Reiter 1968; Dasdan 2004 compares the algorithms). An actor's program
is a cycle too, so one number covers dependences and busy actors. The cycle that attains it
*is* the explanation: make one of its ops faster, or raise one of its distances.

Found by Newton's iteration on the ratio: while some cycle beats it, take that cycle's ratio. In a
large graph each cycle may beat the last by little; after some of them policy iteration names a
better one (`policy_iteration.py`). All of it in integers, so the result is exact and the same on
every machine. networkx has no such routine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import count
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..plan import Placed
from ..step_graph import StepGraph
from .events import Precedence
from .policy_iteration import Arcs, policy_cycle

HOST_US = 10.0  # what an op takes where neither a profile nor the declaration says
DEVICE_US = 100.0

_LARGEST = 1 << 36  # of a scaled duration: leaves room for sums of ratios in 64 bits
_TURNS = 12  # of Newton's iteration, before policy iteration is asked
_LARGE = 100  # vertices from which on it is asked first, where only the ratio matters


def op_costs(graph: StepGraph, costs: Mapping[str, float] | None = None) -> dict[str, float]:
    """The duration of every op in µs: the profile's, else the declared, else a default."""
    named = costs or {}
    return {name: float(named.get(name, _declared(graph, name))) for name in graph.vertices}


def _declared(graph: StepGraph, name: str) -> float:
    vertex = graph.vertices[name]
    if vertex.op.cost_us is not None:
        return vertex.op.cost_us
    return HOST_US if vertex.side == "host" else DEVICE_US


class Delay(NamedTuple):
    """`target` of step i + distance starts at least `delay_us` after `source` of step i starts.

    `via` is the op through whose end the delay runs, where that is not the source.
    """

    source: str
    target: str
    distance: int
    delay_us: float
    via: str | None = None


def delays(
    graph: StepGraph, events: Iterable[Precedence], costs: Mapping[str, float]
) -> list[Delay]:
    """Each edge of the event graph as a delay between the starts of two ops.

    A launch edge with `launch_latency_us` lets the device op start that long after its launch
    began; in exchange no device op of the node can end before its launch does, so whatever
    follows one of them also follows the launch, as happens-before says it must.
    """
    vertices = graph.vertices
    found = []
    for source, target, distance, kind in events:
        latency = vertices[source].node.launch_latency_us
        delay = costs[source] if latency is None or kind != "launch" else latency
        found.append(Delay(source, target, distance, delay))
        launch = vertices[source].launch
        if latency is not None and launch is not None:
            found.append(Delay(launch, target, distance, costs[launch], via=source))
    return found


@dataclass(frozen=True)
class Scaled:
    """Delays as integer arrays: `duration / scale` is in µs."""

    size: int
    source: npt.NDArray[np.int64]
    target: npt.NDArray[np.int64]
    distance: npt.NDArray[np.int64]
    duration: npt.NDArray[np.int64]
    scale: int

    @staticmethod
    def of(index: Mapping[str, int], found: Sequence[Delay]) -> Scaled:
        """Exact where the durations allow (whole µs do), else to 36 significant bits."""
        scale = _scale({delay.delay_us for delay in found})
        whole = {us: round(Fraction(us) * scale) for us in {delay.delay_us for delay in found}}
        columns = [(index[d.source], index[d.target], d.distance, whole[d.delay_us]) for d in found]
        table = np.array(columns, dtype=np.int64).reshape(len(columns), 4).T
        return Scaled(len(index), table[0], table[1], table[2], table[3], scale)

    @property
    def arcs(self) -> Arcs:
        return Arcs(self.size, self.source, self.target, self.distance, self.duration)

    def gain(self, ratio: Fraction) -> npt.NDArray[np.int64]:
        """duration − ratio · distance of each edge, times the denominator."""
        return self.duration * ratio.denominator - self.distance * ratio.numerator


def _scale(durations: Iterable[float]) -> int:
    exact = [Fraction(duration) for duration in durations]
    largest = max(exact, default=Fraction(0))
    scale = max((duration.denominator for duration in exact), default=1)  # a power of two
    while scale > 1 and largest * scale > _LARGEST:
        scale //= 2
    return scale


class Cycle(NamedTuple):
    """A cycle of the event graph: its edges by number, and Σ duration / Σ distance (scaled)."""

    edges: tuple[int, ...]
    ratio: Fraction


def slowest_cycle(scaled: Scaled, first: Sequence[Sequence[int]] = ()) -> Cycle:
    """The cycle of the largest ratio. Among equals, the earliest of `first` that attains it."""
    best = Cycle((), Fraction(-1))
    for edges in first:
        best = max(best, _cycle(scaled, edges), key=lambda cycle: cycle.ratio)
    for turn in count():
        if turn == _TURNS:
            jump = _cycle(scaled, policy_cycle(scaled.arcs) or best.edges)
            best = max(best, jump, key=lambda cycle: cycle.ratio)
        vertices = _gaining(scaled, scaled.gain(best.ratio))
        if vertices is None:
            break
        better = _cycle(scaled, _edges_along(scaled, vertices, best.ratio))
        assert better.ratio > best.ratio, "a cycle of positive gain has a larger ratio"
        best = better
    return best


def largest_ratio(scaled: Scaled) -> Fraction:
    """That of the slowest cycle, whichever it is; below 0 where there is none."""
    known = policy_cycle(scaled.arcs) if scaled.size > _LARGE else None
    return slowest_cycle(scaled, [known] if known else []).ratio


def _cycle(scaled: Scaled, edges: Sequence[int]) -> Cycle:
    chosen = list(edges)
    total = int(scaled.duration[chosen].sum())
    return Cycle(tuple(chosen), Fraction(total, int(scaled.distance[chosen].sum())))


def _gaining(scaled: Scaled, gain: npt.NDArray[np.int64]) -> list[int] | None:
    """The vertices of a cycle of positive gain, in order (Bellman–Ford), or None."""
    size = scaled.size
    if not len(gain):
        return None
    by_target = np.lexsort((scaled.source, scaled.target))
    source, target, gain = scaled.source[by_target], scaled.target[by_target], gain[by_target]
    starts = np.flatnonzero(np.r_[True, target[1:] != target[:-1]])
    heads, run = target[starts], np.cumsum(np.r_[False, target[1:] != target[:-1]])
    height = np.zeros(size, dtype=np.int64)
    before = np.zeros(size, dtype=np.int64)
    for _ in range(size + 1):
        reach = height[source] + gain
        best = np.maximum.reduceat(reach, starts)
        risen = best > height[heads]
        if not risen.any():
            return None
        attains = np.flatnonzero((reach == best[run]) & risen[run])
        first = attains[np.diff(run[attains], prepend=-1) > 0]  # of the earliest op
        before[heads[risen]] = source[first]
        height[heads[risen]] = best[risen]
    here = int(heads[np.flatnonzero(risen)].min())
    for _ in range(size):
        here = int(before[here])
    cycle = [here]
    while (back := int(before[cycle[-1]])) != here:
        cycle.append(back)
    return cycle[::-1]


def _edges_along(scaled: Scaled, cycle: Sequence[int], ratio: Fraction) -> list[int]:
    gain = scaled.gain(ratio)
    edges = []
    for u, v in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
        parallel = np.flatnonzero((scaled.source == u) & (scaled.target == v))
        edges.append(int(parallel[gain[parallel].argmax()]))
    return edges


@dataclass(frozen=True)
class Period:
    """Time per step in steady state, and the cycle that sets it."""

    us: float
    critical: tuple[Placed, ...]  # (op, distance to the next)


def period(graph: StepGraph, events: Sequence[Precedence], costs: Mapping[str, float]) -> Period:
    """The maximum cycle ratio of an event graph whose cycles all have a positive distance."""
    index = {name: number for number, name in enumerate(graph.vertices)}
    found = delays(graph, events, costs)
    scaled = Scaled.of(index, found)
    cycle = slowest_cycle(scaled, _program_cycles(graph, found))
    chosen = [found[edge] for edge in cycle.edges]
    steps = sum(delay.distance for delay in chosen)
    exact = sum(Fraction(delay.delay_us) for delay in chosen) / steps
    return Period(float(exact), _placed(index, chosen))


def _program_cycles(graph: StepGraph, found: Sequence[Delay]) -> list[list[int]]:
    """The cycle of each actor's own program: what the period is if nobody ever waits.

    Streams first: if a host thread is as busy as the device, the device is what one bought.
    """
    by_actor: dict[str, list[int]] = {}
    for number, delay in enumerate(found):
        source, target = graph.vertices[delay.source], graph.vertices[delay.target]
        if delay.via is None and source.actor == target.actor:
            by_actor.setdefault(source.actor, []).append(number)
    sides = {vertex.actor: vertex.side for vertex in graph.vertices.values()}
    counted = sorted(by_actor.items(), key=lambda item: sides[item[0]] == "host")
    return [numbers for _, numbers in counted]


def _placed(index: Mapping[str, int], cycle: Sequence[Delay]) -> tuple[Placed, ...]:
    """(op, distance to the next), from the earliest listed op; a `via` op is a stop of its own."""
    placed: list[Placed] = []
    for delay in cycle:
        if delay.via is None:
            placed.append((delay.source, delay.distance))
        else:
            placed += [(delay.source, 0), (delay.via, delay.distance)]
    start = min(range(len(placed)), key=lambda k: index[placed[k][0]])
    return tuple(placed[start:] + placed[:start])
