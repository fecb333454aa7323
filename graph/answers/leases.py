"""Why a key may change hands after so many steps: the two accesses that take longest to be over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .. import arguments
from ..errors import GraphError, did_you_mean
from ..plan import Lease, Plan
from ..planner.bounds import without_bounds
from ..verifier.words import counted, instant, later
from .explain import path_of, path_words
from .orderings import Leg, Orderings, legs_of


@dataclass(frozen=True, slots=True)
class LeaseReason:
    """A lease, and the two accesses because of which it is not shorter.

    `path` orders them, as (op, total distance so far); `ordered` is its total. Where it is shorter
    than the lease, it is the serial program that has them in that order no sooner.
    """

    lease: Lease
    keys: str
    before: str
    after: str
    ordered: int
    path: tuple[tuple[str, int], ...]
    legs: tuple[Leg, ...]
    cycle: int = 1  # steps of the graph that a step of the lease and of the path stands for

    @property
    def headline(self) -> str:
        lease = self.lease
        return (
            f"A key of {self.keys} that {lease.source!r} had in step i at last may be had by "
            f"{lease.target!r} from step {later(lease.steps * self.cycle)} on, in {lease.state}."
        )

    @property
    def reason(self) -> str:
        steps = self.lease.steps
        last = f"{self.before} of step i touches it last, {self.after} of step {later(steps)} first"
        if self.ordered < steps:
            return f"{last}: the serial program has {instant(self.before, self.after, steps)}"
        return f"{last}. They are ordered by {path_words(self.before, self.legs)}"

    @property
    def sooner(self) -> str:
        """What could happen one step sooner."""
        then = f"{self.after} of step {later(self.lease.steps - 1)}"
        if self.ordered < self.lease.steps:
            return f"the serial program has {then} before {self.before} of step i"
        return f"{then} could touch it while {self.before} of step i still does"

    def lines(self) -> list[str]:
        """Plain sentences, one idea each."""
        said = [f"{self.reason}.", f"One step sooner, {self.sooner}."]
        if self.cycle > 1:
            said.append(f"Here a step is a cycle of {self.cycle}: one of each firing.")
        return [self.headline, *said]

    def to_json(self) -> dict[str, Any]:
        return {
            "state": self.lease.state,
            "keys": self.keys,
            "from": self.lease.source,
            "to": self.lease.target,
            "steps": self.lease.steps * self.cycle,
            "before": self.before,
            "after": self.after,
            "path": [list(step) for step in self.path],
            "lines": self.lines(),
        }


def explain_lease(plan: Plan, state: str, source: str, target: str) -> LeaseReason:
    """Why keys of a state pass from one class of users to another after so many steps.

    Raises `GraphError` for a state without keys, classes whose accesses never conflict, or if
    `plan` is not a plan.
    """
    arguments.a("explain_lease", "plan", plan, Plan, arguments.A_PLAN)
    lease = _lease(plan, state, source, target)
    orders = Orderings(without_bounds(plan))
    ops = plan.graph.vertices.values()
    found = []
    for u in ops:
        for v in ops:
            touch = all(state in (*e.op.writes, *(r.name for r in e.op.reads)) for e in (u, v))
            classes = (u.op.class_of(state), v.op.class_of(state))
            if not touch or classes != (source, target):
                continue
            if state not in (*u.op.writes, *v.op.writes):
                continue
            distance = orders.distance(u.name, v.name)
            if distance is not None:
                found.append((distance, u.name, v.name))
    ordered, before, after = max(found, key=lambda each: each[0])
    if ordered < lease.steps:
        serial = ((u, v) for _, u, v in found if _serial(plan, u, v) == lease.steps)
        before, after = next(serial, (before, after))
    hops = orders.path(before, after)
    return LeaseReason(
        lease,
        plan.graph.states[state].keys or "",
        before,
        after,
        ordered,
        path_of(before, hops),
        legs_of(plan, hops),
        plan.graph.cycle,
    )


def _serial(plan: Plan, before: str, after: str) -> int:
    u, v = plan.graph.vertices[before], plan.graph.vertices[after]
    return u.offset - v.offset + (u.position >= v.position)


def _lease(plan: Plan, state: str, source: str, target: str) -> Lease:
    of = [lease for lease in plan.leases if lease.state == state]
    if not of:
        known = dict.fromkeys(lease.state for lease in plan.leases)
        raise GraphError(
            f"there is no keyed state {state!r}{did_you_mean(state, known)}. "
            f"Keyed: {', '.join(known) or 'none'}.",
            code="SW-UNKNOWN-NAME",
        )
    for lease in of:
        if (lease.source, lease.target) == (source, target):
            return lease
    classes = dict.fromkeys(each for lease in of for each in (lease.source, lease.target))
    for users in (source, target):
        if users not in classes:
            raise GraphError(
                f"{state!r} has no class {users!r}{did_you_mean(users, classes)}. "
                f"Classes: {', '.join(classes)}.",
                code="SW-UNKNOWN-NAME",
            )
    raise GraphError(
        f"no access of {source!r} to {state!r} conflicts with one of {target!r}: both only read.",
        code="SW-UNKNOWN-NAME",
    )


def leases_in_words(plan: Plan) -> list[str]:
    """`kv: owner → copy after 1 step`, for each two classes of users; empty where none has one."""
    if not plan.has_classes:
        return []
    return [
        f"{lease.state}: {lease.source} → {lease.target} after "
        f"{counted(lease.steps * plan.graph.cycle, 'step')}"
        for lease in plan.leases
    ]
