"""Rates, by counting: every firing in its place, each version that it reads and overwrites.

The verifier's own derivation from the declared graph. It shares nothing with `rates.py` but the
declarations: it lists the firings of a number of steps one after another, counts the versions that
they write, and looks up who wrote what a firing finds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import chain, groupby
from typing import NamedTuple

from ..node import Node, Read, Side
from ..plan import Plan
from ..step_graph import StepGraph
from ..violation import Violation
from .order import Need, Touch, needs_without_rates, state_needs, touches_without_rates


class Fires(NamedTuple):
    """The `turn`-th firing of a node in a step; the steps count from that before all others."""

    step: int
    turn: int


@dataclass(frozen=True)
class Counted:
    """The firings of a plan's declared graph, from some cycles before the first one to some after.

    Holds where `wrong_firings` finds nothing.
    """

    plan: Plan
    declared: StepGraph

    @cached_property
    def cycle(self) -> int:
        return self.plan.graph.cycle

    @cached_property
    def nodes(self) -> dict[tuple[str, int, int], Node]:
        """The unrolled node of each firing of a cycle."""
        unrolled = [node for node in self.plan.graph.nodes if node.firing is not None]
        return {(n.firing.node, n.firing.step, n.firing.turn): n for n in unrolled if n.firing}

    @cached_property
    def span(self) -> int:
        """Steps to look at on both sides: as far as carries and slots reach."""
        carries = [r.carry for v in self.declared.vertices.values() for r in v.op.reads]
        slots = [count for count in self.plan.slots.values() if count is not None]
        return self.cycle * (2 + max([0, *carries, *slots]))

    def fires(self, node: Node, first: int, last: int) -> list[Fires]:
        """The firings of a node in steps `first` to `last`."""
        steps = [s for s in range(first, last + 1) if (s - node.first) % node.every == 0]
        return [Fires(step, turn) for step in steps for turn in range(node.rate)]

    @cached_property
    def writers(self) -> dict[str, Node]:
        return {
            name: vertex.node
            for vertex in self.declared.vertices.values()
            for name in vertex.op.writes
            if name in self.declared.values
        }

    @cached_property
    def versions(self) -> dict[str, dict[int, Fires]]:
        """By value the firing that wrote each version; version 0 is the first from step 0 on."""
        found = {}
        for name, node in self.writers.items():
            wrote = self.fires(node, -self.span, self.span)
            before = sum(each.step < 0 for each in wrote)
            found[name] = {place - before: each for place, each in enumerate(wrote)}
        return found

    def finds(self, node: Node, at: Fires, read: Read) -> int:
        """The version that a firing reads: the newest begun when its part of the step ends."""
        writer = self.writers[read.name]
        if read.firing is not None:
            asked = Fires(at.step - read.carry, read.firing)
            return next(n for n, by in self.versions[read.name].items() if by == asked)
        alike = node.rate == writer.rate and node.rate > 1
        end = at.step + Fraction(at.turn + 1, node.rate) - (0 if alike else read.carry)
        begun = (
            version
            for version, wrote in self.versions[read.name].items()
            if wrote.step + Fraction(wrote.turn, writer.rate) < end
        )
        return max(begun) - (read.carry if alike else 0)

    def name(self, value: str, version: int) -> str:
        """What the version's value is called in the unrolled graph."""
        number = len(self.fires(self.writers[value], 0, self.cycle - 1))
        return value if number == 1 else f"{value}#{version % number}"

    def op(self, value: str, version: int) -> tuple[str, int]:
        """The op that writes the version, and in which cycle."""
        wrote, node = self.versions[value][version], self.writers[value]
        here = next(v for v in self.declared.vertices.values() if value in v.op.writes)
        side: Side = here.side
        place = node.op_names(side).index(here.name)
        cycle, step = divmod(wrote.step, self.cycle)
        return self.nodes[node.name, step, wrote.turn].op_names(side)[place], cycle


def counted(plan: Plan) -> Counted | None:
    """None for a graph without rates."""
    return None if plan.graph.declared is None else Counted(plan, plan.graph.declared)


def needs_of(plan: Plan) -> Iterator[Need]:
    """Every required ordering, from the declared accesses alone."""
    firings = counted(plan)
    yield from needs_without_rates(plan) if firings is None else _needs(firings)


def _needs(firings: Counted) -> Iterator[Need]:
    """Of the ops of a cycle with those of others."""
    yield from _read_needs(firings)
    for value, node in firings.writers.items():
        if (slots := _slots(firings, value)) is None:
            continue
        of_cycle = len(firings.fires(node, 0, firings.cycle - 1))
        for version in range(of_cycle):
            wrote, _ = firings.op(value, version)
            again, cycle = firings.op(value, version + slots)
            yield Need("WAW", firings.name(value, version), 0, wrote, again, cycle)
    for state in firings.declared.states:
        yield from state_needs(state, list(_touches(firings, state)), firings.cycle)


def _slots(firings: Counted, value: str) -> int | None:
    return firings.plan.slots.get(firings.name(value, 0))


def _read_needs(firings: Counted) -> Iterator[Need]:
    for node in firings.declared.nodes:
        for at in firings.fires(node, 0, firings.cycle - 1):
            for op, read in _reads(firings, node, at):
                if read.name not in firings.writers:
                    continue
                version = firings.finds(node, at, read)
                name = firings.name(read.name, version)
                wrote, cycle = firings.op(read.name, version)
                yield Need("RAW", name, -cycle, wrote, op, -cycle)
                if (slots := _slots(firings, read.name)) is not None:
                    again, later = firings.op(read.name, version + slots)
                    yield Need("WAR", name, -cycle, op, again, later)


def _reads(firings: Counted, node: Node, at: Fires) -> Iterator[tuple[str, Read]]:
    """The reads of values of one firing, each with its op."""
    fired = firings.nodes[node.name, at.step % firings.cycle, at.turn]
    for ops, names in (
        (node.host, fired.op_names("host")),
        (node.device, fired.op_names("device") if node.device else ()),
    ):
        for op, name in zip(ops, names, strict=True):
            yield from ((name, read) for read in op.reads if read.name in firings.declared.values)


def touches_of(plan: Plan, state: str) -> Iterator[Touch]:
    """Who accesses a state, by the declared graph; of one op a read comes first."""
    firings = counted(plan)
    return touches_without_rates(plan, state) if firings is None else _touches(firings, state)


def _touches(firings: Counted, state: str) -> Iterator[Touch]:
    places = 0  # in the loop of a step: loop, turn, node, op
    for rate, nodes in groupby(firings.declared.nodes, key=lambda node: node.rate):
        loop = places
        for node in nodes:
            places += 1
            for at in firings.fires(node, 0, firings.cycle - 1):
                fired = firings.nodes[node.name, at.step, at.turn]
                names = (*fired.op_names("host"), *(fired.op_names("device") * bool(node.device)))
                for index, (op, name) in enumerate(
                    zip((*node.host, *node.device), names, strict=True)
                ):
                    place = (loop if rate > 1 else places - 1, at.turn, places, index)
                    where = (at.step + node.offset, place)
                    if any(read.name == state for read in op.reads):
                        yield Touch(name, op.class_of(state), "R", *where)
                    if state in op.writes:
                        yield Touch(name, op.class_of(state), "W", *where)


def wrong_firings(plan: Plan) -> list[Violation]:
    """Firings, reads, slots or places that the declared rates do not have. Raises nothing."""
    firings = counted(plan)
    if firings is None:
        return [
            _wrong(f"node {node.name!r} has a rate, and its graph is not unrolled")
            for node in plan.graph.nodes
            if node.rate != 1 or node.every != 1 or node.firing is not None
        ]
    if any(firings.cycle % node.every for node in firings.declared.nodes):
        return [_wrong(f"the rates do not recur after a cycle of {firings.cycle} steps")]
    missing = list(_missing(firings))
    return missing or [*_other_nodes(firings), *_other_slots(firings)]


def _wrong(problem: str) -> Violation:
    return Violation("SW-RATE", problem)


def _missing(firings: Counted) -> Iterator[Violation]:
    expected = {
        (node.name, *at)
        for node in firings.declared.nodes
        for at in firings.fires(node, 0, firings.cycle - 1)
    }
    for name, step, turn in sorted(expected - firings.nodes.keys()):
        yield _wrong(f"node {name!r} does not fire for the {turn + 1}. time in step {step}")
    for name, step, turn in sorted(firings.nodes.keys() - expected):
        yield _wrong(f"node {name!r} fires for the {turn + 1}. time in step {step}, undeclared")
    if len(firings.nodes) < len(firings.plan.graph.nodes):
        yield _wrong("a node of the graph is no firing of its own")


def _other_nodes(firings: Counted) -> Iterator[Violation]:
    """Unrolled nodes that are not what their declared node is."""
    for node in firings.declared.nodes:
        for at in firings.fires(node, 0, firings.cycle - 1):
            fired = firings.nodes[node.name, at.step, at.turn]
            offset = (at.step + node.offset) // firings.cycle
            if (fired.actor, fired.stream, fired.offset) != (node.actor, node.stream, offset):
                yield _wrong(f"node {fired.name!r} runs elsewhere than {node.name!r} does")
            if [op.phase for op in chain(fired.host, fired.device)] != [
                op.phase for op in chain(node.host, node.device)
            ] or len(fired.host) != len(node.host):
                yield _wrong(f"node {fired.name!r} has other ops than {node.name!r}")
                continue
            for op, now in zip(
                chain(node.host, node.device), chain(fired.host, fired.device), strict=True
            ):
                if set(now.reads) != {_expected(firings, node, at, read) for read in op.reads}:
                    yield _wrong(f"node {fired.name!r} reads other versions than declared")
                if now.writes != tuple(_written(firings, node, at, name) for name in op.writes):
                    yield _wrong(f"node {fired.name!r} writes other versions than declared")
                if now.classes != op.classes:
                    yield _wrong(f"node {fired.name!r} has other users of keys than declared")


def _expected(firings: Counted, node: Node, at: Fires, read: Read) -> Read:
    if read.name not in firings.writers:
        return read
    version = firings.finds(node, at, read)
    return Read(firings.name(read.name, version), -firings.op(read.name, version)[1])


def _written(firings: Counted, node: Node, at: Fires, name: str) -> str:
    if name not in firings.writers:
        return name
    wrote = firings.versions[name].items()
    return firings.name(name, next(version for version, by in wrote if by == at))


def _other_slots(firings: Counted) -> Iterator[Violation]:
    """Versions of one value share its slots, in turn."""
    values, slots = firings.plan.graph.values, firings.plan.slots
    for name, node in firings.writers.items():
        number = len(firings.fires(node, 0, firings.cycle - 1))
        for index in range(number):
            value = values.get(firings.name(name, index))
            turn = (
                (value.turn.value, value.turn.index, value.turn.of)
                if value and value.turn
                else None
            )
            if value is None or turn != (None if number == 1 else (name, index, number)):
                yield _wrong(f"version {index} of value {name!r} has not its turn of the slots")
            elif slots.get(value.name) != slots.get(firings.name(name, 0)):
                yield _wrong(f"value {value.name!r} has not the slots that it shares with others")
