"""Brute force on unrolled graphs: what a plan really does, without the planner's definitions.

Nothing here knows a hazard, a distance rule or a slot formula. There are physical cells (K of
them for a value with K slots), op instances that touch them, and actors that follow their
programs. Two questions are asked of a plan:

- `run_schedule`, `run_exhaustively`: does every op, in every interleaving that the actors'
  instructions permit, see exactly what the serial program shows it? Reads are made twice, at
  the begin and the end of an op; a cell being written holds garbage in between. Launches
  enqueue, and a stream's wait captures the record that exists *when it is enqueued*, as on CUDA.
- `unordered_pairs`: is there a pair of instances touching one cell, one of them writing, that no
  chain of programs, launches and waits puts in the right order?
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, permutations, product
from random import Random
from typing import NamedTuple

import networkx as nx
import numpy as np
import numpy.typing as npt

from stepweave.graph.node import Node
from stepweave.graph.plan import Plan, Wait
from stepweave.graph.step_graph import StepGraph


class Instance(NamedTuple):
    """One op of one step."""

    op: str
    step: int

    def __str__(self) -> str:
        return f"{self.op}({self.step})"


FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
Cell = tuple[str, int]  # value and physical copy (or version, if fresh); (state, 0)


class Wrong(NamedTuple):
    """Something that must not happen in any interleaving."""

    kind: str  # saw, unrecorded, stuck, final
    where: Instance | None
    what: str


# --- the serial program --------------------------------------------------------------------


class Meaning:
    """What each op instance must see: the history of each value and state, by definition.

    The program is serial: ops by (step + offset, listing position). A value's version is what
    its writer made of what the writer saw; a state is the list of those who changed it.
    Histories are interned, so equal ones are equal numbers.
    """

    def __init__(self, graph: StepGraph, steps: int) -> None:
        self.graph, self.steps = graph, steps
        self._numbers: dict[tuple[object, ...], int] = {}
        self._seen: dict[Instance, tuple[int, ...]] = {}
        self._writer = {v: op.name for op in graph.vertices.values() for v in op.op.writes}
        self._changers = {
            state: sorted(
                (step + op.offset, op.position, op.name, step)
                for op in graph.vertices.values()
                if state in op.op.writes
                for step in range(steps)
            )
            for state in graph.states
        }

    def number(self, *history: object) -> int:
        return self._numbers.setdefault(history, len(self._numbers))

    def inputs(self, op: str) -> list[tuple[str, int]]:
        """What an op looks at: its reads; and the states it changes, whose order it shows."""
        declared = self.graph.vertices[op].op
        reads = [(read.name, read.carry) for read in declared.reads]
        changed = [name for name in declared.writes if name in self.graph.states]
        return [*reads, *((name, 0) for name in changed if (name, 0) not in reads)]

    def sees(self, at: Instance) -> tuple[int, ...]:
        if at not in self._seen:
            self._seen[at] = (-1,)  # an op that needs itself sees nothing sensible
            self._seen[at] = tuple(
                self.state(name, at) if name in self.graph.states else self.value(name, at.step - c)
                for name, c in self.inputs(at.op)
            )
        return self._seen[at]

    def value(self, name: str, version: int) -> int:
        if version < 0 or name not in self._writer:
            return self.number("initial", name)
        return self.wrote(Instance(self._writer[name], version), name)

    def wrote(self, at: Instance, name: str) -> int:
        return self.number("wrote", name, at, self.sees(at))

    def state(self, name: str, at: Instance | None) -> int:
        """The state as `at` finds it (None: at the end)."""
        held = self.number("initial", name)
        for *key, op, step in self._changers[name]:
            if at is not None:
                me = self.graph.vertices[at.op]
                if tuple(key) >= (at.step + me.offset, me.position):
                    break
            held = self.changed(name, held, Instance(op, step))
        return held

    def changed(self, name: str, before: int, by: Instance) -> int:
        return self.number("changed", name, before, by)


# --- unrolled programs ----------------------------------------------------------------------


@dataclass(frozen=True)
class Unrolled:
    """A plan's programs over `steps` steps, with padding iterations before and after."""

    plan: Plan
    steps: int
    padding: int = 4

    @cached_property
    def iterations(self) -> range:
        offsets = [at for program in self.plan.actors.values() for _, at in program]
        return range(min(offsets) - self.padding, self.steps + max(offsets) + self.padding)

    @cached_property
    def offset(self) -> Mapping[str, int]:
        return {op: at for program in self.plan.actors.values() for op, at in program}

    def exists(self, at: Instance) -> bool:
        """Some iteration runs it, be it as padding."""
        return at.step + self.offset[at.op] in self.iterations

    def real(self, at: Instance) -> bool:
        return 0 <= at.step < self.steps

    def program(self, actor: str) -> Iterator[Instance]:
        for t in self.iterations:
            for op, at in self.plan.actors[actor]:
                yield Instance(op, t - at)

    @cached_property
    def waits_of(self) -> Mapping[str, list[Wait]]:
        found: dict[str, list[Wait]] = defaultdict(list)
        for wait in self.plan.waits:
            found[wait.target].append(wait)
        return found

    def awaited(self, at: Instance) -> list[Instance]:
        """What must be done before this instance, by the waits; none before the first iteration."""
        sources = (Instance(w.source, at.step - w.distance) for w in self.waits_of[at.op])
        return [source for source in sources if self.exists(source)]

    def cell(self, name: str, version: int) -> Cell:
        if name in self.plan.graph.states:
            return (name, 0)
        copies = self.plan.slots.get(name)
        return (name, version if copies is None else version % copies)


def padding_for(plan: Plan) -> int:
    """Padding that lets every witness run its course; never less than four iterations."""
    reach = [abs(total) for edge in (*plan.edges, *plan.launch_order) for _, total in edge.witness]
    return max([4, *(r + 3 for r in reach)])


# --- happens-before by enumeration ------------------------------------------------------------


class Unordered(NamedTuple):
    """Two instances that touch one cell and may run in the wrong order."""

    before: Instance
    after: Instance
    cell: Cell


def touches(graph: StepGraph, at: Instance) -> Iterator[tuple[str, int, bool]]:
    """(name, version, writes) of each access of an instance."""
    op = graph.vertices[at.op].op
    for read in op.reads:
        yield read.name, at.step - read.carry, False
    for name in op.writes:
        yield name, at.step, True


def conflicts(unrolled: Unrolled, instances: Iterable[Instance]) -> Iterator[Unordered]:
    """Every pair of instances that must not be exchanged, in the order they must keep.

    Of one cell: the version that comes first is written, then read, then overwritten by the next
    version. Of a state: as in the serial program.
    """
    graph = unrolled.plan.graph
    accesses: dict[Cell, list[tuple[tuple[int, int], Instance, bool]]] = defaultdict(list)
    written = {name for op in graph.vertices.values() for name in op.op.writes}
    for at in instances:
        me = graph.vertices[at.op]
        for name, version, writes in touches(graph, at):
            if name not in written:
                continue
            cell = unrolled.cell(name, version)
            if name in graph.states:
                when = (at.step + me.offset, me.position)
                if graph.states[name].keys is not None:  # what one user does with its keys
                    cell = (f"{name} of {me.op.class_of(name)}", 0)
            else:
                when = (version, 0 if writes else 1)
            accesses[cell].append((when, at, writes))
    for cell, found in accesses.items():
        for when, at, writes in found:
            for then, other, rewrites in found:
                if when < then and (writes or rewrites):
                    yield Unordered(at, other, cell)


class Order:
    """Reachability in the unrolled happens-before graph, as one bit mask per instance."""

    def __init__(self, unrolled: Unrolled) -> None:
        self.unrolled = unrolled
        graph = unrolled.plan.graph
        self.arcs: set[tuple[Instance, Instance]] = set()
        for actor in unrolled.plan.actors:
            program = list(unrolled.program(actor))
            self.arcs.update(pairwise(program))
            for at in program:
                vertex = graph.vertices[at.op]
                if vertex.launch is not None:
                    self.arcs.add((Instance(vertex.launch, at.step), at))
        pending = []
        for actor in unrolled.plan.actors:
            for at in unrolled.program(actor):
                for source in unrolled.awaited(at):
                    if graph.vertices[at.op].side == "host":
                        self.arcs.add((source, at))  # host waits block until it is done
                    else:
                        pending.append((source, at))
        self.stuck = False
        self._close()
        # A stream's wait counts only if its record is enqueued before it.
        while pending and not self.stuck:
            sound = [(u, v) for u, v in pending if self._recorded(u, v)]
            if not sound:
                break
            pending = [pair for pair in pending if pair not in set(sound)]
            self.arcs.update(sound)
            self._close()
        self.unrecorded = pending

    def _recorded(self, source: Instance, target: Instance) -> bool:
        ops = self.unrolled.plan.graph.vertices
        record, enqueue = ops[source.op].launch, ops[target.op].launch
        if record is None or enqueue is None:
            return False  # host work has no event that a stream could wait for
        return self.before(Instance(record, source.step), Instance(enqueue, target.step)) or (
            record == enqueue and source.step <= target.step
        )

    def _close(self) -> None:
        graph: nx.DiGraph[Instance] = nx.DiGraph(sorted(self.arcs))
        self._bit = {at: 1 << index for index, at in enumerate(graph)}
        self._past: dict[Instance, int] = {}
        try:
            for at in nx.topological_sort(graph):
                past = 0
                for source in graph.predecessors(at):
                    past |= self._past[source] | self._bit[source]
                self._past[at] = past
        except nx.NetworkXUnfeasible:
            self.stuck = True

    def before(self, first: Instance, second: Instance) -> bool:
        return bool(self._past.get(second, 0) & self._bit.get(first, 0))


def unordered_pairs(plan: Plan, steps: int = 6, padding: int | None = None) -> list[Unordered]:
    """Every race, and every stream fed in another order than it runs. Empty: race-free.

    A stuck plan (its programs wait for themselves) gives one pair of an instance with itself.
    """
    unrolled = Unrolled(plan, steps, padding_for(plan) if padding is None else padding)
    order = Order(unrolled)
    if order.stuck:
        somewhere = Instance(next(iter(plan.graph.vertices)), 0)
        return [Unordered(somewhere, somewhere, ("stuck", 0))]
    real = [at for actor in plan.actors for at in unrolled.program(actor) if unrolled.real(at)]
    found = [pair for pair in conflicts(unrolled, real) if not order.before(*pair[:2])]
    # At the very ends of the padding nothing comes before or after, so look a little inside.
    near = range(-unrolled.padding // 2, steps + unrolled.padding // 2)
    found += [
        Unordered(u, v, ("unrecorded", 0))
        for u, v in order.unrecorded
        if u.step in near and v.step in near
    ]
    ops = plan.graph.vertices
    for actor in plan.actors:
        program = list(unrolled.program(actor))
        for u, v in pairwise(program):
            first, second = ops[u.op].launch, ops[v.op].launch
            if first is None or second is None:
                continue
            fed = (Instance(first, u.step), Instance(second, v.step))
            if not (u.step in near and v.step in near):
                continue
            if fed[0] != fed[1] and not order.before(*fed):
                found.append(Unordered(*fed, ("launch", 0)))
    return found


def conflict_arcs(unrolled: Unrolled) -> set[tuple[Instance, Instance]]:
    """What conflicts ask of the actors: a host op reaches a device op through its launch; of two
    device ops, the launches must be in order too."""
    everything = [at for actor in unrolled.plan.actors for at in unrolled.program(actor)]
    return _through_launches(unrolled, (pair[:2] for pair in conflicts(unrolled, everything)))


def required_arcs(unrolled: Unrolled) -> set[tuple[Instance, Instance]]:
    """The same, and the launches of neighbours on a stream in their order."""
    ops = unrolled.plan.graph.vertices
    streams = [
        list(unrolled.program(actor))
        for actor, program in unrolled.plan.actors.items()
        if ops[program[0][0]].side == "device"
    ]
    neighbours = (pair for program in streams for pair in pairwise(program))
    return conflict_arcs(unrolled) | _through_launches(unrolled, neighbours)


def _through_launches(
    unrolled: Unrolled, pairs: Iterable[tuple[Instance, Instance]]
) -> set[tuple[Instance, Instance]]:
    ops = unrolled.plan.graph.vertices
    found: set[tuple[Instance, Instance]] = set()
    for before, after in pairs:
        record, enqueue = ops[before.op].launch, ops[after.op].launch
        if enqueue is None:
            found.add((before, after))
        elif record is None:
            if before != (launch := Instance(enqueue, after.step)):
                found.add((before, launch))
        else:
            found.add((before, after))
            if (first := Instance(record, before.step)) != (then := Instance(enqueue, after.step)):
                found.add((first, then))
    return found


def listing_plan(graph: StepGraph) -> Plan:
    """Every actor runs its ops in listing order; slots only where the author fixed them."""
    actors: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for op in graph.vertices.values():
        actors[op.actor].append((op.name, op.offset))
    return Plan(
        graph=graph,
        actors={actor: tuple(program) for actor, program in actors.items()},
        waits=(),
        edges=(),
        launch_order=(),
        slots={name: value.slots for name, value in graph.values.items()},
        period_us=0.0,
        critical_cycle=(),
    )


def has_cycle(graph: StepGraph, steps: int = 14) -> bool:
    """No set of waits can order the graph in listing order, however many slots it is given."""
    unrolled = Unrolled(listing_plan(graph), steps, padding=0)
    arcs = given_arcs(unrolled) | required_arcs(unrolled)
    return not nx.is_directed_acyclic_graph(nx.DiGraph(sorted(arcs)))


def given_arcs(unrolled: Unrolled) -> set[tuple[Instance, Instance]]:
    """What programs and launches order without any wait."""
    found: set[tuple[Instance, Instance]] = set()
    for actor in unrolled.plan.actors:
        program = list(unrolled.program(actor))
        found.update(pairwise(program))
        for at in program:
            launch = unrolled.plan.graph.vertices[at.op].launch
            if launch is not None:
                found.add((Instance(launch, at.step), at))
    return found


Arc = tuple[str, str, int]


def reduced_waits(plan: Plan, steps: int = 5) -> set[Arc]:
    """The arcs of the transitive reduction of the unrolled graph that are not given: the waits.

    Read off in the middle of the window, where the unrolled graph is periodic.
    """
    unrolled = Unrolled(plan, steps, padding=3)
    given = given_arcs(unrolled)
    reduced = nx.transitive_reduction(nx.DiGraph(sorted(given | required_arcs(unrolled))))
    middle = range(steps // 2, steps // 2 + 1)
    return {
        (before.op, after.op, after.step - before.step)
        for before, after in reduced.edges
        if after.step in middle and (before, after) not in given
    }


def needed_arcs(plan: Plan) -> frozenset[Arc]:
    """Every required arc, as op, op and distance; the nearest for each pair of ops."""
    return _nearest(required_arcs(Unrolled(plan, 9, padding=0)))


def _nearest(arcs: Iterable[tuple[Instance, Instance]]) -> frozenset[Arc]:
    least: dict[tuple[str, str], int] = {}
    for before, after in arcs:
        pair = (before.op, after.op)
        distance = after.step - before.step
        least[pair] = min(distance, least.get(pair, distance))
    return frozenset((u, v, d) for (u, v), d in least.items())


def is_implied(plan: Plan, arc: Arc, others: Iterable[Arc]) -> bool:
    """Bellman-Ford over the given arcs and the others: does a path as short as the arc exist?"""
    arcs = [*_given_distances(plan), *others]
    best = {arc[0]: 0}
    for _ in plan.graph.vertices:
        for u, v, d in arcs:
            if u in best and best[u] + d < best.get(v, 10**9):
                best[v] = best[u] + d
    if arc[0] == arc[1]:  # at least once around
        return any(v == arc[1] and u in best and best[u] + d <= arc[2] for u, v, d in arcs)
    return best.get(arc[1], 10**9) <= arc[2]


def _given_distances(plan: Plan) -> set[Arc]:
    """The given arcs as distances, read off the unrolled graph."""
    arcs = given_arcs(Unrolled(plan, 4, padding=1))
    return {(u.op, v.op, v.step - u.step) for u, v in arcs}


def greatest_ratio(plan: Plan, most: int = 5000) -> float | None:
    """The greatest duration / distance over all simple cycles; None if there are too many."""
    least: dict[tuple[str, str], int] = {}
    waits = {(w.source, w.target, w.distance) for w in plan.waits}
    for u, v, d in _given_distances(plan) | waits:
        least[u, v] = min(d, least.get((u, v), d))
    best = 0.0
    cycles = nx.simple_cycles(nx.DiGraph(sorted(least)))
    for number, cycle in enumerate(cycles):
        if number == most:
            return None
        distance = sum(least[pair] for pair in pairwise([*cycle, cycle[0]]))
        best = max(best, sum(plan.costs[op] for op in cycle) / distance)
    return best


# --- orders of one host thread ----------------------------------------------------------------


@dataclass(frozen=True)
class Orders:
    """Every order and offset of the nodes of a graph with one host thread, and what it costs."""

    graph: StepGraph
    costs: Mapping[str, float]
    reach: int = 2  # offsets tried, around the declared one of the first node

    @cached_property
    def _needed(self) -> frozenset[Arc]:
        return _nearest(conflict_arcs(Unrolled(listing_plan(self.graph), 9, padding=0)))

    def programs(self) -> Iterator[list[tuple[Node, int]]]:
        """Nodes with their offsets; an iteration begins with the first listed node."""
        first, *rest = self.graph.nodes
        around = range(first.offset - self.reach, first.offset + self.reach + 1)
        for order in permutations(rest):
            for offsets in product(around, repeat=len(rest)):
                yield [(first, first.offset), *zip(order, offsets, strict=True)]

    def arcs(self, program: Sequence[tuple[Node, int]]) -> list[Arc]:
        """The thread's program, the streams' in the order of the launches, and what is needed."""
        lines: dict[str, list[tuple[str, int]]] = defaultdict(list)
        found = list(self._needed)
        for node, at in program:
            lines[node.actor] += [(op, at) for op in node.op_names("host")]
            if node.device:
                lines[str(node.stream)] += [(op, at) for op in node.op_names("device")]
                found += [(node.op_names("host")[-1], op, 0) for op in node.op_names("device")]
        for line in lines.values():
            again = (line[0][0], line[0][1] - 1)
            found += [(u, v, at - then) for (u, at), (v, then) in pairwise([*line, again])]
        return found

    def longest(self, candidates: Sequence[Sequence[Arc]], period: float) -> FloatArray:
        """Longest paths for each candidate: an arc is its source's duration less its periods."""
        index = {op: number for number, op in enumerate(self.graph.vertices)}
        table = np.full((len(candidates), len(index), len(index)), -np.inf)
        for one, arcs in zip(table, candidates, strict=True):
            for u, v, d in arcs:
                i, j = index[u], index[v]
                one[i, j] = max(one[i, j], self.costs[u] - d * period)
        for k in range(len(index)):
            np.maximum(table, table[:, :, k, None] + table[:, None, k, :], out=table)
            np.minimum(table, 1e12, out=table)  # a growing cycle doubles at each turn
        return table

    def keeps_up(self, candidates: Sequence[Sequence[Arc]], period: float) -> BoolArray:
        """Which candidates have no cycle that needs a longer period."""
        cycles = np.diagonal(self.longest(candidates, period), axis1=1, axis2=2)
        result: BoolArray = np.asarray((cycles <= 1e-9).all(axis=1))
        return result

    def is_possible(self, candidates: Sequence[Sequence[Arc]]) -> BoolArray:
        """No cycle of distance ≤ 0: then a period above the sum of all durations is enough."""
        return self.keeps_up(candidates, 1.0 + 2 * sum(self.costs.values()))

    def latency(self, candidates: Sequence[Sequence[Arc]], period: float) -> FloatArray:
        """Of one step, from the start of any op to the end of any other."""
        table = self.longest(candidates, period)
        places = np.arange(len(self.graph.vertices))
        table[:, places, places] = 0.0
        ends = table + np.array([self.costs[op] for op in self.graph.vertices])
        result: FloatArray = ends.max(axis=(1, 2))
        return result


def issued_as_one(graph: StepGraph) -> list[tuple[str, str]]:
    """Neighbours of the listing of which the second only launches, from the same place."""
    if graph.launches == "apart":
        return []
    return [
        (first.name, then.name)
        for first, then in pairwise(graph.nodes)
        if first.device
        and then.device
        and [(op.reads, op.writes) for op in then.host] == [((), ())]
        and (first.actor, first.offset) == (then.actor, then.offset)
    ]


def keeps_together(graph: StepGraph, program: Sequence[tuple[Node, int]]) -> bool:
    """Whether the second of each such two comes right after the first, for the same step."""
    beside = {(u.name, v.name) for (u, at), (v, then) in pairwise(program) if at == then}
    return beside.issuperset(issued_as_one(graph))


# --- interleavings ----------------------------------------------------------------------------

Choose = Callable[[Sequence[str]], str]


class Machine:
    """The actors at work. A move is: an actor begins its next op, or ends the one it is in.

    Waits that are met and padding are passed on the way; both are invisible to memory, but a
    padding launch still enqueues, and a padding op still records.
    """

    def __init__(self, unrolled: Unrolled, meaning: Meaning) -> None:
        self.unrolled, self.meaning = unrolled, meaning
        self.graph = unrolled.plan.graph
        ops = self.graph.vertices
        self.threads = {
            actor: list(unrolled.program(actor))
            for actor, program in unrolled.plan.actors.items()
            if ops[program[0][0]].side == "host"
        }
        self.device_ops = {
            node.op_names("host")[-1]: node.op_names("device")
            for node in self.graph.nodes
            if node.device
        }
        streams = {op.actor for op in ops.values() if op.side == "device"}
        # A queue entry is an instance, with the recorded instances its waits have captured.
        self.queues: dict[str, list[tuple[Instance, tuple[Instance, ...]]]] = {
            stream: [] for stream in sorted(streams)
        }
        self.at = dict.fromkeys([*self.threads, *self.queues], 0)
        self.busy = dict.fromkeys(self.at, False)
        self.recorded: set[Instance] = set()
        self.done: set[Instance] = set()
        self.memory: dict[Cell, int] = {}
        self.wrong: list[Wrong] = []

    def copy(self) -> Machine:
        other = Machine.__new__(Machine)
        other.__dict__.update(self.__dict__)
        other.queues = {stream: list(queue) for stream, queue in self.queues.items()}
        other.at, other.busy = dict(self.at), dict(self.busy)
        other.recorded, other.done = set(self.recorded), set(self.done)
        other.memory, other.wrong = dict(self.memory), list(self.wrong)
        return other

    def key(self) -> tuple[object, ...]:
        return (
            tuple(self.at.values()),
            tuple(self.busy.values()),
            tuple(tuple(queue) for queue in self.queues.values()),
            tuple(sorted(self.memory.items())),
        )

    def _next(self, actor: str) -> tuple[Instance, Iterable[Instance]] | None:
        if actor in self.threads:
            program = self.threads[actor]
            if self.at[actor] == len(program):
                return None
            at = program[self.at[actor]]
            return at, self.unrolled.awaited(at)
        queue = self.queues[actor]
        return queue[self.at[actor]] if self.at[actor] < len(queue) else None

    def ready(self) -> list[str]:
        """Actors that can move."""
        return [actor for actor in self.at if self.busy[actor] or self._can_begin(actor)]

    def _can_begin(self, actor: str) -> bool:
        upcoming = self._next(actor)
        return upcoming is not None and all(source in self.done for source in upcoming[1])

    def is_quiet(self, actor: str) -> bool:
        """Its next move is padding that others can only wait for: no order of it matters."""
        upcoming = self._next(actor)
        if upcoming is None or self.unrolled.real(upcoming[0]):
            return False
        fed = self.device_ops.get(upcoming[0].op, ())
        streams = {self.graph.vertices[op].actor for op in fed}
        feeders = {
            node.actor for node in self.graph.nodes if node.device and node.stream in streams
        }
        return len(feeders) < 2 and not any(self.unrolled.waits_of.get(op) for op in fed)

    def move(self, actor: str) -> None:
        upcoming = self._next(actor)
        assert upcoming is not None, "only ready actors move"
        at = upcoming[0]
        if not self.unrolled.real(at):
            self._finish(actor, at)
        elif self.busy[actor]:
            self._end(at)
            self.busy[actor] = False
            self._finish(actor, at)
        else:
            self._begin(at)
            self.busy[actor] = True

    def _finish(self, actor: str, at: Instance) -> None:
        self.at[actor] += 1
        self.done.add(at)
        for op in self.device_ops.get(at.op, ()):
            self._enqueue(Instance(op, at.step))

    def _enqueue(self, at: Instance) -> None:
        captured = []
        for source in self.unrolled.awaited(at):
            if source in self.recorded:
                captured.append(source)
            else:
                what = f"enqueued before the record of {source}: the wait does nothing"
                self.wrong.append(Wrong("unrecorded", at, what))
        self.queues[self.graph.vertices[at.op].actor].append((at, tuple(captured)))
        self.recorded.add(at)

    def _held(self, name: str, version: int) -> int:
        initial = self.meaning.number("initial", name)
        if name in self.graph.states or version < 0 or name not in self.meaning._writer:
            return self.memory.get(self.unrolled.cell(name, version), initial)
        unwritten = initial if self.unrolled.plan.slots.get(name) is not None else -2
        return self.memory.get(self.unrolled.cell(name, version), unwritten)

    def _look(self, at: Instance, when: str, skip: Iterable[str] = ()) -> None:
        expected = self.meaning.sees(at)
        for (name, carry), right in zip(self.meaning.inputs(at.op), expected, strict=True):
            if name not in skip and self._held(name, at.step - carry) != right:
                self.wrong.append(Wrong("saw", at, f"a wrong {name}@-{carry} at its {when}"))

    def _begin(self, at: Instance) -> None:
        self._look(at, "begin")
        for name in self.graph.vertices[at.op].op.writes:
            self.memory[self.unrolled.cell(name, at.step)] = self.meaning.number("torn", name, at)

    def _end(self, at: Instance) -> None:
        writes = self.graph.vertices[at.op].op.writes
        self._look(at, "end", skip=[name for name in writes if name in self.graph.states])
        for name in writes:
            cell = self.unrolled.cell(name, at.step)
            if self.memory[cell] != self.meaning.number("torn", name, at):
                self.wrong.append(Wrong("saw", at, f"another write of {name} during its own"))
            if name in self.graph.states:
                before = self.meaning.state(name, at)
                self.memory[cell] = self.meaning.changed(name, before, at)
            else:
                self.memory[cell] = self.meaning.wrote(at, name)

    def finish(self) -> None:
        """Nobody can move any more: is everything done, and left as it must be?"""
        ops = self.graph.vertices
        for op in ops:
            for step in range(self.unrolled.steps):
                if Instance(op, step) not in self.done:
                    self.wrong.append(Wrong("stuck", Instance(op, step), "it never ran"))
        for state in self.graph.states:
            if not self.wrong and self._held(state, 0) != self.meaning.state(state, None):
                self.wrong.append(Wrong("final", None, f"state {state} was left wrong"))


def run_schedule(plan: Plan, choose: Choose, steps: int = 4) -> list[Wrong]:
    """One interleaving: `choose` picks who moves among the actors that can."""
    unrolled = Unrolled(plan, steps, padding_for(plan))
    machine = Machine(unrolled, Meaning(plan.graph, steps))
    while (ready := machine.ready()) and not machine.wrong:
        machine.move(choose(ready))
    machine.finish()
    return machine.wrong


def uniform(random: Random) -> Choose:
    return lambda ready: ready[random.randrange(len(ready))]


def by_priority(random: Random, changes: int = 3, moves: int = 150) -> Choose:
    """Always the highest priority; at a few random moves the running actor falls to the lowest.

    After Burckhardt et al. 2010, "A randomized scheduler with probabilistic guarantees of
    finding bugs": a bug of depth d needs only d well-placed decisions.
    """
    rank: dict[str, float] = {}
    when = {random.randrange(moves) for _ in range(changes)}
    count = 0

    def choose(ready: Sequence[str]) -> str:
        nonlocal count
        for actor in ready:
            rank.setdefault(actor, random.random())
        chosen = max(ready, key=lambda actor: rank[actor])
        if count in when:
            rank[chosen] = min(rank.values()) - 1
        count += 1
        return chosen

    return choose


def run_some_schedules(plan: Plan, seed: int, schedules: int, steps: int = 4) -> list[Wrong]:
    """Seeded random schedules, half uniform, half by priority; the first that goes wrong."""
    for index in range(schedules):
        random = Random(f"{seed}/{index}")
        choose = uniform(random) if index % 2 else by_priority(random)
        wrong = run_schedule(plan, choose, steps)
        if wrong:
            return wrong
    return []


class TooMany(Exception):
    """There are more states than the search may visit."""


def run_exhaustively(plan: Plan, steps: int = 2, most: int = 20_000) -> list[Wrong]:
    """Every interleaving (states are visited once); the first that goes wrong, or nothing."""
    unrolled = Unrolled(plan, steps, padding_for(plan))
    stack = [Machine(unrolled, Meaning(plan.graph, steps))]
    seen: set[tuple[object, ...]] = set()
    while stack:
        machine = stack.pop()
        ready = machine.ready()
        # What leaves memory alone and can only help others is done at once, for all of them.
        quiet = next((actor for actor in ready if machine.is_quiet(actor)), None)
        if not ready:
            machine.finish()
        if machine.wrong:
            return machine.wrong
        for actor in ready if quiet is None else [quiet]:
            later = machine.copy()
            later.move(actor)
            if later.wrong:
                return later.wrong
            key = later.key()
            if key not in seen:
                seen.add(key)
                stack.append(later)
        if len(seen) > most:
            raise TooMany(f"more than {most} states")
    return []
