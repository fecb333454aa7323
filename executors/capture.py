"""Captured segments: recorded once per shape, replayed by one call, never in place of another.

What a captured graph does is fixed: the addresses, shapes and numbers that its bodies saw. So a
capture is kept under all of that, the *signature* of what the segment reads, of its states and of
the buffers that it fills: tensors by address and shape, everything else by type, content and bits
(`contents.py`), and the step modulo the slots of what it touches. A step is replayed only if its
signature is one that was captured; any other runs as usual. A graph can be missing, but not wrong.

So nothing is captured whose signature would not tell all: what reads a tensor's numbers on the
host, what changes a datum that is no tensor, what holds something that cannot be compared.

Signatures return because device values lie in static slots. What a graph makes and somebody reads
outside its segment is copied, by the graph, to where its slot lies; so is every version of a
carried value (it has an initial version, and so one shape for ever), whether a graph made it or
not. Slots lie outside the memory in which graphs work, so that all graphs of a stream can work in
the same memory: what one leaves there, nobody reads any more. Whether the host's numbers return is
up to the nodes, which may round sizes up.

A signature runs as usual when it first comes up, which warms kernels up; it is captured when it
comes up again, and replayed from then on. Where a capture costs as much as several steps
(`executors/threads.py`), it has to come up more often first. What cannot be captured, or has
nothing to do, runs as usual, and `notes` says so. A step had nothing to do if it published nothing
and, of an op that only changes a state, if no operation changed a tensor when its signature first
came up (`changes.py`).

A capture that fails has done nothing, and what is left of its pool is used no more: its step runs
as usual, and later ones are captured in another. One that a run leaves open, since the run was
ended between two ops, is ended in the stream's order. What is stamped within one is stamped when
it is over, as nothing is done before.

Of a run that goes from plan to plan each plan has captures of its own, since its slots are its own.
All of them know what stays and what lies in a slot: the first steps of a plan read what the one
before has written, at other addresses than its own, and so by another signature. Slots of a plan
that comes back are written again only after that (`Switch.over`).

A tape of operations can do the same on other memory. So a shape is recorded once, and done for all
of its slots (`moves.py`); all of them count as one where it has to come up often first.

On a CPU operations are noted while they are done (`backends/tape/`), so what cannot be recorded
goes on, and the step is not done again. Where they are too many, the oldest are given up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..backends.streams import Recording
from ..graph.plan import Plan
from ..graph.planner.segments import Segment
from .captured_plan import CapturedPlan, Order
from .counts import Counts
from .terms import Terms


class Captures:
    """What is captured of plans, from run to run: as long as their buffers and states."""

    def __init__(
        self,
        *plans: Plan,
        noted: bool = True,
        usual: int = 1,
        largest: int = 0,
        order: Callable[[Plan], Order] | None = None,
    ) -> None:
        """`noted`: whether it is worth a note that a step was not replayed. `usual` and `largest`
        as of `Terms`. `order`: of the ops of an iteration of a plan, where one thread runs all of
        them, and nothing of the plan's actors and waits counts.
        """
        self._noted = noted
        self._terms = terms = Terms(usual, largest, len(plans))
        self.where = terms.where
        self.counts: dict[Segment, Counts] = {}
        self.pieces: dict[str, Counts] = {}  # by op
        self.of_plans = tuple(
            CapturedPlan(number, plan, terms, self.counts, self.pieces, order and order(plan))
            for number, plan in enumerate(plans)
        )

    def of(self, plan: Plan) -> CapturedPlan:
        """Those of one of its plans."""
        return next(each for each in self.of_plans if each.plan is plan)

    def fit(self, plans: Sequence[Plan]) -> bool:
        """Whether these are the captures of just these plans, in any order."""
        return {id(each.plan) for each in self.of_plans} == {id(plan) for plan in plans}

    def begin(self) -> None:
        """A run begins."""
        for each in self.of_plans:
            each.forget_steps()

    def recordings(self) -> Mapping[Segment, Sequence[Recording]]:
        """What is captured of each segment now."""
        return {
            segment: [kept for each in self.of_plans for kept in each.recordings(segment)]
            for segment in self.counts
        }

    def replayed(self) -> frozenset[int]:
        """Of the run that is on, or was last: steps of which all segments were replayed.

        Of the last thousands of them. Empty where there are no segments.
        """
        return frozenset().union(*(each.replayed() for each in self.of_plans))

    @property
    def learning(self) -> int:
        """How many times a segment has not been replayed yet, but may be in a step like that."""
        return sum(counts.learning for counts in self.counts.values())

    def end(self) -> None:
        """After a run: let go of what its last steps worked on."""
        for each in self.of_plans:
            each.end()

    def notes(self) -> list[str]:
        """What ran as usual, and why; one line for each segment."""
        lines = []
        for segment, counts in self.counts.items() if self._noted else ():
            if counts.eager:
                eager = sum(counts.eager.values())
                lines.append(
                    f"{segment}: {eager} of {counts.steps} steps not replayed ({counts.reasons})"
                )
        for op, counts in self.pieces.items() if self._noted else ():
            if counts.steps:
                why = f" ({counts.reasons})" if counts.eager else ""
                lines.append(
                    f"{op.removesuffix('.device')}: {counts.replayed} of {counts.steps} passes "
                    f"beside prompts replayed in pieces of {counts.captured} sizes{why}"
                )
        return lines
