"""Whether keys change hands as a plan says: for each lease, every two accesses that may meet.

The plan states after how many steps a key may pass from one class of users to another. Nothing is
derived here from shortest paths or periods: each stated lease is tried on each two accesses, of
which one writes, as an order that must exist at that distance, in the plan and in the serial
program.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ..plan import Lease, Plan
from ..violation import Violation
from .firings import touches_of
from .order import Distances, Need, least_gap
from .reports import Report, is_met, missing_order, repair_of
from .words import counted, instant, later


def early_leases(plan: Plan, distance: Distances) -> Iterator[Violation]:
    """A report for each lease that is missing, or too short; the least short of its pairs first."""
    stated = {(each.state, each.source, each.target): each for each in plan.leases}
    met: dict[tuple[str, str, str], list[_Early]] = {}
    for state, datum in plan.graph.states.items():
        if datum.keys is None:
            continue
        touching = {each.op: each for each in touches_of(plan, state)}.values()  # a write, if any
        for old in touching:
            for new in touching:
                if old.letter == new.letter == "R":
                    continue
                key = (state, old.users, new.users)
                lease = stated.get(key)
                if lease is None:
                    met.setdefault(key, [])
                    continue
                need = Need(f"{new.letter}A{old.letter}", state, 0, old.op, new.op, lease.steps)
                turned = lease.steps < least_gap(old, new, plan.graph.cycle)
                if turned or not is_met(plan, need, distance):
                    met.setdefault(key, []).append(_Early(need, turned))
    for key, early in met.items():
        yield _short(plan, stated[key], early, distance) if early else _missing(*key)


class _Early(NamedTuple):
    """Two accesses that may meet."""

    need: Need
    turned: bool  # in the serial program, too


def _missing(state: str, source: str, target: str) -> Violation:
    repair = "compile the graph again"
    return Violation(
        "SW-LEASE",
        f"the plan does not say when a key of {state!r} may pass from {source!r} to {target!r}"
        f"\n  repair   {repair}",
        value=state,
        repair=repair,
    )


def _short(plan: Plan, lease: Lease, early: list[_Early], distance: Distances) -> Violation:
    needs = [each.need for each in early]
    need = needs[0]
    then = f"{need.after} of step {later(lease.steps)}"
    why = f"{then} may touch it before {need.before} of step i is done"
    if early[0].turned:
        why = f"the serial program has not {instant(need.before, need.after, lease.steps)}"
    verbs = {"R": "reads", "W": "writes"}
    report = Report(
        "SW-LEASE",
        f"a key of {lease.state!r} passes from {lease.source!r} to {lease.target!r} after "
        f"{counted(lease.steps, 'step')}, too early: {why}",
        (verbs[need.hazard[2]], lease.state),
        (verbs[need.hazard[0]], lease.state),
    )
    repair = f"{repair_of(plan, needs, distance)}; or let the lease be longer"
    also = tuple(str(other) for other in needs[1:])
    return missing_order(plan, need, report, distance, repair, also)
