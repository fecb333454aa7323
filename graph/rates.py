"""Rates: nodes that fire several times in a step, or once in several steps.

A drafter that runs three passes has `rate=3`; a node that collects statistics in every fourth step
has `every=4`. This is cyclo-static dataflow (Bilsen et al. 1996) with named versions in place of
queues. Such a graph is *unrolled*: its *cycle* is the least number of steps after which everything
recurs, and each firing of a cycle becomes a node of its own, in a graph one step of which is a
cycle. That graph has no rates, so the whole theory holds for it.

- Nodes of one rate that are listed one after another are a loop: they fire in turn.
- A reader finds the newest version that there is in its step, up to the same part of the step where
  both fire several times; with a carry, the newest of so many steps before. Between nodes of one
  rate a carry counts firings: `drafts@-1` is what the firing before wrote. `drafts#0` is what the
  first firing of the step wrote.
- Version n of a value is in slot n mod K, whichever firing writes it.

`u` of several firings is called `u#0`, `u#1`, …, from the first of a cycle on; so are the values
that it writes. What fires once in a cycle keeps its name.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .arguments import whole
from .errors import GraphError
from .node import Firing, Node, Op, OpContext, Read, Run, State, Turn, Value
from .pieces import Pieces
from .ranks import FIRING, declared_name
from .step_graph import StepGraph

MAX_CYCLE = 64  # steps
MAX_FIRINGS = 1024  # in a cycle


def has_rates(graph: StepGraph) -> bool:
    return any(node.rate != 1 or node.every != 1 for node in graph.nodes)


def firings(node: Node, cycle: int) -> int:
    """How often a node fires in a cycle."""
    return node.rate * cycle // node.every


def check_rates(graph: StepGraph) -> None:
    """Raise a `GraphError` for the first rate that makes no sense."""
    for node in graph.nodes:
        where = f"node {node.name!r}"
        whole(where, "rate", node.rate, 1, MAX_FIRINGS, code="SW-RATE")
        whole(where, "every", node.every, 1, MAX_CYCLE, code="SW-RATE")
        whole(where, "first", node.first, 0, node.every - 1, code="SW-RATE")
        problem = None
        if node.rate > 1 and node.every > 1:
            problem = "has a rate and fires only in some steps. Choose one of the two"
        elif graph.ranks and (node.rate > 1 or node.every > 1):
            problem = "has a rate, which a graph of several ranks cannot have yet. Drop it"
        if problem:
            raise GraphError(f"{where} {problem}.", code="SW-RATE", line=node.line)
    _check_firings(graph)
    _check_turn_names(graph)
    for vertex in graph.vertices.values() if has_rates(graph) else ():
        for name in vertex.op.writes:
            if name in graph.values and graph.values[name].allocate is not None:
                raise GraphError(
                    f"value {name!r} has buffers of its own (`allocate`), which a graph with rates "
                    "cannot have yet. Publish new data in each firing.",
                    code="SW-RATE",
                    line=vertex.node.line,
                )
    for state in graph.states.values() if has_rates(graph) else ():
        if state.leases:
            raise GraphError(
                f"state {state.name!r} has pinned leases, which count steps; where nodes have "
                "rates, keys are handed on after whole cycles. Leave the pins out.",
                code="SW-RATE",
                line=state.line,
            )
    cycle = math.lcm(*(node.every for node in graph.nodes))
    number = sum(firings(node, cycle) for node in graph.nodes)
    if cycle > MAX_CYCLE or number > MAX_FIRINGS:
        raise GraphError(
            f"{graph.name}: its rates recur after {cycle} steps with {number} firings; at most "
            f"{MAX_CYCLE} and {MAX_FIRINGS} are planned. Give `every` of one node a multiple of "
            "that of another.",
            code="SW-RATE",
        )


def _check_turn_names(graph: StepGraph) -> None:
    """Raise a `GraphError` for a name that a firing, or what it writes, is called by as well."""
    if not has_rates(graph):
        return
    named: list[Node | Value | State] = [
        *graph.nodes,
        *graph.values.values(),
        *graph.states.values(),
    ]
    declared = {each.name for each in named}
    for each in named:
        if not FIRING.search(each.name):
            continue
        stem, _, index = each.name.rpartition("#")
        if index.isdecimal() and stem in declared:
            raise GraphError(
                f"{each.name!r} is what firing {index} of {stem!r} is called, or what it writes, "
                "where nodes have rates. Rename one.",
                code="SW-DUPLICATE",
                line=each.line,
            )
        raise GraphError(
            f"{each.name!r} has a number after '#', by which firings are called where nodes have "
            "rates. Rename it.",
            code="SW-ARGUMENT",
            line=each.line,
        )


def _check_firings(graph: StepGraph) -> None:
    """Raise a `GraphError` for a read of a firing that there is not."""
    rates = {name: v.node.rate for v in graph.vertices.values() for name in v.op.writes}
    for vertex in graph.vertices.values():
        for read in vertex.op.reads:
            if read.firing is None:
                continue
            rate = 1 if read.name in graph.states else rates.get(read.name, 1)
            if rate > 1 and 0 <= read.firing < rate:
                continue
            some = f"fires {rate} times, from #0 on" if rate > 1 else "does not fire several times"
            raise GraphError(
                f"node {vertex.node.name!r}: {vertex.name!r} reads {str(read)!r}, but what writes "
                f"{read.name!r} {some}. Read the name alone for the newest version.",
                code="SW-RATE",
                line=vertex.node.line,
            )


def unrolled(graph: StepGraph) -> StepGraph:
    """The graph whose steps are the cycles of a valid graph, its nodes the firings of a cycle."""
    cycle = math.lcm(*(node.every for node in graph.nodes))
    versions = _Versions.of(graph, cycle)
    placed = [
        (((step + node.offset) % cycle, loop, turn, place), versions.fired(node, step, turn))
        for place, (loop, node) in enumerate(zip(_loops(graph.nodes), graph.nodes, strict=True))
        for step in range(node.first, cycle, node.every)
        for turn in range(node.rate)
    ]
    return replace(
        graph,
        nodes=tuple(node for _, node in sorted(placed, key=lambda each: each[0])),
        values={v.name: v for value in graph.values.values() for v in versions.of_value(value)},
        declared=graph,
        cycle=cycle,
    )


def _loops(nodes: Sequence[Node]) -> list[int]:
    """For each node the place of the first node of its loop; its own, where it is in none."""
    found: list[int] = []
    for place, node in enumerate(nodes):
        goes_on = place > 0 and node.rate == nodes[place - 1].rate > 1
        found.append(found[-1] if goes_on else place)
    return found


@dataclass(frozen=True)
class _Versions:
    """Who writes which version of a cycle."""

    graph: StepGraph
    cycle: int
    writers: Mapping[str, Node]

    @staticmethod
    def of(graph: StepGraph, cycle: int) -> _Versions:
        vertices = graph.vertices.values()
        wrote = {name: v.node for v in vertices for name in v.op.writes if name in graph.values}
        return _Versions(graph, cycle, wrote)

    def of_value(self, value: Value) -> Iterator[Value]:
        """The unrolled values: one for each version of a cycle."""
        writer = self.writers.get(value.name)
        number = 1 if writer is None else firings(writer, self.cycle)
        for index in range(number):
            turn = Turn(value.name, index, number)
            yield replace(value, name=turn.name(index), turn=turn) if number > 1 else value

    def fired(self, node: Node, step: int, turn: int) -> Node:
        """The node of one firing."""
        number = firings(node, self.cycle)
        index = node.rate * (step // node.every) + turn
        return replace(
            node,
            name=f"{node.name}#{index}" if number > 1 else node.name,
            host=tuple(self._op(op, node, step, turn) for op in node.host),
            device=tuple(self._op(op, node, step, turn) for op in node.device),
            offset=(step + node.offset) // self.cycle,
            rate=1,
            every=1,
            first=0,
            firing=Firing(node.name, step, turn),
        )

    def _op(self, op: Op, node: Node, step: int, turn: int) -> Op:
        found = {read: self._read(read, node, step, turn) for read in op.reads}
        writes = {name: self._written(name, node, step, turn) for name in op.writes}
        reads = {str(read): str(now) for read, now in found.items()}
        for read, now in sorted(found.items(), key=lambda each: -each[0].carry):
            reads[read.name] = str(now)  # the bare name means the nearest version
        run = None
        if op.run is not None:
            run = _fired(op.run, _Names(reads, writes), Firing(node.name, step, turn), self.cycle)
        unique = tuple(dict.fromkeys(found.values()))
        return replace(op, reads=unique, writes=tuple(writes.values()), run=run)

    def _read(self, read: Read, node: Node, step: int, turn: int) -> Read:
        """The version that a firing reads, by the first cycle."""
        writer = self.writers.get(read.name)
        if writer is None:
            return read
        loop = node.rate == writer.rate > 1 and read.firing is None
        at = step if loop else step - read.carry
        if writer.every > 1:
            newest = (at - writer.first) // writer.every
        elif read.firing is not None:
            newest = writer.rate * at + read.firing
        else:
            begun = -((turn + 1) * writer.rate // -node.rate)  # of this step, rounded up
            newest = writer.rate * at + begun - 1 - (read.carry if loop else 0)
        number = firings(writer, self.cycle)
        back, index = divmod(newest, number)
        return Read(f"{read.name}#{index}" if number > 1 else read.name, -back)

    def _written(self, name: str, node: Node, step: int, turn: int) -> str:
        if name in self.graph.states or firings(node, self.cycle) == 1:
            return name
        return f"{name}#{node.rate * (step // node.every) + turn}"


@dataclass(frozen=True)
class _Names:
    """What an op's unrolled accesses are called, by their declared names."""

    reads: Mapping[str, str]
    writes: Mapping[str, str]


@dataclass(frozen=True)
class FiringContext:
    """What the function of a declared op is given when one of its firings runs."""

    context: OpContext
    names: _Names
    fires: Firing
    cycle: int

    @property
    def step(self) -> int:
        return self.cycle * self.context.step + self.fires.step

    @property
    def firing(self) -> int:
        return self.fires.turn

    @property
    def waited_s(self) -> float:
        return self.context.waited_s

    @property
    def pieces(self) -> Pieces | None:
        return self.context.pieces

    def read(self, name: str) -> Any:
        return self.context.read(self.names.reads.get(name, name))

    def buffer(self, name: str) -> Any:
        return self.context.buffer(self.names.writes.get(name, name))

    def write(self, name: str, datum: Any) -> None:
        self.context.write(self.names.writes.get(name, name), datum)

    def state(self, name: str) -> Any:
        return self.context.state(name)

    def stop(self) -> None:
        """Start no cycle after the one of this step."""
        self.context.stop()


def _fired(run: Run, names: _Names, fires: Firing, cycle: int) -> Run:
    def fire(context: OpContext) -> None:
        run(FiringContext(context, names, fires, cycle))

    return fire


def costs_by_firing(flat: StepGraph, costs: Mapping[str, float]) -> dict[str, float]:
    """Costs by op of the declared graph or of one firing, as costs by op of the unrolled graph.

    Names that are neither stay.
    """
    declared = flat.declared.vertices if flat.declared else {}
    found = {name: us for name, us in costs.items() if name not in declared}
    for op in flat.vertices:
        us = costs.get(op, costs.get(declared_name(flat, op)))
        if us is not None:
            found[op] = us
    return found


def slots_by_firing(flat: StepGraph, slots: Mapping[str, int]) -> dict[str, int]:
    """Slots by value of the graph, as slots by value of the unrolled graph: they share them."""
    found = dict(slots)
    for name, value in flat.values.items():
        if value.turn is not None and value.turn.value in slots:
            found[name] = slots[value.turn.value]
            found.pop(value.turn.value, None)
    return found


def without_rates(graph: StepGraph) -> StepGraph | None:
    """Each node once a step, as one would write it without rates: all passes one op, all steps.

    To compare a plan with. None where passes of several nodes alternate, so that no order of whole
    nodes does the same.
    """

    wrote = {name: v.node for v in graph.vertices.values() for name in v.op.writes}
    if _alternate(graph, wrote):
        return None

    def whole_steps(node: Node, read: Read) -> Read:
        writer = wrote.get(read.name, node)
        if read.firing is not None or node.rate == 1 or node.rate != writer.rate:
            return Read(read.name, read.carry)
        # Of what it writes itself it finds, before its first pass, that of the step before.
        own = writer.name == node.name
        return Read(read.name, (read.carry + own * (writer.rate - 1)) // writer.rate)

    def once(node: Node) -> Node:
        def all_passes(op: Op) -> Op:
            us = None if op.cost_us is None else op.cost_us * node.rate
            reads = tuple(
                dict.fromkeys(
                    read if read.name in graph.states else whole_steps(node, read)
                    for read in op.reads
                )
            )
            return replace(op, cost_us=us, reads=reads)

        return replace(
            node,
            host=tuple(map(all_passes, node.host)),
            device=tuple(map(all_passes, node.device)),
            rate=1,
            every=1,
            first=0,
        )

    return replace(graph, nodes=tuple(map(once, graph.nodes)))


def _alternate(graph: StepGraph, wrote: Mapping[str, Node]) -> bool:
    """Whether a node of a loop reads what a later one of it has written a firing before."""
    place = {node.name: index for index, node in enumerate(graph.nodes)}
    return any(
        vertex.node.rate > 1
        and read.name in graph.values
        and (writer := wrote.get(read.name)) is not None
        and writer.rate == vertex.node.rate
        and place[writer.name] > place[vertex.node.name]
        for vertex in graph.vertices.values()
        for read in vertex.op.reads
    )
