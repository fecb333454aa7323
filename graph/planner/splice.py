"""The steps around a switch, one by one: which instances there are, and what orders them.

Each plan keeps its own orders among its instances, for padding iterations beyond its last step or
before its first as well, so what it proves of itself stays true. An actor that both plans have runs
their instances in one sequence. It is found by sorting all instances by the time at which they
would run in the steady state of their plan, as far as the requirements between the two permit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heappop, heappush
from itertools import pairwise

from ..plan import Plan
from ..step_graph import Vertex
from ..switch import Instance
from .crossings import Pair
from .events import padding, plan_edges
from .paths import HOP, adjacency, closure, reachable
from .period import Delay, delays

Arc = tuple[Instance, Instance, float]  # the second starts at least so many µs after the first


@dataclass(frozen=True)
class Window:
    """Both plans unrolled around a switch. `more`: steps that it is longer than most need."""

    pair: Pair
    more: int = 0

    @cached_property
    def paddings(self) -> tuple[int, int]:
        """How many steps beyond its own each plan's orders reach."""
        first, then = (padding(plan_edges(plan)) for plan in self.pair.plans)
        return first, then

    @cached_property
    def iterations(self) -> tuple[range, range]:
        """Those of each plan: far enough on its own side for all requirements between the two."""
        carries = [
            read.carry
            for graph in self.pair.graphs
            for vertex in graph.vertices.values()
            for read in vertex.op.reads
        ]
        reach = 2 * self.pair.spread + max(carries, default=0) + 3 + self.more
        reach += sum(furthest(plan) for plan in self.pair.plans) + 2 * sum(self.paddings)
        first, then = (_offsets(plan) for plan in self.pair.plans)
        back = range(min(first) - reach, max(first) + max(self.paddings[0], 1))
        onward = range(min(then) - self.paddings[1], max(then) + reach)
        return back, onward

    @cached_property
    def sequences(self) -> tuple[Mapping[str, list[Instance]], Mapping[str, list[Instance]]]:
        """What each actor runs of either plan."""
        first, then = (
            {
                actor: [Instance(part, op, t - offset) for t in each for op, offset in program]
                for actor, program in plan.actors.items()
            }
            for part, (plan, each) in enumerate(zip(self.pair.plans, self.iterations, strict=True))
        )
        return first, then

    @cached_property
    def instances(self) -> list[Instance]:
        return [at for part in self.sequences for each in part.values() for at in each]

    @cached_property
    def arcs(self) -> list[Arc]:
        """What each plan orders by itself, and from when on."""
        return [*self.direct, *self._direct_and_through[1]]

    @property
    def direct(self) -> list[Arc]:
        """Those of them that go through no op in between: what orders all the rest."""
        return self._direct_and_through[0]

    @cached_property
    def _direct_and_through(self) -> tuple[list[Arc], list[Arc]]:
        known = set(self.instances)
        found: tuple[list[Arc], list[Arc]] = ([], [])
        for part, plan in enumerate(self.pair.plans):
            own = [at for at in self.instances if at.part == part]
            onward: dict[str, list[Delay]] = {}
            for delay in delays(plan.graph, plan_edges(plan), plan.costs):
                onward.setdefault(delay.source, []).append(delay)
            for at in own:
                for delay in onward.get(at.op, ()):
                    then = Instance(part, delay.target, at.step + delay.distance)
                    if then in known:
                        arc = at, then, delay.delay_us if self.runs(at) else 0.0
                        found[delay.via is not None].append(arc)
        return found

    @cached_property
    def last(self) -> int:
        """The last step of the plan after of which every op is there."""
        return self.iterations[1][-1] - max(_offsets(self.pair.after))

    @cached_property
    def _placed(self) -> tuple[Mapping[str, int], Mapping[str, int]]:
        first, then = (
            {op: offset for ops in plan.actors.values() for op, offset in ops}
            for plan in self.pair.plans
        )
        return first, then

    def iteration(self, at: Instance) -> int:
        """The iteration in which its actor runs it."""
        return at.step + self._placed[at.part][at.op]

    def runs(self, at: Instance) -> bool:
        """Whether its plan runs this step."""
        return (at.step >= 0) == bool(at.part)

    def cost(self, at: Instance) -> float:
        return self.pair.plans[at.part].costs.get(at.op, 0.0) if self.runs(at) else 0.0

    def vertex(self, at: Instance) -> Vertex:
        return self.pair.vertex(at)


def furthest(plan: Plan) -> int:
    """The greatest distance at which a plan has one op before another."""
    number = {op: place for place, op in enumerate(plan.graph.vertices)}
    edges = [(number[u], number[v], d) for u, v, d, _ in plan_edges(plan)]
    paths = closure(adjacency(len(number), edges))
    return max(0, int(paths[reachable(paths)].max(initial=0)) // HOP)


def _offsets(plan: Plan) -> list[int]:
    return [offset for ops in plan.actors.values() for _, offset in ops] or [0]


def sorted_by_time(
    instances: Sequence[Instance], arcs: Iterable[Arc], times: Mapping[Instance, float]
) -> list[Instance] | None:
    """All instances in an order that the arcs permit, else by time; None if they form a cycle."""
    before = dict.fromkeys(instances, 0)
    onward: dict[Instance, list[Instance]] = {at: [] for at in instances}
    for source, target, _ in arcs:
        onward[source].append(target)
        before[target] += 1
    rank = {at: (times[at], at.part, number) for number, at in enumerate(instances)}
    ready = [(rank[at], at) for at, count in before.items() if count == 0]
    heapify(ready)
    found: list[Instance] = []
    while ready:
        _, at = heappop(ready)
        found.append(at)
        for target in onward[at]:
            before[target] -= 1
            if before[target] == 0:
                heappush(ready, (rank[target], target))
    return found if len(found) == len(before) else None


def merged(window: Window, order: Sequence[Instance]) -> dict[str, list[Instance]] | None:
    """What each actor runs, if host threads follow that order, and streams their launches.

    None where a stream would have to run its ops in another order than one of its plans says.
    """
    rank = {at: number for number, at in enumerate(order)}
    first, then = window.sequences
    found: dict[str, list[Instance]] = {}
    for actor in dict.fromkeys([*first, *then]):
        both = [*first.get(actor, []), *then.get(actor, [])]
        number = {at: _fed(window, rank, at) for at in both}
        found[actor] = sorted(both, key=number.__getitem__)
        for own in (first.get(actor, []), then.get(actor, [])):
            if [at for at in found[actor] if at.part == own[0].part] != own if own else False:
                return None
    return found


def _fed(window: Window, rank: Mapping[Instance, int], at: Instance) -> tuple[int, int]:
    """When an instance's turn is: a host op's own, a device op's after that of its launch."""
    vertex = window.vertex(at)
    if vertex.launch is None:
        return rank[at], 0
    phase = vertex.node.op_names("device").index(vertex.name)
    return rank[Instance(at.part, vertex.launch, at.step)], phase


def actor_arcs(window: Window, programs: Mapping[str, Sequence[Instance]]) -> list[Arc]:
    """The order that each actor keeps."""
    return [(u, v, window.cost(u)) for ops in programs.values() for u, v in pairwise(ops)]


def last_alone(
    programs: Iterable[Sequence[Instance]], iteration: Callable[[Instance], int], last: int
) -> int:
    """The last iteration of the plan before that no actor runs any of the other's ops in."""
    for ops in programs:
        begun = next((place for place, at in enumerate(ops) if at.part), len(ops))
        last = min([last, *(iteration(at) - 1 for at in ops[begun:] if at.part == 0)])
    return last


def first_alone(
    programs: Iterable[Sequence[Instance]], iteration: Callable[[Instance], int], first: int
) -> int:
    """The first iteration of the plan after that every actor runs by itself."""
    for ops in programs:
        ended = next((p for p in reversed(range(len(ops))) if ops[p].part == 0), 0)
        first = max([first, *(iteration(at) + 1 for at in ops[:ended] if at.part)])
    return first


class Ancestors:
    """What comes before each instance, for arcs that form no cycle: one bit for each."""

    def __init__(self, order: Sequence[Instance], arcs: Iterable[Arc]) -> None:
        self.number = {at: place for place, at in enumerate(order)}
        self.sources: list[list[int]] = [[] for _ in order]
        for source, target, _ in arcs:
            self.sources[self.number[target]].append(self.number[source])
        self.found: list[int] = []
        for sources in self.sources:
            bits = 0
            for each in sources:
                bits |= self.found[each] | (1 << each)
            self.found.append(bits)

    def ordered(self, source: Instance, target: Instance) -> bool:
        """Whether the one is done before the other starts. False where one is outside."""
        if source not in self.number or target not in self.number:
            return False
        return bool(self.found[self.number[target]] >> self.number[source] & 1)

    def redundant(self, source: Instance, target: Instance) -> bool:
        """Whether the order of two, which an arc gives, has another way too."""
        u = self.number[source]
        others = [each for each in self.sources[self.number[target]] if each != u]
        return any(self.found[each] >> u & 1 for each in others)

    def chain(self, source: Instance, target: Instance) -> tuple[Instance, ...]:
        """Instances from the one to the other, each ordered with the next by one arc."""
        instances, goal = list(self.number), self.number[source]
        came: dict[int, int] = {self.number[target]: -1}
        pending = [self.number[target]]
        for here in pending:  # from the target back, the nearest first
            for back in self.sources[here]:
                if back not in came and (back == goal or self.found[back] >> goal & 1):
                    came[back] = here
                    pending.append(back)
            if goal in came:
                break
        found = [goal]
        while came[found[-1]] >= 0:
            found.append(came[found[-1]])
        return tuple(instances[each] for each in found)


def latest(
    order: Sequence[Instance], arcs: Iterable[Arc], released: Mapping[Instance, float]
) -> dict[Instance, float]:
    """When each instance starts, as early as arcs permit and not before it is released."""
    onward: dict[Instance, list[tuple[Instance, float]]] = {}
    for source, target, us in arcs:
        onward.setdefault(source, []).append((target, us))
    starts = {at: released.get(at, float("-inf")) for at in order}
    for at in order:
        for target, us in onward.get(at, ()):
            starts[target] = max(starts[target], starts[at] + us)
    return starts
