"""From one plan to another without draining: in which order each actor goes over, what waits once.

Both plans keep their own orders to the end of their steps and from the beginning of theirs on, so
only requirements between the two can fail. Those that the actors' orders and both plans' waits do
not imply are given a wait of their own, that takes place once. All of it points forward in one
linear order of the instances around the switch, so nothing can block for ever.

How late the plan after begins is chosen: among the serial programs and the orders of the actors
that are tried, the one in which its steps are least late; then the one with the fewest waits. That
all of the plan before goes first, as if the run had been drained, is always possible.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product

from ..errors import GraphError
from ..plan import Lease, Plan
from ..step_graph import Vertex
from ..switch import Crossing, Instance, Switch, WaitOnce
from .crossings import Pair, bound, crossings, last_users, launched, users
from .events import plan_edges
from .period import delays, period
from .splice import (
    Ancestors,
    Arc,
    Window,
    actor_arcs,
    first_alone,
    furthest,
    last_alone,
    latest,
    merged,
    sorted_by_time,
)

DRAINED_US = 1e15  # by which the plan after is late where nothing of it may go first


def switch_plans(before: Plan, after: Plan) -> Switch:
    """How to go from one plan to another between two steps, proved.

    Raises `GraphError` for plans that cannot follow each other.
    """
    window = Window(Pair(before, after))
    while (found := _best(window)) is None:
        window = replace(window, more=window.more + furthest(after))
    return found


def _best(window: Window) -> Switch | None:
    """The best that is tried. None where the plan before is not over at the end of the window.

    Raises `GraphError` for plans that cannot follow each other.
    """
    pair = window.pair
    steady = Steady.of(pair.before), Steady.of(pair.after)
    tried = [
        found
        for delay in range(pair.soonest, pair.spread + 2)
        for shift_us in _shifts(pair, steady)
        if (found := _Trial.of(window, delay, steady, shift_us)) is not None
    ]
    drained = _Trial.of(window, 2 * pair.spread + 2, steady, DRAINED_US)
    if drained is None:
        raise _overwritten(pair)
    best = min([*tried, drained], key=lambda each: (each.late_us, len(each.kept), abs(each.delay)))
    return best.switch(drained.late_us)


def _overwritten(pair: Pair) -> GraphError:
    for vertex in pair.after.graph.vertices.values():
        for read in vertex.op.reads:
            slots = pair.before.slots.get(read.name)
            if slots is not None and read.carry > slots:
                return GraphError(
                    f"these plans cannot follow each other: {vertex.name!r} of the plan after reads"
                    f" {read.name!r} of {read.carry} steps before, and the plan before keeps "
                    f"{slots}. Pin {read.carry} slots of {read.name!r} there.",
                    code="SW-SWITCH",
                )
    raise AssertionError("of plans that can be ordered, one can follow the other when it has ended")


@dataclass(frozen=True)
class Steady:
    """When each op of step 0 starts in steady state; ops that take no time take a little."""

    starts: Mapping[str, float]
    every_us: float

    @staticmethod
    def of(plan: Plan) -> Steady:
        most = max(plan.costs.values(), default=0.0) or 1.0
        costs = {op: plan.costs.get(op, 0.0) or most / 100 for op in plan.graph.vertices}
        found = delays(plan.graph, plan_edges(plan), costs)
        every = max(plan.period_us, period(plan.graph, plan_edges(plan), costs).us)
        starts = dict.fromkeys(plan.graph.vertices, 0.0)
        for _ in starts:
            moved = False
            for source, target, distance, us, _ in found:
                at = starts[source] + us - distance * every
                if at > starts[target] + 1e-6:
                    starts[target], moved = at, True
            if not moved:
                break
        return Steady(starts, every)


def _shifts(pair: Pair, steady: tuple[Steady, Steady]) -> list[float]:
    """By how much the plan after may begin later than step 0 of the plan before would have.

    So that some op that both have goes on in its rhythm: the first, the last, the last on a device.
    """
    first, then = steady
    common = [op for op in first.starts if op in then.starts]
    on_device = [op for op in common if pair.before.graph.vertices[op].side == "device"]
    apart = {op: round(first.starts[op] - then.starts[op], 3) for op in common}
    ends = [max(apart[op] for op in on_device)] if on_device else []
    ends += [max(apart.values()), min(apart.values())] if common else [0.0]
    return list(dict.fromkeys(ends))


@dataclass(frozen=True)
class _Trial:
    """One serial program and one order of the actors, with the waits that they need."""

    window: Window
    delay: int
    programs: Mapping[str, Sequence[Instance]]
    needed: Sequence[Crossing]
    order: Sequence[Instance]
    free: Sequence[Arc]
    kept: Sequence[tuple[Instance, Instance]]
    late_us: float

    @staticmethod
    def of(
        window: Window, delay: int, steady: tuple[Steady, Steady], shift_us: float
    ) -> _Trial | None:
        """None where these requirements cannot be met in this order."""
        times = _times(window, steady, shift_us)
        needed = crossings(window.pair, delay)
        order = sorted_by_time(window.instances, [*window.arcs, *_arcs(window, needed)], times)
        programs = None if order is None else merged(window, order)
        if programs is None or _beyond(window, programs):
            return None
        needed += [each for each in _fed_in_order(window, programs) if each not in needed]
        free = [*window.arcs, *actor_arcs(window, programs)]
        order = sorted_by_time(window.instances, [*free, *_arcs(window, needed)], times)
        if order is None:
            return None
        bounds = _bounds(window, Ancestors(order, [*free, *_arcs(window, needed)]))
        if bounds is None:
            return None
        needed += bounds
        kept = _kept(window, order, free, needed)
        if kept is None:
            return None
        late = _late_us(window, steady, order, [*free, *_once(window, kept)])
        return _Trial(window, delay, programs, needed, order, free, kept, late)

    def switch(self, drained_us: float) -> Switch | None:
        """None where the plan before is not over at the end of the window."""
        window, pair = self.window, self.window.pair
        ordered = [*window.direct, *actor_arcs(window, self.programs)]
        known = Ancestors(self.order, [*ordered, *_once(window, self.kept)])
        proved = [
            replace(each, witness=known.chain(each.source, each.met_at)) for each in self.needed
        ]
        leaves = last_alone(self.programs.values(), window.iteration, window.iterations[0][-1])
        enters = first_alone(self.programs.values(), window.iteration, window.iterations[1][0])
        for at in (at for pair in self.kept for at in pair):  # ops that do more, in this step only
            leaves = min(leaves, window.iteration(at) - 1) if at.part == 0 else leaves
            enters = max(enters, window.iteration(at) + 1) if at.part == 1 else enters
        steps = range(window.last + 1)
        over = next((step for step in steps if self._is_over(known, step)), None)
        if over is None:
            return None
        return Switch(
            before=pair.before,
            after=pair.after,
            delay=self.delay,
            leaves=leaves,
            enters=enters,
            programs={
                actor: tuple(
                    at
                    for at in ops
                    if (window.iteration(at) > leaves, window.iteration(at) < enters)[at.part]
                )
                for actor, ops in self.programs.items()
            },
            waits=tuple(
                WaitOnce(source, target, self._protected(source, target))
                for source, target in self.kept
            ),
            crossings=tuple(proved),
            leases=_leases(window, known, self.delay),
            over=over,
            costs_us=self.late_us,
            drained_us=drained_us,
        )

    def _protected(self, source: Instance, target: Instance) -> tuple[Crossing, ...]:
        others = [each for each in self.kept if each != (source, target)]
        left = Ancestors(self.order, [*self.free, *_once(self.window, others)])
        return tuple(each for each in self.needed if not left.ordered(each.source, each.met_at))

    def _is_over(self, known: Ancestors, step: int) -> bool:
        pair = self.window.pair
        return all(
            known.ordered(u, Instance(1, v, step))
            for u, v in product(last_users(pair), pair.after.graph.vertices)
        )


def _times(window: Window, steady: tuple[Steady, Steady], shift_us: float) -> dict[Instance, float]:
    """When instances would run in steady state; steps of the other plan come in its rhythm."""
    rhythm = [each.every_us for each in steady]
    begins = (0.0, shift_us)
    return {
        at: begins[at.part] + steady[at.part].starts[at.op] + at.step * rhythm[at.step >= 0]
        for at in window.instances
    }


def _arcs(window: Window, needed: Sequence[Crossing]) -> list[Arc]:
    return [(each.source, each.met_at, window.cost(each.source)) for each in needed]


def _once(window: Window, kept: Sequence[tuple[Instance, Instance]]) -> list[Arc]:
    return [(source, target, window.cost(source)) for source, target in kept]


def _beyond(window: Window, programs: Mapping[str, Sequence[Instance]]) -> bool:
    """Whether actors go from plan to plan up to an edge of the window, beyond which none looks."""
    back, onward = window.iterations
    leaves = last_alone(programs.values(), window.iteration, back[-1])
    enters = first_alone(programs.values(), window.iteration, onward[0])
    return leaves < back[0] or enters > onward[-1]


def _fed_in_order(window: Window, programs: Mapping[str, Sequence[Instance]]) -> list[Crossing]:
    """Ops of both plans that follow each other on a stream, launched by two host threads."""
    found = []
    for ops in programs.values():
        for u, v in pairwise(ops):
            first, then = window.vertex(u), window.vertex(v)
            if u.part != v.part and first.side == "device":
                hosts = {_launcher(window, u, first), _launcher(window, v, then)}
                if len(hosts) > 1:
                    found += launched(window.pair, Crossing(u, v, "LAUNCH", "", v))
    return found


def _launcher(window: Window, at: Instance, vertex: Vertex) -> str:
    return window.pair.graphs[at.part].vertices[vertex.launch or ""].actor


def _bounds(window: Window, known: Ancestors) -> list[Crossing] | None:
    """What else keeps the plan after from running ahead of the end of the plan before.

    None where it would be further ahead than the window reaches.
    """
    graph = window.pair.after.graph
    first = next(name for name, vertex in graph.vertices.items() if vertex.side == "host")
    ends = max(known.number[Instance(0, op, -1)] for op in window.pair.before.graph.vertices)
    later = (Instance(1, first, step) for step in range(window.last + 1))
    target = next((at for at in later if known.number[at] > ends), None)
    loose = [
        Instance(0, op, -1)
        for op in window.pair.before.graph.vertices
        if not any(
            known.ordered(Instance(0, op, -1), Instance(1, each, window.last))
            for each in graph.vertices
        )
    ]
    if loose and target is None:
        return None
    return [bound(window.pair, at, target) for at in loose if target is not None]


def _kept(
    window: Window, order: Sequence[Instance], free: Sequence[Arc], needed: Sequence[Crossing]
) -> list[tuple[Instance, Instance]] | None:
    """The requirements that need a wait: nothing else implies them, nor do other waits."""
    known = Ancestors(order, free)
    failing = [each for each in needed if not known.ordered(each.source, each.met_at)]
    pairs = list(dict.fromkeys((each.source, each.met_at) for each in failing))
    every = Ancestors(order, [*free, *_once(window, pairs)])
    return [pair for pair in pairs if not every.redundant(*pair)]


def _late_us(
    window: Window, steady: tuple[Steady, Steady], order: Sequence[Instance], arcs: Sequence[Arc]
) -> float:
    """By how much steps of the plan after are later than if it had been in the other's rhythm."""
    released = {
        at: steady[0].starts[at.op] + at.step * steady[0].every_us
        for at in window.instances
        if at.part == 0 and window.runs(at)
    }
    starts = latest(order, arcs, released)
    late = max(
        starts[Instance(1, op, window.last)] - begins - window.last * steady[1].every_us
        for op, begins in steady[1].starts.items()
    )
    return round(late - _shifts(window.pair, steady)[0], 3)


def _leases(window: Window, known: Ancestors, delay: int) -> tuple[Lease, ...]:
    """After how many steps keys of users in the plan before may be had by users in the other."""
    found: dict[tuple[str, str, str], int] = {}
    first, then = window.pair.graphs
    for name, state in first.states.items():
        if state.keys is None or name not in then.states:
            continue
        for u, v in product(users(first, name), users(then, name)):
            if name in u.op.writes or name in v.op.writes:
                steps = _handed_over(window, known, u, v, window.pair.least(u.name, v.name, delay))
                move = (name, u.op.class_of(name), v.op.class_of(name))
                found[move] = max(found.get(move, 1), steps)
    return tuple(Lease(*move, steps) for move, steps in found.items())


def _handed_over(window: Window, known: Ancestors, u: Vertex, v: Vertex, least: int) -> int:
    """The least r at which u of any step i before comes ahead of v of all steps from i + r on."""
    steps = 1
    for i in range(-window.last, 0):
        met = v.launch if u.side == "host" and v.side == "device" and v.launch else v.name
        for j in range(max(0, i + steps), window.last + 1):
            if j >= i + least and known.ordered(Instance(0, u.name, i), Instance(1, met, j)):
                break
            steps = j + 1 - i
    return steps
