"""Brute force for waits that depend on modes: whole words of modes, run by run.

It knows programs, launches, waits, cells and what modes say of accesses, and neither a path nor
what is known of a step's mode. A run of one word is unrolled with the waits that take place in it;
every two accesses of one cell that are made in it must be in the order of the serial program.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stepweave.graph.plan import Plan

from .oracle import Cell, Instance, Order, Unordered, Unrolled, padding_for

Touch = tuple[tuple[int, int], Instance, bool]  # when by the serial program, who, whether it writes


@dataclass(frozen=True)
class InModes(Unrolled):
    """A plan's programs over the steps of a word."""

    word: Sequence[str] = ()

    def awaited(self, at: Instance) -> list[Instance]:
        found = []
        for wait in self.waits_of[at.op]:
            source = Instance(wait.source, at.step - wait.distance)
            decides = source.step + wait.told
            asked = wait.modes is None or not 0 <= decides < self.steps
            if self.exists(source) and (asked or self.word[decides] in (wait.modes or ())):
                found.append(source)
        return found

    def made(self, at: Instance) -> Iterator[tuple[str, int, bool]]:
        """(name, version, writes) of each access that this op makes in its step's mode."""
        graph = self.plan.graph
        vertex = graph.vertices[at.op]
        mode = next(each for each in graph.modes if each.name == self.word[at.step])
        idle = vertex.node.name in mode.skips
        untouched = mode.untouched.get(at.op, ())
        for read in vertex.op.reads:
            if read.name == graph.told_by or not (idle or read.name in untouched):
                yield read.name, at.step - read.carry, False
        for name in vertex.op.writes:
            if name in graph.values or not (idle or name in untouched):
                yield name, at.step, True


def races(plan: Plan, word: Sequence[str]) -> list[Unordered]:
    """What goes wrong, or never ends, in a run whose steps have these modes."""
    unrolled = InModes(plan, len(word), padding_for(plan), word)
    order, graph = Order(unrolled), plan.graph
    if order.stuck:
        somewhere = Instance(next(iter(graph.vertices)), 0)
        return [Unordered(somewhere, somewhere, ("stuck", 0))]
    written = {name for op in graph.vertices.values() for name in op.op.writes}
    touched: dict[Cell, list[Touch]] = defaultdict(list)
    for actor in plan.actors:
        for at in filter(unrolled.real, unrolled.program(actor)):
            vertex = graph.vertices[at.op]
            for name, version, writes in unrolled.made(at):
                cell = unrolled.cell(name, version)
                if name in graph.states:
                    when = (at.step + vertex.offset, vertex.position)
                    if graph.states[name].keys is not None:  # what one user does with its keys
                        cell = (f"{name} of {vertex.op.class_of(name)}", 0)
                else:
                    when = (version, 0 if writes else 1)
                if name in written:
                    touched[cell].append((when, at, writes))
    found = [
        Unordered(at, other, cell)
        for cell, each in touched.items()
        for when, at, writes in each
        for then, other, rewrites in each
        if when < then and (writes or rewrites) and not order.before(at, other)
    ]
    inside = range(len(word))
    found += [
        Unordered(u, v, ("unrecorded", 0))
        for u, v in order.unrecorded
        if u.step in inside and v.step in inside
    ]
    return found
