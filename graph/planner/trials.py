"""Comparing many slot choices at once: can it be ordered, at the least period, with how many waits?

A choice of slots adds some orders to a graph that is otherwise the same. The answers need only
shortest paths, so a batch of choices is one stack of matrices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .budget import CALL
from .events import Precedence
from .paths import FAR, HOP, Weights, closure, closure_cells, ordered, reachable, weight, with_empty
from .period import Scaled, delays, largest_ratio
from .waits import Frame

Ints = npt.NDArray[np.int64]
Positions = npt.NDArray[np.intp]
UNLIMITED = 0  # in a choice: this group has as many slots as it likes


class SlotGate(NamedTuple):
    """An order needed at distance K + `distance`, and the delay it brings (scaled)."""

    source: int
    target: int
    distance: int


@dataclass(frozen=True)
class Trials:
    """A frame with its fixed requirements, to which slot choices are added.

    Every op's duration is an integer; `slack` is ratio · distance − duration for each edge, so
    a graph keeps the period if no cycle of its slack is negative.
    """

    free: Weights
    free_paths: Weights
    fixed: Weights
    gates: tuple[tuple[SlotGate, ...], ...]  # for each group
    slack: Weights
    delays: tuple[tuple[tuple[int, int, int, int], ...], ...]  # for each group
    ratio: Fraction

    @staticmethod
    def of(
        frame: Frame,
        fixed: Sequence[tuple[int, int, int]],
        gates: Sequence[Sequence[SlotGate]],
        costs: Mapping[str, float],
    ) -> Trials:
        """Set up the comparison; finds the least period, that of unlimited slots."""
        names = list(frame.index)
        wanted = np.full_like(frame.weights, FAR)
        for source, target, distance in fixed:
            wanted[source, target] = min(wanted[source, target], weight(distance))
        events = [Precedence(names[u], names[v], d, "wait") for u, v, d in fixed if u != v]
        found = delays(frame.graph, [*frame.free, *events], costs)
        scaled = Scaled.of(frame.index, found)
        ratio = max(largest_ratio(scaled), Fraction(0))
        needed = [
            [Precedence(names[u], names[v], d, "wait") for u, v, d in group] for group in gates
        ]
        return Trials(
            free=frame.weights,
            free_paths=np.where(reachable(frame.paths), frame.paths, FAR),
            fixed=wanted,
            gates=tuple(tuple(group) for group in gates),
            slack=_slack(scaled, ratio),
            delays=tuple(
                tuple(
                    (
                        frame.index[d.source],
                        frame.index[d.target],
                        d.distance,
                        round(Fraction(d.delay_us) * scaled.scale),
                    )
                    for d in delays(frame.graph, group, costs)
                )
                for group in needed
            ),
            ratio=ratio,
        )

    def orders(self, choices: Ints) -> tuple[Weights, npt.NDArray[np.bool_]]:
        """Free edges and candidate waits of each choice, and where the candidates are."""
        wanted = np.repeat(self.fixed[None], len(choices), axis=0)
        for group, gates in enumerate(self.gates):
            slots = choices[:, group]
            for source, target, distance in gates:
                needed = np.where(slots == UNLIMITED, FAR, (slots + distance) * HOP + 1)
                np.minimum(wanted[:, source, target], needed, out=wanted[:, source, target])
        candidate = wanted // HOP < self.free_paths // HOP
        return np.where(candidate, wanted, self.free), candidate

    def possible(self, choices: Ints) -> npt.NDArray[np.bool_]:
        """Which choices can be ordered at the least period."""
        keeps = np.repeat(self.slack[None], len(choices), axis=0)
        p, q = self.ratio.numerator, self.ratio.denominator
        for group, found in enumerate(self.delays):
            slots = choices[:, group]
            for source, target, distance, duration in found:
                slack = np.where(slots == UNLIMITED, FAR, (slots + distance) * p - duration * q)
                np.minimum(keeps[:, source, target], slack, out=keeps[:, source, target])
        worst = np.diagonal(closure(keeps), axis1=-2, axis2=-1).min(axis=-1)
        result: npt.NDArray[np.bool_] = (worst >= 0) & ordered(closure(self.orders(choices)[0]))
        return result

    def waits(self, choices: Ints) -> Ints:
        """The number of waits of each choice (of those that can be ordered)."""
        orders, candidate = self.orders(choices)
        source, target = np.nonzero(candidate.any(axis=0))
        around = _around(orders, with_empty(closure(orders)), source, target)
        here = orders[:, source, target]
        kept = candidate[:, source, target] & (around // HOP > here // HOP)
        result: Ints = kept.sum(axis=-1)
        return result

    def certain(self, low: Sequence[int], high: Sequence[int]) -> int:
        """A lower bound of the waits of any choice between two: what even the most orders need.

        Few slots order most, so a wait that many slots need and that nothing goes around where
        slots are few is a wait of every choice between.
        """
        ends = np.array([low, high], dtype=np.int64)
        orders, candidate = self.orders(ends)
        paths = closure(orders[0])
        if not ordered(paths):
            return 0
        source, target = np.nonzero(candidate[1])
        around = _around(orders[:1], with_empty(paths)[None], source, target)[0]
        return int((around // HOP > orders[1, source, target] // HOP).sum())

    @property
    def size(self) -> int:
        return len(self.free)

    @cached_property
    def cells(self) -> int:
        """What comparing one choice costs: three closures, and setting its gates."""
        gates = sum(len(group) for group in self.gates)
        return 3 * closure_cells(self.fixed) + CALL * gates // 8

    def least(self, group: int) -> int:
        """A lower bound of the slots of a group: what each of its orders asks for alone."""
        reach, back = self._reach, self._slack_reach
        bound = 1
        for source, target, distance in self.gates[group]:
            if reach[target, source] < FAR // 2:
                bound = max(bound, 1 - distance - int(reach[target, source]) // HOP)
        for source, target, distance, duration in self.delays[group]:
            if back[target, source] < FAR // 2 and self.ratio > 0:
                lacking = duration * self.ratio.denominator - int(back[target, source])
                bound = max(bound, -(-lacking // self.ratio.numerator) - distance)
        return bound

    def enough(self, group: int, choice: Sequence[int] = ()) -> int | None:
        """The slots at which the rest of the graph implies all that the group needs, or None."""
        paths = self._rest
        if choice:
            others = np.array([choice], dtype=np.int64)
            others[0, group] = UNLIMITED
            paths = closure(self.orders(others)[0])[0]
        if any(paths[u, v] >= FAR // 2 for u, v, _ in self.gates[group]):
            return None
        return max([1, *(int(paths[u, v]) // HOP - d for u, v, d in self.gates[group])])

    @cached_property
    def _rest(self) -> Weights:
        """Paths over what is ordered whatever the slots."""
        unlimited = np.full((1, len(self.gates)), UNLIMITED, dtype=np.int64)
        paths: Weights = closure(self.orders(unlimited)[0])[0]
        return paths

    @cached_property
    def _reach(self) -> Weights:
        return with_empty(self._rest)

    @cached_property
    def _slack_reach(self) -> Weights:
        return with_empty(closure(self.slack))


def _around(orders: Weights, reach: Weights, source: Positions, target: Positions) -> Weights:
    """The nearest way between each two ops that does not begin with the edge between them."""
    first = orders[:, source, :]
    first[:, np.arange(len(source)), target] = FAR
    around: Weights = (first + reach[:, :, target].transpose(0, 2, 1)).min(axis=-1, initial=FAR)
    return around


def _slack(scaled: Scaled, ratio: Fraction) -> Weights:
    slack = np.full((scaled.size, scaled.size), FAR, dtype=np.int64)
    edges = scaled.distance * ratio.numerator - scaled.duration * ratio.denominator
    np.minimum.at(slack, (scaled.source, scaled.target), edges)
    return slack
