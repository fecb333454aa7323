"""Which plan runs a step, and what the plans put first of two ops, each of one step.

A run may go over from plan to plan. Its *legs* are the steps that one plan runs. Two ops of one leg
are in the order of its plan, those of neighbouring legs in that of the switch (`across.py`). A run
asks where to go on only when the leg before the one it is in has ended, so all of a leg comes after
all before its neighbour: if the switch between those is over when it says so (`Switch.over`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ...executors.context import cells_in_flight
from ...executors.course import Course, Turned
from ...executors.serial_program import SerialProgram
from ...graph.node import Value
from ...graph.plan import Plan
from ...graph.switch import Instance
from .across import Across
from .clocks import Clocks

REMEMBERED = 64  # legs; what is older came before all that comes


@dataclass(frozen=True)
class Leg:
    """The steps from `first` on, until the next leg begins."""

    number: int
    first: int
    plan: Plan
    clocks: Clocks
    since: Across | None  # the switch by which it follows the leg before
    readers: Mapping[str, int]  # by value how many (op, carry) read each version
    held: Mapping[str, int]  # values that other plans read further back: cells of any executor

    def cell(self, name: str, version: int) -> tuple[int, str, int]:
        """The cell that a version lies in: a slot of this leg, or one of its own."""
        slots = self.plan.slots.get(name)
        if slots is None:
            return self.number, name, version
        return self.number, *self.plan.graph.values[name].slot(version, slots)


class Legs:
    """The legs of one run. `mode_of`: the mode of a step, as far as it is known."""

    def __init__(
        self,
        plan: Plan,
        course: Course | None = None,
        mode_of: Callable[[int], str | None] | None = None,
    ) -> None:
        self._course, self._mode_of = course, mode_of
        self._clocks: dict[int, Clocks] = {}
        self._across: dict[tuple[str, str], Across] = {}
        self._legs: tuple[Leg, ...] = (self._leg(0, 0, plan, None),)

    def _leg(self, number: int, first: int, plan: Plan, since: Across | None) -> Leg:
        graph, course = plan.graph, self._course
        readers: dict[str, int] = {}
        for vertex in graph.vertices.values():
            for read in set(vertex.op.reads):
                readers[read.name] = readers.get(read.name, 0) + 1
        held: dict[str, int] = {}
        if course is not None:
            serial, flying = SerialProgram.of(graph), cells_in_flight(plan)
            sizes = course.cells(
                {name: serial.cells_needed(name, size) for name, size in flying.items()}
            )
            held = {name: sizes[name] for name in course.held(graph)}
        return Leg(number, first, plan, self._clocks_of(plan), since, readers, held)

    def _clocks_of(self, plan: Plan) -> Clocks:
        if id(plan) not in self._clocks:
            self._clocks[id(plan)] = Clocks(plan, self._mode_of)
        return self._clocks[id(plan)]

    def turn(self, turned: Turned) -> None:
        """Note a switch before any op of the plan after runs."""
        assert self._course is not None, "only a run with a course goes over"
        pair, last = (turned.before, turned.after), self._legs[-1]
        switch = self._course.switches[pair]
        if pair not in self._across:
            clocks = self._clocks_of(switch.before), self._clocks_of(switch.after)
            self._across[pair] = Across(switch, clocks)
        leg = self._leg(last.number + 1, turned.step, switch.after, self._across[pair])
        self._legs = (*self._legs, leg)[-REMEMBERED:]

    def ended(self) -> tuple[Leg, ...]:
        """The last leg that has ended for certain when a switch is noted."""
        return self._legs[-4:-3]

    def at(self, step: int) -> Leg:
        """The leg of a step; the oldest that is remembered, for one before all."""
        legs = self._legs
        return next((leg for leg in reversed(legs) if step >= leg.first), legs[0])

    def version(self, value: Value, carry: int, step: int) -> int:
        """The version that a read of `step` means; -1: the initial one."""
        version = -1 if value.external else max(step - carry, -1)
        if version < self.at(step).first:
            wrote = self.at(version).plan.graph.values.get(value.name)
            return -1 if wrote is None or wrote.external else version
        return version

    def before(self, op: str, step: int, then: str, later: int) -> bool:
        """Whether `op` of `step` is done before `then` of step `later` begins."""
        first, second = self.at(step), self.at(later)
        if first is second:
            return first.clocks.before(op, step, then, later)
        if first.number < second.number - 1:
            return self._ended_before(first.number + 2)
        if first.number > second.number + 1:
            return False
        return self._neighbours(first, op, step, second, then, later, Across.before)

    def serially(self, op: str, step: int, then: str, later: int) -> bool:
        """Whether the serial program has `op` of `step` before `then` of step `later`."""
        first, second = self.at(step), self.at(later)
        if abs(first.number - second.number) > 1:
            return first.number < second.number
        if first is not second:
            return self._neighbours(first, op, step, second, then, later, Across.serially)
        u, v = (first.plan.graph.vertices[name] for name in (op, then))
        return (step + u.offset, u.position) < (later + v.offset, v.position)

    def _neighbours(
        self,
        first: Leg,
        op: str,
        step: int,
        second: Leg,
        then: str,
        later: int,
        ask: Callable[[Across, Instance, Instance], bool],
    ) -> bool:
        after = max(first, second, key=lambda leg: leg.number)
        assert after.since is not None, "the first leg has none before it"
        ends = (
            Instance(int(leg is after), name, at - after.first)
            for leg, name, at in ((first, op, step), (second, then, later))
        )
        return ask(after.since, *ends)

    def _ended_before(self, number: int) -> bool:
        """Whether all that ran two legs before this one was done when this one was told of.

        A run goes over only at a step from which on its last switch is said to be over, and every
        actor, also one that the leg in between does not have, learns of it then. So what is said
        has to be so.
        """
        legs = self._legs
        between = next((each for each in legs if each.number == number - 1), None)
        if between is None or between.since is None:
            return True  # nobody remembers
        return between.since.over
