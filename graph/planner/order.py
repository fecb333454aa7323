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

from ..errors import GraphError
from ..plan import Placed
from ..step_graph import StepGraph
from .budget import Budget, Spent
from .deadlock import deadlock
from .events import Precedence, free_edges, listing_programs, with_streams
from .order_insertion import inserted
from .order_search import Ints, Search, Stop, latency
from .order_space import OrderSpace, demands, start, structure
from .paths import adjacency, closure, ordered
from .period import Scaled, delays, largest_ratio
from .requirements import Gate, Requirement, gate
from .waits import Frame, Needs

NODES = 1200  # of the search tree, for each criterion
CELLS = 120_000_000  # of matrices, for each criterion: half a second
MOVES = 1_000_000  # of start times, for all insertions of a graph: a second
ORDERS = 40  # of equal period and latency, whose waits are counted
_TRIED = ((0, 0), (1 / 4, 0), (0, 1 / 8), (1 / 16, 0), (1 / 2, 0), (1 / 8, 0), (0, 1 / 4))
"""What insertion tries: the share of the way from the least period to a known one; its slack."""

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
        raise deadlock(graph, listing_programs(graph), free, everything, gates, searched=True)


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
        self._spent = self._unproved = False
        self._periods: dict[bytes, Fraction] = {}

    def choose(self) -> OrderChoice:
        if self._cells_of_a_dive() > CELLS:
            best = self._large()
            self._rated(best, "too many nodes to search")
            if not self._unproved:
                self._notes.append(
                    "order: too many nodes to search; no order has a shorter period, but some may "
                    "have a shorter output latency or fewer waits"
                )
        else:
            best, ratio = self._least_period()
            best, latency = self._least_latency(best, ratio)
            best = self._fewest_waits(best, ratio, latency)
            if self._spent:
                self._rated(best, "not proved to be the best")
        return OrderChoice(self._space.programs(best.tolist()), tuple(self._notes))

    def _cells_of_a_dive(self) -> int:
        """What one order costs the search: each pair of nodes adds an edge in each direction."""
        return 4 * len(self._space.pairs) * self._space.size**2

    def _least_period(self) -> tuple[Ints, Fraction]:
        space = self._space
        found = self._first(space.bound, Budget(NODES // 8, CELLS))
        if found is not None:
            return found, self._period(found)
        budget = Budget(NODES, CELLS)
        best = self._any()
        ratio = self._period(best)
        try:
            while ratio > space.bound:
                better = self._first(ratio, budget, strict=True, spend=True)
                if better is None:
                    break
                best, ratio = better, self._period(better)
        except Spent:
            self._spent = True
            best, ratio = self._inserted(best, ratio)
        return best, ratio

    def _inserted(self, best: Ints, ratio: Fraction) -> tuple[Ints, Fraction]:
        """An order of a shorter period made by insertion, or the given one."""
        bound, known, budget = self._space.bound, ratio, Budget(MOVES)
        try:
            for share, slack in _TRIED:
                period = bound + (known - bound) * Fraction(share)
                if bound < ratio and period < ratio:
                    found = inserted(self._space, period, budget, Fraction(slack))
                    if found is not None and (reached := self._period(found)) < ratio:
                        best, ratio = found, reached
        except Spent:
            pass
        return best, ratio

    def _large(self) -> Ints:
        """The listing where nothing is faster, else the best order that insertion finds."""
        listed = self._space.listed
        if self._is_possible(listed):
            return self._inserted(listed, self._period(listed))[0]
        longest = self._space.bound + sum(self._space.durations.tolist())
        try:
            found = inserted(self._space, longest, Budget(MOVES))
        except Spent:
            found = None
        if found is None:
            raise self._lost()
        return self._inserted(found, self._period(found))[0]

    def _is_possible(self, order: Ints) -> bool:
        frame = Frame.of(
            self._graph, with_streams(self._graph, self._space.programs(order.tolist()))
        )
        edges = [(u, v, d) for u, v, d, _ in frame.free] + [(u, v, d) for u, v, d in self._demands]
        numbered = [(self._index[u], self._index[v], d) for u, v, d in edges]
        return bool(ordered(closure(adjacency(self._space.size, numbered))))

    def _lost(self) -> GraphError:
        return GraphError(
            f"step graph {self._graph.name!r}: found no order for its host threads, and not "
            "that there is none. List the nodes as they may run, and say `order: keep`.",
            code="SW-ORDER",
        )

    def _rated(self, best: Ints, why: str) -> None:
        """Say how far the order's period may be from the least, unless it is the least."""
        ratio, bound = self._period(best), self._space.bound
        self._unproved = ratio > bound
        if self._unproved:
            period_us, bound_us = (float(r / self._space.scale) for r in (ratio, bound))
            self._notes.append(
                f"order: {why}; its period is {period_us:.6g} µs, "
                f"and none can be below {bound_us:.6g} µs"
            )

    def _any(self) -> Ints:
        """Some order: the listing if it can be, else the first that meets the requirements.

        There may be none although no cycle forbids it, where a node would have to run between
        the phases of another; then the listing's own deadlock says which.
        """
        near = Search(self._space, 0, 1, Budget(NODES), lambda paths, order: None, canonical=True)
        found = near.dive()
        try:
            if found is None:
                found = self._first(Fraction(0), Budget(8 * NODES, 2 * CELLS), spend=True)
        except Spent:
            raise self._lost() from None
        if found is not None:
            return found
        frame = Frame.of(self._graph, with_streams(self._graph, listing_programs(self._graph)))
        needs = Needs.of(frame, self._needed)
        raise deadlock(
            self._graph, frame.actors, frame.free, needs.requirements, needs.gates, searched=True
        )

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
        """The least latency at this period (scaled, times the denominator)."""
        p, q = ratio.numerator, ratio.denominator
        bound = latency(self._space, self._given(p, q), q)
        least, chosen = self._latency_of(best, p, q) or 0, best
        listed = self._latency_of(self._space.listed, p, q)
        if listed is not None and listed <= least:
            least, chosen = listed, self._space.listed

        def visit(paths: Ints, order: Ints) -> None:
            nonlocal least, chosen
            least, chosen = latency(self._space, paths, q), order
            search.limit = least - 1
            if least <= bound:
                raise Stop

        search = Search(self._space, p, q, Budget(NODES, CELLS), visit, limit=least - 1)
        try:
            if least > bound:
                search.run()
        except Stop:
            pass
        except Spent:
            unit = q * self._space.scale
            self._notes.append(
                f"order: its output latency of {least / unit:.6g} µs is not proved to be the "
                f"least; none can be below {bound / unit:.6g} µs"
            )
        return chosen, least

    def _fewest_waits(self, best: Ints, ratio: Fraction, longest: int) -> Ints:
        """Among equals, nearest to the listing first, as many as `ORDERS` of them."""
        bound = self._leaving()
        fewest, chosen, left = self._count_waits(self._space.programs(best.tolist())), best, ORDERS
        met = False

        def visit(_: Ints, order: Ints) -> None:
            nonlocal fewest, chosen, left, met
            waits = self._count_waits(self._space.programs(order.tolist()))
            if waits < fewest or (waits == fewest and not met):
                fewest, chosen, met = waits, order, True
            left -= 1
            if fewest <= bound and met:
                raise Stop
            if left <= 0:
                raise Spent

        p, q = ratio.numerator, ratio.denominator
        try:
            budget = Budget(NODES, CELLS)
            Search(self._space, p, q, budget, visit, limit=longest, canonical=True).run()
        except Stop:
            pass
        except Spent:
            self._notes.append(
                f"order: {fewest} waits not proved to be the fewest at this period and latency; "
                f"none can have fewer than {bound}"
            )
        return chosen

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

    def _given(self, p: int, q: int) -> Ints:
        paths = start(self._space, p, q)
        assert paths is not None, "an order of this period exists"
        return paths

    def _latency_of(self, order: Ints, p: int, q: int) -> int | None:
        """That of a complete order, or None if its period is longer."""
        decide = Search(self._space, p, q, Budget(0), lambda paths, order: None)
        paths = self._given(p, q)
        for pair, m in enumerate(order.tolist()):
            joined = decide.joined(paths, pair, m)
            if joined is None:
                return None
            paths = joined
        return latency(self._space, paths, q)

    def _period(self, order: Ints) -> Fraction:
        """The period of an order (scaled)."""
        known = self._periods.get(order.tobytes())
        if known is None:
            known = self._periods[order.tobytes()] = self._found_period(order)
        return known

    def _found_period(self, order: Ints) -> Fraction:
        actors = with_streams(self._graph, self._space.programs(order.tolist()))
        events = free_edges(self._graph, actors)
        events += [Precedence(u, v, d, "wait") for u, v, d in self._demands]
        found = delays(self._graph, events, self._costs)
        scaled = Scaled.of(self._index, found)
        ratio = largest_ratio(scaled)
        return max(ratio, Fraction(0)) * self._space.scale / scaled.scale
