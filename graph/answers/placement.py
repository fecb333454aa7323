"""Which host thread and which stream each open node had best run on, by the predicted period.

A node whose place is open is tried on every thread and stream that it may have; each placement is
compiled, and the one of the shortest period is taken. Durations are those of the ops wherever they
run, so what a placement takes from the others is not in them: processors that are not there, or an
interpreter's lock that the op does not give up.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ..errors import GraphError
from ..node import Node
from ..plan import Plan, Wait
from ..step_graph import StepGraph
from .whatif import bound_by

EXHAUSTIVE = 64  # placements compared at once; beyond, one node after another
HAND_OVER_US = 20.0
"""What a wait between two host threads costs them, which the costs of ops do not have: waking a
thread, and the turn at the interpreter's lock."""

Compile = Callable[[StepGraph], Plan]


@dataclass(frozen=True, slots=True)
class Where:
    """Where a node runs: its host thread, and the stream of its device ops if it has some."""

    actor: str
    stream: str | None = None


Places = tuple[Where, ...]  # of the open nodes, in order


def best_placed(
    graph: StepGraph, open_to: Mapping[str, Sequence[Where]], compiled: Compile
) -> Plan:
    """The plan of the best placement, whose notes say what it was compared with.

    `open_to`: for each open node its possible places, the preferred one first: among placements as
    good as each other the earlier place is taken. Raises what `compiled` raises where it refuses
    all of them.
    """
    if not open_to:
        return compiled(graph)
    search = _Search(graph, tuple(open_to), compiled)
    ranges = [tuple(places) for places in open_to.values()]
    if math.prod(map(len, ranges)) <= EXHAUSTIVE:
        best = search.best(itertools.product(*ranges))
    else:
        best = search.best([tuple(each[0] for each in ranges)])
        before = None
        while best != before:
            before = best
            for number, each in enumerate(ranges):
                best = search.best((*best[:number], one, *best[number + 1 :]) for one in each)
    plan = search.plan_of(best)
    said = tuple(search.reasons(best, ranges))
    return replace(plan, notes=(*plan.notes, *said))


class _Search:
    """Plans of placements, each made once."""

    def __init__(self, graph: StepGraph, nodes: Sequence[str], compiled: Compile) -> None:
        self._graph = graph
        self._nodes = nodes
        self._compiled = compiled
        self._found: dict[Places, Plan | GraphError] = {}

    def best(self, placements: Iterable[Places]) -> Places:
        """The first of those with the least cost. Raises `GraphError` where all are refused."""
        tried = list(placements)
        possible = [each for each in tried if isinstance(self._plan(each), Plan)]
        if not possible:
            refused = self._plan(tried[0])
            assert isinstance(refused, GraphError), "no plan of it is possible"
            raise refused
        return min(possible, key=lambda each: cost_us(self.plan_of(each)))

    def plan_of(self, places: Places) -> Plan:
        plan = self._plan(places)
        assert isinstance(plan, Plan), "a possible one"
        return plan

    def reasons(self, best: Places, ranges: Sequence[Places]) -> Iterator[str]:
        """For each node: where it runs, and what a step would take with it elsewhere."""
        for number, (node, places) in enumerate(zip(self._nodes, ranges, strict=True)):
            here = best[number]
            said = [f"placement: node {node!r} is on {_told(here, places)}: {self._said(best)}"]
            for place in places:
                if place != here:
                    moved = (*best[:number], place, *best[number + 1 :])
                    said.append(f"on {_told(place, places)} {self._said(moved)}")
            yield "; ".join(said)

    def _said(self, places: Places) -> str:
        plan = self._plan(places)
        if isinstance(plan, GraphError):
            return f"there is no plan ({plan.code})"
        waits = len(hand_overs(plan))
        between = f" and {waits} wait{'s' * (waits != 1)} between threads" if waits else ""
        return f"{plan.period_us:,.6g} µs a step{between}, bound by {bound_by(plan)}"

    def _plan(self, places: Places) -> Plan | GraphError:
        if places not in self._found:
            at = dict(zip(self._nodes, places, strict=True))
            nodes = tuple(_moved(node, at.get(node.name)) for node in self._graph.nodes)
            try:
                self._found[places] = self._compiled(replace(self._graph, nodes=nodes))
            except GraphError as error:
                self._found[places] = error
        return self._found[places]


def cost_us(plan: Plan) -> float:
    """The period, and what the waits between its host threads take beside the ops."""
    return plan.period_us + HAND_OVER_US * len(hand_overs(plan))


def hand_overs(plan: Plan) -> list[Wait]:
    """Waits of a host thread for another."""
    vertices = plan.graph.vertices
    return [
        wait
        for wait in plan.waits
        if vertices[wait.source].side == vertices[wait.target].side == "host"
    ]


def _moved(node: Node, place: Where | None) -> Node:
    return node if place is None else replace(node, actor=place.actor, stream=place.stream)


def _told(place: Where, places: Places) -> str:
    """What tells a place from the others that a node may have."""
    threads, streams = {each.actor for each in places}, {each.stream for each in places}
    said = [f"thread {place.actor!r}"] if len(threads) > 1 or len(streams) == 1 else []
    if len(streams) > 1:
        said.append(f"stream {place.stream!r}")
    return " and ".join(said)
