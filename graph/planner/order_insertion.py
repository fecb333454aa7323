"""An order of the host threads for a given period, made by inserting one node after another.

For graphs too large to search (`order_search.py`). Every op has a start time that keeps all delays
at that period (modulo scheduling: Rau 1994). A node goes where its own time puts it in the
sequence of its thread, and pushes what follows to later times; where that closes a cycle that the
period does not allow, the next place is tried. Nothing is taken back once it is placed, so it may
fail where there is an order. Effort is counted in times looked at, not in seconds.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from .budget import Budget
from .order_space import Edges, OrderSpace

Ints = npt.NDArray[np.int64]
_TIE = 1 << 40  # durations are told apart before the number of edges that take them


@dataclass
class _Line:
    """The nodes of a thread in their cyclic order, each with its distance from the first."""

    nodes: list[int] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)


def inserted(
    space: OrderSpace, period: Fraction, budget: Budget, slack: Fraction = Fraction(0)
) -> Ints | None:
    """The decisions of an order whose (scaled) period is at most `period`, or None.

    `slack` is how many periods later than it must an op may start at first after one of another
    node, where no cycle goes back: room for nodes that are inserted later. Raises `Spent` where the
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
        number = {node.name: number for number, node in enumerate(space.graph.nodes)}
        self._pair = {
            (number[u.name], number[v.name]): pair for pair, (u, v) in enumerate(space.pairs)
        }
        index = {name: number for number, name in enumerate(space.graph.vertices)}
        nodes = space.graph.nodes
        self._first = [index[node.op_names("host")[0]] for node in nodes]
        self._device = [index[n.op_names("device")[0]] if n.device else None for n in nodes]
        self._duration = space.durations.tolist()

    def run(self) -> Ints | None:
        self._settle()
        for pair in np.flatnonzero(self._space.fixed).tolist():
            if not self._decide(pair, int(self._space.listed[pair])):
                return None
        nodes = self._space.graph.nodes
        lines: dict[str, _Line] = defaultdict(_Line)
        left = list(range(len(nodes)))
        while left:
            node = min(left, key=self._time)
            left.remove(node)
            if not self._insert(lines[nodes[node].actor], node):
                return None
        return self._decisions(lines)

    def _settle(self) -> None:
        """The earliest times by what is given in every order, none of whose cycles is too slow."""
        given = self._space.given
        columns = (given.source, given.target, given.distance, given.duration)
        for source, target, away, duration in zip(*(c.tolist() for c in columns), strict=True):
            delay = duration * self._unit + 1 - away * self._period
            self._after[source].append((target, delay))
            if self._slack and (source, target) in self._space.one_way:
                self._before[target].append((source, delay + self._slack))
        self._push(deque(range(self._space.size)))

    def _time(self, node: int) -> int:
        return self._start[self._first[node]]

    def _insert(self, line: _Line, node: int) -> bool:
        """Place a node: where its time puts it, else at one of the places after that."""
        self._delay(node)
        if not line.nodes:
            line.nodes.append(node)
            line.turns.append(0)
            return True
        origin = self._time(line.nodes[0])
        phase = (self._time(node) - origin) % self._period
        phases = [
            self._time(other) - origin + turn * self._period
            for other, turn in zip(line.nodes, line.turns, strict=True)
        ]
        natural = sum(each <= phase for each in phases) - 1
        turn = (phase - (self._time(node) - origin)) // self._period
        for step in range(len(line.nodes)):
            wraps, place = divmod(natural + step, len(line.nodes))
            if self._placed(line, place, node, turn - wraps):
                return True
        return False

    def _delay(self, node: int) -> None:
        """Give a node its slack, and launch no earlier than the device op needs.

        A stream would wait for what was launched too early.
        """
        launch, device = self._first[node], self._device[node]
        for op in (launch, launch if device is None else device):
            wanted = [self._start[u] + delay for u, delay in self._before[op]]
            self._raise(op, max(wanted, default=self._start[op]))
        if device is not None:
            needed = sum(self._duration[op] * self._unit + 1 for op in range(launch, device))
            self._raise(launch, self._start[device] - needed)

    def _raise(self, op: int, time: int) -> None:
        if time > self._start[op]:
            self._start[op] = time
            self._push(deque([op]))

    def _placed(self, line: _Line, place: int, node: int, turn: int) -> bool:
        """Put a node after the one at `place`, if the period allows; else leave all as it was."""
        before, following = line.nodes[place], (place + 1) % len(line.nodes)
        after, wraps = line.nodes[following], int(following == 0)
        start, added = self._start.copy(), len(self._added)
        onward = line.turns[following] + wraps - turn
        if self._order(before, node, turn - line.turns[place]) and self._order(node, after, onward):
            line.nodes.insert(place + 1, node)
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
        forward = (u, v) in self._pair
        pair = self._pair[(u, v) if forward else (v, u)]
        edges = self._space.forward if forward else self._space.backward
        return self._add_all(edges, pair, distance)

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
        if self._start[source] + delay > self._start[target]:
            self._start[target] = self._start[source] + delay
            if not self._push(deque([target]), source):
                return False
        self._after[source].append((target, delay))
        self._added.append(source)
        return True

    def _push(self, moved: deque[int], never: int = -1) -> bool:
        """Move what follows some ops to later; False if that would move `never`, the cause."""
        waiting = set(moved)
        while moved:
            here = moved.popleft()
            waiting.discard(here)
            self._budget.take()
            at = self._start[here]
            for target, delay in self._after[here]:
                if at + delay > self._start[target]:
                    if target == never:
                        return False
                    self._start[target] = at + delay
                    if target not in waiting:
                        waiting.add(target)
                        moved.append(target)
        return True

    def _decisions(self, lines: dict[str, _Line]) -> Ints:
        """The m of every pair of nodes of a thread."""
        place = {
            node: (rank, turn)
            for line in lines.values()
            for rank, (node, turn) in enumerate(zip(line.nodes, line.turns, strict=True))
        }
        chosen = self._space.listed.copy()
        for (u, v), pair in self._pair.items():
            (rank, turn), (later, onward) = place[u], place[v]
            chosen[pair] = onward - turn + int(rank > later)
        return chosen
