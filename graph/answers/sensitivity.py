"""Which op to make faster: how the period of a plan follows the duration of each op.

The period is the largest of (Σ duration / Σ distance) over the cycles, so as a function of one op's
duration it is the upper envelope of straight lines: convex, piecewise linear. Its pieces are
found exactly, in integers, by meeting lines (Eisner and Severance 1976, "Mathematical techniques
for efficient record segmentation in large shared databases"): where the lines of two durations
meet, either no cycle is above, and that is a corner, or the one that is splits the interval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import ceil
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .. import arguments
from ..plan import Placed, Plan
from ..planner.events import plan_edges
from ..planner.period import Delay, Scaled, delays, slowest_cycle


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """How the period of one plan answers to the duration of one op.

    `faster` and `slower` are the derivatives of the period (µs per µs) towards a shorter and a
    longer duration; they differ where several cycles take as long. `until_us` is how much shorter
    the op can get before another cycle binds, which is `next_cycle` (None: none does). `slack_us`
    is how much longer it can get before the period grows. `free_us` is the period if it took no
    time at all.
    """

    op: str
    cost_us: float
    period_us: float
    faster: float
    slower: float
    until_us: float | None
    next_cycle: tuple[Placed, ...] | None
    slack_us: float
    free_us: float

    @property
    def share(self) -> float:
        """By how many percent the period falls if the op gets 1 % faster."""
        return self.faster * self.cost_us / self.period_us if self.period_us else 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            "op": self.op,
            "cost_us": self.cost_us,
            "faster": self.faster,
            "slower": self.slower,
            "share": self.share,
            "until_us": self.until_us,
            "next_cycle": None if self.next_cycle is None else [list(p) for p in self.next_cycle],
            "slack_us": self.slack_us,
            "free_us": self.free_us,
        }


def sensitivities(plan: Plan) -> tuple[Sensitivity, ...]:
    """Every op of the plan, its orders and waits kept: what pays most first, then least slack.

    Raises `GraphError` if `plan` is not a plan.
    """
    arguments.a("sensitivities", "plan", plan, Plan, arguments.A_PLAN)
    found = [_sensitivity(plan, op) for op in plan.graph.vertices]
    return tuple(sorted(found, key=lambda each: (-each.share, each.slack_us)))


class _Line(NamedTuple):
    """The ratio of one cycle for a duration x of the op: (fixed + uses · x) / steps."""

    fixed: int
    uses: int
    steps: int
    edges: tuple[int, ...]

    def at(self, x: Fraction) -> Fraction:
        return (self.fixed + self.uses * x) / self.steps

    @property
    def slope(self) -> Fraction:
        return Fraction(self.uses, self.steps)


class _Piece(NamedTuple):
    start: Fraction
    end: Fraction
    line: _Line


@dataclass(frozen=True)
class _Answer:
    """The period of a plan as a function of one op's duration, in units of 1 / scale µs."""

    plan: Plan
    op: str

    @cached_property
    def found(self) -> list[Delay]:
        return delays(self.plan.graph, plan_edges(self.plan), self.plan.costs)

    @cached_property
    def index(self) -> Mapping[str, int]:
        return {name: number for number, name in enumerate(self.plan.graph.vertices)}

    @cached_property
    def scaled(self) -> Scaled:
        return Scaled.of(self.index, self.found)

    @cached_property
    def uses(self) -> npt.NDArray[np.int64]:
        """1 for the delays that are the op's own duration."""
        other = {**self.plan.costs, self.op: self.plan.costs[self.op] + 1.0}
        changed = delays(self.plan.graph, plan_edges(self.plan), other)
        pairs = zip(self.found, changed, strict=True)
        return np.array([was.delay_us != now.delay_us for was, now in pairs], dtype=np.int64)

    @cached_property
    def here(self) -> Fraction:
        """The duration that the op has."""
        return Fraction(int((self.scaled.duration * self.uses).max()))

    @cached_property
    def fixed(self) -> npt.NDArray[np.int64]:
        rest: npt.NDArray[np.int64] = self.scaled.duration * (1 - self.uses)
        return rest

    def line(self, x: Fraction) -> _Line:
        """The line of a cycle that sets the period at duration x."""
        durations = self.fixed * x.denominator + self.uses * x.numerator
        base = self.scaled
        at = Scaled(base.size, base.source, base.target, base.distance, durations, base.scale)
        chosen = list(slowest_cycle(at).edges)
        sums = (int(column[chosen].sum()) for column in (self.fixed, self.uses, base.distance))
        fixed, uses, steps = sums
        return _Line(fixed, uses, steps, tuple(chosen))

    def pieces(self, start: Fraction, end: Fraction) -> list[_Piece]:
        return _pieces(self, start, self.line(start), end, self.line(end))

    def cycle(self, line: _Line) -> tuple[Placed, ...]:
        """The cycle of a line, as (op, distance to the next) from the earliest listed op."""
        placed: list[Placed] = []
        for delay in (self.found[edge] for edge in line.edges):
            via = [] if delay.via is None else [(delay.via, delay.distance)]
            placed += [(delay.source, 0 if via else delay.distance), *via]
        first = min(range(len(placed)), key=lambda k: self.index[placed[k][0]])
        return tuple(placed[first:] + placed[:first])


def _pieces(
    answer: _Answer, start: Fraction, left: _Line, end: Fraction, right: _Line
) -> list[_Piece]:
    """The straight pieces from `start` to `end`, whose lines are known at both."""
    if start == end or left.at(end) == right.at(end):
        return [_Piece(start, end, left)]
    if right.at(start) == left.at(start):
        return [_Piece(start, end, right)]
    gap = right.at(start) - left.at(start)
    meet = start + gap / (left.slope - right.slope)
    above = answer.line(meet)
    if above.at(meet) == left.at(meet):
        return [_Piece(start, meet, left), _Piece(meet, end, right)]
    return [
        *_pieces(answer, start, left, meet, above),
        *_pieces(answer, meet, above, end, right),
    ]


def _sensitivity(plan: Plan, op: str) -> Sensitivity:
    answer = _Answer(plan, op)
    scale, here = answer.scaled.scale, answer.here
    below = _joined(answer.pieces(Fraction(0), here))
    period = below[-1].line.at(here)
    above = _joined(answer.pieces(here, here + ceil(period) + 1))  # its own actor binds by then
    lower, upper = below[-1].line, above[0].line
    corner = below[-1].start if len(below) > 1 and lower.slope else None
    return Sensitivity(
        op,
        plan.costs[op],
        plan.period_us,
        float(lower.slope),
        float(upper.slope),
        None if corner is None else float((here - corner) / scale),
        None if corner is None else answer.cycle(below[-2].line),
        0.0 if upper.slope else float((above[0].end - here) / scale),
        float(below[0].line.at(Fraction(0)) / scale),
    )


def _joined(pieces: Sequence[_Piece]) -> list[_Piece]:
    """Pieces of one slope in one, and none of no length (but one at least)."""
    found: list[_Piece] = []
    for piece in pieces:
        if found and piece.start == piece.end:
            continue
        if found and (found[-1].line.slope == piece.line.slope or found[-1].start == found[-1].end):
            before = found.pop()
            line = piece.line if before.start == before.end else before.line
            piece = _Piece(before.start, piece.end, line)
        found.append(piece)
    return found
