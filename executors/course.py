"""Between which plans a run may switch, and which of them it goes on with.

A run asks at the begin of each step. Whoever decides need not know when a switch can take place:
the executor picks the first step that every actor can still be told of in time, and does not ask
again before the plan before has ended for certain.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from ..graph.errors import StepweaveError, did_you_mean
from ..graph.plan import Plan
from ..graph.step_graph import StepGraph
from ..graph.switch import Switch

REMEMBERED = 1024
"""Switches that are remembered, the latest: a service may switch for ever."""


class Turned(NamedTuple):
    """A switch that a run has begun: `step` is the first of the plan `after`.

    `reason`: a word, of few that there are; `said`: what was compared, in words.
    """

    step: int
    before: str
    after: str
    reason: str = ""
    said: str = ""


class Goal(NamedTuple):
    """The plan to go on with, from this step on or from the first after it that is possible.

    `reason` and `said` are those of `Turned`.
    """

    plan: str
    step: int = 0
    reason: str = ""
    said: str = ""


@dataclass
class Course:
    """The plans of a run by name, the switch from each to each, and the plan that it is at.

    `decide` gets a step that begins and says how to go on; it may run on any thread, and on one at
    a time. `tell` learns of each switch when it is certain.
    """

    plans: Mapping[str, Plan]
    switches: Mapping[tuple[str, str], Switch]
    at: str
    decide: Callable[[int], Goal]
    tell: Callable[[Turned], None] = lambda turned: None
    turned: deque[Turned] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    began_at: str = field(init=False)

    def __post_init__(self) -> None:
        self.began_at = self.at

    def wanted(self, step: int) -> tuple[Switch, Goal] | None:
        """The switch that is wanted now, and what for; None: stay.

        Raises `StepweaveError` for a plan that there is not.
        """
        goal = self.decide(step)
        if goal.plan == self.at:
            return None
        if goal.plan not in self.plans:
            known = did_you_mean(goal.plan, self.plans)
            raise StepweaveError(f"there is no plan {goal.plan!r} to switch to{known}")
        return self.switches[self.at, goal.plan], goal

    def turn(self, goal: Goal, step: int) -> None:
        """Note that the run goes over."""
        self.note(Turned(step, self.at, goal.plan, goal.reason, goal.said))

    def note(self, turned: Turned) -> None:
        self.at = turned.after
        self.turned.append(turned)
        self.tell(turned)

    def rewritten(
        self, change: Callable[[Plan], Plan], tell: Callable[[Turned], None] = lambda turned: None
    ) -> Course:
        """This course, of plans that order the same: who runs it, runs this one.

        `tell` learns of a switch before anybody else does.
        """

        def both(turned: Turned) -> None:
            tell(turned)
            self.note(turned)

        plans = {name: change(plan) for name, plan in self.plans.items()}
        switches = {
            (one, other): replace(switch, before=plans[one], after=plans[other])
            for (one, other), switch in self.switches.items()
        }
        return Course(plans, switches, self.at, self.decide, both)

    @property
    def legs(self) -> tuple[tuple[int, str], ...]:
        """Which plan runs the steps from which on, of the last switches; from any thread."""
        turned = tuple(self.turned.copy())
        first = turned[0].before if turned else self.began_at
        return ((0, first), *((each.step, each.after) for each in turned))

    @property
    def plan(self) -> Plan:
        """The plan that the run is at."""
        return self.plans[self.at]

    @cached_property
    def reach(self) -> Mapping[str, int]:
        """By value, the most steps that a reader of any of the plans goes back."""
        found: dict[str, int] = {}
        for plan in self.plans.values():
            for vertex in plan.graph.vertices.values():
                for read in vertex.op.reads:
                    found[read.name] = max(read.carry, found.get(read.name, 0))
        return found

    def stays(self, after: Plan) -> int:
        """Steps that the plan before must have run, so that readers of `after` go back no further.

        They look for versions in its cells alone. The first plan of a run needs none: before its
        first step there is nothing.
        """
        reads = (read for vertex in after.graph.vertices.values() for read in vertex.op.reads)
        return max((read.carry for read in reads), default=0) if self.turned else 0

    def cells(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Cells of one plan, enough for what readers of the next go back."""
        return {name: max(size, self.reach.get(name, 0)) for name, size in sizes.items()}

    def held(self, graph: StepGraph) -> list[str]:
        """Values of a plan whose versions readers of another need longer than its own do."""
        own: dict[str, int] = dict.fromkeys(graph.values, 0)
        for vertex in graph.vertices.values():
            for read in vertex.op.reads:
                own[read.name] = max(read.carry, own.get(read.name, 0))
        return [name for name in graph.values if self.reach.get(name, 0) > own[name]]


def known(states: Mapping[str, object], graph: StepGraph) -> dict[str, object]:
    """The objects behind the states of one of several plans. Raises nothing."""
    return {name: state for name, state in states.items() if name in graph.states}
