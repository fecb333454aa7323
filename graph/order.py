"""Choosing the order in which host threads issue their ops: the search behind `order: search`.

Least period first, then least output latency, then fewest waits; among equals the order nearest
to the listing, by the first pair of nodes (in listing order) that stands otherwise. Period
and latency are those of unlimited slots, which the slot choice keeps (`slots.py`).

*Output latency* is the time from the start of a step's first op to the end of its last one, when
every op starts once a period and as late as that allows: the longest path between any two ops
of one step, an edge of distance d counting d periods less.

What state accesses mean stays the order of the listing: the search may only choose among
orders that meet it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from .deadlock import deadlock
from .events import Event, free_edges, listing_programs, with_streams
from .order_search import Budget, Ints, Search, Spent, Stop
from .order_space import OrderSpace, demands, start, structure
from .paths import FAR, adjacency, closure, ordered
from .period import Scaled, delays, slowest_cycle
from .plan import Placed
from .requirements import Gate, Requirement, gate
from .step_graph import StepGraph

NODES = 4000  # of the search tree: about a second
ORDERS = 60  # of equal period and latency, whose waits are counted

Programs = Mapping[str, tuple[Placed, ...]]
CountWaits = Callable[[Programs], int]


@dataclass(frozen=True)
class OrderChoice:
    """The programs of the host threads, and what of their optimality is not proved."""

    programs: Programs
    notes: tuple[str, ...] = ()


def check_orderable(graph: StepGraph, needed: Sequence[Requirement]) -> None:
    """Raise `DeadlockError` if the requirements close a cycle in every order."""
    index = {name: number for number, name in enumerate(graph.vertices)}
    free, everything = structure(graph), demands(graph, needed)
    gates = [gate(graph, requirement) for requirement in everything]
    edges = [Gate(u, v, d) for u, v, d, _ in free] + gates
    paths = closure(adjacency(len(index), [(index[u], index[v], d) for u, v, d in edges]))
    if not ordered(paths):
        raise deadlock(graph, listing_programs(graph), free, everything, gates)


def choose_order(
    graph: StepGraph,
    needed: Sequence[Requirement],
    costs: Mapping[str, float],
    count_waits: CountWaits,
) -> OrderChoice:
    """The best order within `needed`. Raises `DeadlockError` if there is none."""
    check_orderable(graph, needed)
    space = OrderSpace.of(graph, needed, costs)
    return _Chooser(space, needed, costs, count_waits).choose()


class _Chooser:
    """The three searches, one for each criterion, each within the optimum of those before."""

    def __init__(
        self,
        space: OrderSpace,
        needed: Sequence[Requirement],
        costs: Mapping[str, float],
        count_waits: CountWaits,
    ) -> None:
        self._space = space
        self._graph = space.graph
        self._needed = needed
        self._costs = costs
        self._count_waits = count_waits
        self._index = {name: number for number, name in enumerate(space.graph.vertices)}
        self._demands = [gate(space.graph, r) for r in demands(space.graph, needed)]
        self._notes: list[str] = []

    def choose(self) -> OrderChoice:
        best, ratio = self._least_period()
        best, latency = self._least_latency(best, ratio)
        best = self._fewest_waits(best, ratio, latency)
        return OrderChoice(self._space.programs(best.tolist()), tuple(self._notes))

    def _least_period(self) -> tuple[Ints, Fraction]:
        budget, space = Budget(NODES), self._space
        found = self._first(space.bound, Budget(NODES // 8))
        if found is not None:
            return found, self._period(found)
        best = self._any()
        ratio = self._period(best)
        try:
            while ratio > space.bound:
                better = self._first(ratio, budget, strict=True, spend=True)
                if better is None:
                    break
                best, ratio = better, self._period(better)
        except Spent:
            self._notes.append(
                f"order: not proved to be the best; its period is {_us(ratio, space):.6g} µs, "
                f"and none can be below {_us(space.bound, space):.6g} µs"
            )
        return best, ratio

    def _any(self) -> Ints:
        """Some order: the listing if it can be, else the first that meets the requirements."""
        found: list[Ints] = []

        def visit(_: Ints, chosen: Ints) -> None:
            found.append(chosen)
            raise Stop

        try:
            Search(self._space, 0, 1, Budget(1 << 30), visit, canonical=True).run()
        except Stop:
            return found[0]
        raise AssertionError("a graph without a cycle of distance ≤ 0 has an order")

    def _first(
        self, ratio: Fraction, budget: Budget, *, strict: bool = False, spend: bool = False
    ) -> Ints | None:
        """The first order found of a period of at most `ratio` (or below it)."""
        found: list[Ints] = []

        def visit(_: Ints, chosen: Ints) -> None:
            found.append(chosen)
            raise Stop

        try:
            Search(
                self._space, ratio.numerator, ratio.denominator, budget, visit, strict=strict
            ).run()
        except Stop:
            return found[0]
        except Spent:
            if spend:
                raise
        return None

    def _least_latency(self, best: Ints, ratio: Fraction) -> tuple[Ints, int]:
        """The least latency at this period (times the denominator, scaled)."""
        p, q = ratio.numerator, ratio.denominator
        least = [self._latency_of(best, p, q)]
        chosen = [best]
        bound = self._latency(start(self._space, p, q), q)

        def visit(paths: Ints, order: Ints) -> None:
            least[0], chosen[0] = self._latency(paths, q), order
            if least[0] <= bound:
                raise Stop

        def hopeless(paths: Ints) -> bool:
            return self._latency(paths, q) >= least[0]

        try:
            if least[0] > bound:
                Search(self._space, p, q, Budget(NODES), visit, hopeless=hopeless).run()
        except Stop:
            pass
        except Spent:
            unit = q * self._space.scale
            self._notes.append(
                f"order: its output latency of {least[0] / unit:.6g} µs is not proved to be the "
                f"least; none can be below {bound / unit:.6g} µs"
            )
        return chosen[0], least[0]

    def _fewest_waits(self, best: Ints, ratio: Fraction, latency: int) -> Ints:
        """Among equals, nearest to the listing first, as many as `ORDERS` of them."""
        p, q = ratio.numerator, ratio.denominator
        bound = self._leaving()
        counted: list[tuple[int, Ints]] = []

        def visit(_: Ints, order: Ints) -> None:
            waits = self._count_waits(self._space.programs(order.tolist()))
            if not counted or waits < counted[0][0]:
                counted[:] = [(waits, order)]
            if waits <= bound:
                raise Stop
            left[0] -= 1
            if left[0] <= 0:
                raise Spent

        def hopeless(paths: Ints) -> bool:
            return self._latency(paths, q) > latency

        left = [ORDERS]
        search = Search(
            self._space, p, q, Budget(NODES), visit, hopeless=hopeless, canonical=True
        )
        try:
            search.run()
        except Stop:
            pass
        except Spent:
            fewest = f"{counted[0][0]} waits" if counted else "its waits"
            self._notes.append(
                f"order: {fewest} not proved to be the fewest at this period and latency; "
                f"none has fewer than {bound}"
            )
        return counted[0][1] if counted else best

    def _leaving(self) -> int:
        """A bound on the waits of any order: each stream that another actor must follow has one.

        Every path that leaves a stream leaves it by a wait for one of its ops.
        """
        vertices = self._graph.vertices
        return len(
            {
                vertices[u].actor
                for u, v, _ in self._demands
                if vertices[u].side == "device" and vertices[v].actor != vertices[u].actor
            }
        )

    def _latency(self, paths: Ints | None, q: int) -> int:
        """The longest path between two ops of one step, with the end of the second."""
        assert paths is not None, "an order of this period exists"
        slack = paths[1]
        ends = np.where(slack >= FAR // 2, -1, q * self._space.durations[None, :] - slack)
        return int(ends.max())

    def _latency_of(self, order: Ints, p: int, q: int) -> int:
        """That of a complete order."""
        decide = Search(self._space, p, q, Budget(0), lambda paths, order: None)
        paths = start(self._space, p, q)
        assert paths is not None, "an order of this period exists"
        for pair, m in enumerate(order.tolist()):
            joined = decide.joined(paths, pair, m)
            assert joined is not None, "the order has this period"
            paths = joined
        return self._latency(paths, q)

    def _period(self, order: Ints) -> Fraction:
        """The period of an order (scaled)."""
        actors = with_streams(self._graph, self._space.programs(order.tolist()))
        events = free_edges(self._graph, actors)
        events += [Event(u, v, d, "wait") for u, v, d in self._demands]
        found = delays(self._graph, events, self._costs)
        scaled = Scaled.of(self._index, found)
        ratio = slowest_cycle(scaled).ratio
        return max(ratio, Fraction(0)) * self._space.scale / scaled.scale


def _us(ratio: Fraction, space: OrderSpace) -> float:
    return float(ratio / space.scale)
