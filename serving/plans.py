"""The plans between which an engine may go while it runs: proved, with each switch between two.

All of them work on the same states, models and requests. What a request is granted is safe in every
plan and in every switch, so nobody notices which plan a step was run by.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import permutations
from typing import NamedTuple

from ..configs.usual import USUAL as USUAL
from ..executors.course import Course, Goal, Turned
from ..graph.node import State
from ..graph.plan import Plan
from ..graph.planner.leases import pool_leases
from ..graph.planner.switching import switch_plans
from ..graph.switch import Switch
from ..graph.verifier.verified import verified, verified_switch


class Load(NamedTuple):
    """What an engine has to do, and has done so far, when a step begins."""

    rows: int = 0  # requests that have a row
    windows: int = 0  # in which drafts were verified
    accepted: int = 0  # drafts


Steer = Callable[[Course, int, Load], Goal]
"""Says at the begin of a step with which plan to go on: it gets the course, the step, the load."""


def stay(course: Course, step: int, load: Load) -> Goal:
    """Go on with the plan that is on."""
    return Goal(course.at)


@dataclass(frozen=True)
class Plans:
    """Plans by name, the first of which a run begins with."""

    by_name: Mapping[str, Plan]
    switches: Mapping[tuple[str, str], Switch]

    @staticmethod
    def of(plans: Mapping[str, Plan]) -> Plans:
        """All of them proved. Raises `UnsoundPlan`, and `GraphError` where two cannot switch."""
        proved = {name: verified(plan) for name, plan in plans.items()}
        return Plans(
            proved,
            {
                (one, other): verified_switch(switch_plans(proved[one], proved[other]))
                for one, other in permutations(proved, 2)
            },
        )

    @property
    def first(self) -> str:
        """The name of the plan that a run begins with."""
        return next(iter(self.by_name))

    @property
    def states(self) -> dict[str, State]:
        """The states of all plans."""
        found: dict[str, State] = {}
        for plan in self.by_name.values():
            found = {**plan.graph.states, **found}
        return found

    def leases(self, keys: str) -> dict[tuple[str, str], int]:
        """After how many steps a key of that pool may change hands, whichever plans run them."""
        found: dict[tuple[str, str], int] = {}
        for plan in self.by_name.values():
            for move, steps in pool_leases(plan, keys).items():
                found[move] = max(steps, found.get(move, steps))
        states = {name for name, state in self.states.items() if state.keys == keys}
        for switch in self.switches.values():
            for lease in switch.leases:
                if lease.state in states:
                    move = (lease.source, lease.target)
                    found[move] = max(lease.steps, found.get(move, lease.steps))
        return found

    def course(
        self,
        at: str,
        steer: Steer,
        load: Callable[[], Load],
        tell: Callable[[Turned], None],
    ) -> Course:
        """The course of a run that begins at a plan."""

        def decide(step: int) -> Goal:
            return steer(course, step, load())

        course = Course(self.by_name, self.switches, at, decide, tell)
        return course
