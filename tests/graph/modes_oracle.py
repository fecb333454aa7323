"""Words of modes run step by step: when each op of each step ends, and how much a round adds.

It knows the programs, launches and waits of a plan, and no cycle, ratio, shift or window.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from graphlib import TopologicalSorter
from itertools import pairwise

from stepweave.graph.plan import Plan

from .oracle import Instance, Unrolled

STEPS = 60


class Runs:
    """A plan's ops over many steps, to be run with any modes. Costs are whole µs."""

    def __init__(self, plan: Plan, steps: int = STEPS) -> None:
        self.plan, self.steps = plan, steps
        self.unrolled = Unrolled(plan, steps, 6)
        before: dict[Instance, list[Instance]] = {}
        for actor in plan.actors:
            program = list(self.unrolled.program(actor))
            for at in program:
                before.setdefault(at, []).extend(self.unrolled.awaited(at))
                if (launch := plan.graph.vertices[at.op].launch) is not None:
                    before[at].append(Instance(launch, at.step))
            for first, then in pairwise(program):
                before[then].append(first)
        self.before = before
        self.order = list(TopologicalSorter(before).static_order())

    def growth(self, word: Sequence[str]) -> Fraction | None:
        """Time a step in the long run with this word repeated; None if it does not settle."""
        graph = self.plan.graph
        modes = {mode.name: mode for mode in graph.modes}

        def takes(at: Instance) -> int:
            if not self.unrolled.real(at):
                return 0
            mode = modes[word[at.step % len(word)]]
            if graph.vertices[at.op].node.name in mode.skips:
                return 0
            return round(mode.costs.get(at.op, self.plan.costs[at.op]))

        ends: dict[Instance, int] = {}
        for at in self.order:
            ends[at] = max((ends[each] for each in self.before[at]), default=0) + takes(at)
        seen: dict[tuple[int, ...], tuple[int, int]] = {}
        look = 8  # steps: further back nothing waits
        for step in range(look, self.steps - 8, len(word)):
            times = [ends[Instance(op, step - k)] for op in graph.vertices for k in range(look)]
            shape = tuple(time - times[0] for time in times)
            if shape in seen:
                then, time = seen[shape]
                return Fraction(times[0] - time, step - then)
            seen[shape] = (step, times[0])
        return None
