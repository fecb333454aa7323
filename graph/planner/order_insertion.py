"""An order of the host threads for a given period, made by inserting one unit after another.

For graphs too large to search (`order_search.py`). Every op has a start time that keeps all delays
at that period (modulo scheduling: Rau 1994). A unit goes where its own time puts it in the
sequence of its thread, and pushes what follows to later times; where that closes a cycle that the
period does not allow, the next place is tried. Nothing is taken back once it is placed, so it may
fail where there is an order. Effort is counted in times looked at, not in seconds.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from fractions import Fraction
from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

from .budget import Budget
from .order_space import Edges, OrderSpace

Ints = npt.NDArray[np.int64]
_TIE = 1 << 40  # durations are told apart before the number of edges that take them


@dataclass
class _Line:
    """The units of a thread in their cyclic order, each with its distance from the first."""

    units: list[int] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)


def inserted(
    space: OrderSpace, period: Fraction, budget: Budget, slack: Fraction = Fraction(0)
) -> Ints | None:
    """The decisions of an order whose (scaled) period is at most `period`, or None.

    `slack` is how many periods later than it must an op may start at first after one of another
    unit, where no cycle goes back: room for units that are inserted later. Raises `Spent` where the
    budget ends first.
    """
    return _Insertion(space, period, budget, slack).run()


class _Insertion:
    def __init__(
        self, space: OrderSpace, period: Fraction, budget: Budget, slack: Fraction
    ) -> None:
        self._space, self._budget = space, budget
        self._unit = period.denominator * _TIE
        self._period = period.numerator * _TIE + space.size  # every edge takes 1 beyond its time
        self._slack = int(slack * self._period)
        self._start = [0] * space.size
        self._after: dict[int, list[tuple[int, int]]] = defaultdict(list)  # (target, least delay)
        self._before: dict[int, list[tuple[int, int]]] = defaultdict(list)  # with slack
        self._added: list[int] = []  # the sources of all edges, to take the last ones back
        index = {name: number for number, name in enumerate(space.graph.vertices)}
        self._first = [index[unit.ops("host")[0]] for unit in space.units]
        self._device = [index[ops[0]] if (ops := u.ops("device")) else None for u in space.units]
        self._duration = space.durations.tolist()

    def run(self) -> Ints | None:
        self._settle()
        for pair in np.flatnonzero(self._space.fixed).tolist():
            if not self._decide(pair, int(self._space.listed[pair])):
                return None
        parts = self._space.units
        lines: dict[str, _Line] = defaultdict(_Line)
        left = list(range(len(parts)))
        while left:
            unit = min(left, key=self._time)
            left.remove(unit)
            if not self._insert(lines[parts[unit].actor], unit):
                return None
        return self._decisions(lines)

    def _settle(self) -> None:
        """The earliest times by what is given in every order, none of whose cycles is too slow."""
        given = self._space.given
        columns = (given.source, given.target, given.distance, given.duration)
        for source, target, away, duration in zip(*(c.tolist() for c in columns), strict=True):
            delay = duration * self._unit + 1 - away * self._period
            self._after[source].append((target, delay))
            self._raise(target, self._start[source] + delay)
            if self._slack and (source, target) in self._space.one_way:
                self._before[target].append((source, delay + self._slack))

    def _time(self, unit: int) -> int:
        return self._start[self._first[unit]]

    def _insert(self, line: _Line, unit: int) -> bool:
        """Place a unit: where its time puts it, else at one of the places after that."""
        self._delay(unit)
        if not line.units:
            line.units.append(unit)
            line.turns.append(0)
            return True
        origin = self._time(line.units[0])
        phase = (self._time(unit) - origin) % self._period
        phases = [
            self._time(other) - origin + turn * self._period
            for other, turn in zip(line.units, line.turns, strict=True)
        ]
        natural = sum(each <= phase for each in phases) - 1
        turn = (phase - (self._time(unit) - origin)) // self._period
        for step in range(len(line.units)):
            wraps, place = divmod(natural + step, len(line.units))
            if self._placed(line, place, unit, turn - wraps):
                return True
        return False

    def _delay(self, unit: int) -> None:
        """Give a unit its slack, and launch no earlier than the device op needs.

        A stream would wait for what was launched too early.
        """
        launch, device = self._first[unit], self._device[unit]
        for op in (launch, launch if device is None else device):
            wanted = [self._start[u] + delay for u, delay in self._before[op]]
            self._raise(op, max(wanted, default=self._start[op]))
        if device is not None:
            needed = sum(self._duration[op] * self._unit + 1 for op in range(launch, device))
            self._raise(launch, self._start[device] - needed)

    def _placed(self, line: _Line, place: int, unit: int, turn: int) -> bool:
        """Put a unit after the one at `place`, if the period allows; else leave all as it was."""
        before, following = line.units[place], (place + 1) % len(line.units)
        after, wraps = line.units[following], int(following == 0)
        start, added = self._start.copy(), len(self._added)
        onward = line.turns[following] + wraps - turn
        if self._order(before, unit, turn - line.turns[place]) and self._order(unit, after, onward):
            line.units.insert(place + 1, unit)
            line.turns.insert(place + 1, turn)
            return True
        self._start = start
        while len(self._added) > added:
            self._after[self._added.pop()].pop()
        return False

    def _order(self, u: int, v: int, distance: int) -> bool:
        """u of step i before v of step i + distance; False, and no edge, if that cannot be."""
        if u == v:
            return True
        edges = self._space.forward if u < v else self._space.backward
        return self._add_all(edges, int(self._space.pair_of[u, v]), distance)

    def _decide(self, pair: int, m: int) -> bool:
        return self._add_all(self._space.forward, pair, m) and self._add_all(
            self._space.backward, pair, 1 - m
        )

    def _add_all(self, edges: Edges, pair: int, distance: int) -> bool:
        first, last = np.searchsorted(edges.pair, (pair, pair + 1)).tolist()
        return all(self._add(edges, row, distance) for row in range(first, last))

    def _add(self, edges: Edges, row: int, distance: int) -> bool:
        """One more edge, and the later times that it asks for; False if it closes a cycle."""
        source, target = int(edges.source[row]), int(edges.target[row])
        away = int(edges.distance[row]) + distance
        delay = int(edges.duration[row]) * self._unit + 1 - away * self._period
        if source == target:
            return delay <= 0
        if not self._raise(target, self._start[source] + delay, never=source):
            return False
        self._after[source].append((target, delay))
        self._added.append(source)
        return True

    def _raise(self, op: int, time: int, never: int = -1) -> bool:
        """Start an op at `time` at the earliest, and what follows it accordingly; False if that
        would move `never`, the cause.

        What moves farthest comes first: then each op is moved once, as in Dijkstra's search.
        """
        start = self._start
        if time <= start[op]:
            return True
        count, moved = 0, [(start[op] - time, time, op)]
        while moved:
            _, at, here = heappop(moved)
            if at <= start[here]:
                continue
            start[here] = at
            count += 1
            for target, delay in self._after[here]:
                if (then := at + delay) > start[target]:
                    if target == never:
                        self._budget.take(count)
                        return False
                    heappush(moved, (start[target] - then, then, target))
        self._budget.take(count)
        return True

    def _decisions(self, lines: dict[str, _Line]) -> Ints:
        """The m of every pair of units of a thread."""
        rank, turn = np.zeros((2, len(self._space.units)), dtype=np.int64)
        for line in lines.values():
            rank[line.units], turn[line.units] = np.arange(len(line.units)), line.turns
        u, v = self._space.pairs.T
        chosen: Ints = turn[v] - turn[u] + (rank[u] > rank[v])
        return chosen
