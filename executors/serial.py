"""The reference: one thread, the reference order, no overlap.

It takes nothing from the plan's actors and waits, so it is what every other executor is compared
with: ops run by (step + declared offset, listing position), and every version of a value has a
cell of its own for as long as that order needs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ..backends.streams import Stream
from ..graph.plan import Plan
from ..graph.step_graph import StepGraph
from .frontier import Frontier
from .instructions import Perform
from .interrupted import interrupted
from .one_thread import OneThread
from .report import RunReport
from .run_arguments import RunArguments
from .serial_program import SerialProgram
from .serial_turn import SerialTurn

if TYPE_CHECKING:
    from .capture import Captures  # with torch, which a graph of plain functions does without
    from .captured_plan import CapturedPlan


def run_serial(
    plan: Plan,
    given: RunArguments,
    captures: Captures | None = None,
    streams: Mapping[str, Stream] = MappingProxyType({}),
) -> RunReport:
    """Run in the reference order on the calling thread. Nothing waits, so nothing is watched.

    `captures` of segments of all plans, on what stands for the `streams`.
    """
    if captures is not None:
        captures.begin()
    leg = SerialLeg.of(plan, SerialCrew(given, captures, streams))
    kept: dict[str, list[Any]] = {}
    steps, status, iteration = 0, leg.run.status, leg.first  # no earlier one has a step ≥ 0
    try:
        while True:
            program, frontier = leg.program, leg.run.frontier
            while iteration <= frontier.end and program:
                for perform, offset in program:
                    perform(iteration - offset)
                iteration += 1
            turn: SerialScript | None = frontier.turn
            for perform, step in turn.script if turn else ():
                perform(step)
            steps = frontier.steps if frontier.has_begun else steps
            for name, versions in leg.run.kept().items():
                kept.setdefault(name, []).extend(versions)
            if turn is None:
                return replace(leg.run.report(), steps=steps, kept=kept)
            leg, iteration = turn.leg, turn.enters
    except (Exception, SystemExit) as cause:
        raise status.failure(cause) from cause


@dataclass(frozen=True)
class SerialCrew:
    """What all legs of a serial run share."""

    given: RunArguments
    captures: Captures | None
    streams: Mapping[str, Stream]


@dataclass(frozen=True)
class SerialLeg:
    """One plan's part of a serial run."""

    plan: Plan
    run: OneThread
    order: list[tuple[str, int]]
    first: int  # the iteration with which a run begins
    alone: int  # that from which on nothing of the leg before is run, or read
    crew: SerialCrew
    captured: CapturedPlan | None

    @staticmethod
    def of(
        plan: Plan,
        crew: SerialCrew,
        after: SerialLeg | None = None,
        step: int = 0,
        entered: int | None = None,
    ) -> SerialLeg:
        """The leg that begins with this step. `entered`: the iteration with which its own loop
        begins; None where no other leg is before it."""
        graph = plan.graph
        serial = SerialProgram.of(graph)
        order = serial.order()
        offsets = [offset for _, offset in order] or [0]
        sizes = {name: serial.cells_needed(name, plan.slots.get(name)) for name in graph.values}
        before = None if after is None else after.run
        captured = None if crew.captures is None else crew.captures.of(plan)
        run = OneThread.of(
            _apart(graph), sizes, max(offsets), crew.given, before, step, captured, crew.streams
        )
        first = alone = min(offsets)
        if entered is not None:
            looks_back = (
                step + read.carry + offset
                for op, offset in order
                for read in graph.vertices[op].op.reads
                if read.carry
            )
            alone = max([entered, *looks_back])
        leg = SerialLeg(plan, run, order, first, alone, crew, captured)
        if crew.given.course is not None:
            run.frontier.begins = leg.begins
        return leg

    @property
    def program(self) -> list[tuple[Perform, int]]:
        """What an iteration runs."""
        return [(self.run.performs[op], offset) for op, offset in self.order]

    def begins(self, step: int) -> None:
        """A step begins: go over to another plan if that is wanted, and is possible yet."""
        course, frontier = self.crew.given.course, self.run.frontier
        if course is None or step + self.first < self.alone:
            return
        wanted = course.wanted(step)
        if wanted is None:
            return
        switch, goal = wanted
        turn = SerialTurn.of(switch)
        at = max(step + turn.lead, goal.step, frontier.first + course.stays(switch.after))
        if at > frontier.last:
            return
        leg = SerialLeg.of(switch.after, self.crew, self, at, at + turn.enters)
        leg.run.frontier.last = frontier.last
        leg.run.frontier.end = frontier.last + leg.run.frontier.tail
        legs = (self, leg)
        _interrupt(legs, turn, at)
        script = [(legs[ran.part].run.performs[ran.op], at + ran.step) for ran in turn.ops]
        course.turn(goal, at)
        frontier.give_over(at, at + turn.leaves, SerialScript(leg, at + turn.enters, script))


def _interrupt(legs: tuple[SerialLeg, SerialLeg], turn: SerialTurn, step: int) -> None:
    """Between the ops of a segment may come what only launches, and nothing else."""
    of_both = [leg.plan.graph.vertices for leg in legs]
    ran = ((at, of_both[at.part][at.op]) for at in turn.ops)
    ops = [at for at, vertex in ran if vertex.side == "device" or vertex.op.run is not None]
    for part, leg in enumerate(legs):
        if leg.captured is not None:
            for segment in leg.captured.segments:
                steps = interrupted(ops, part, segment.ops)
                leg.captured.interrupt(segment, {step + each for each in steps})


@dataclass(frozen=True)
class SerialScript:
    """The next leg of a serial run, and what is run until its own loop begins."""

    leg: SerialLeg
    enters: int
    script: list[tuple[Perform, int]]

    @property
    def frontier(self) -> Frontier:
        """Of the next leg."""
        return self.leg.run.frontier


def _apart(graph: StepGraph) -> StepGraph:
    """The graph with cells of its own for each value: none are shared in turn."""
    values = {name: replace(value, turn=None) for name, value in graph.values.items()}
    return replace(graph, values=values)
