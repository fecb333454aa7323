"""Whether keys change hands as a plan says: for each lease, every two accesses that may meet.

The plan states after how many steps a key may pass from one class of users to another. Nothing is
derived here from shortest paths or periods: each stated lease is tried on each two accesses, of
which one writes, as an order that must exist at that distance, in the plan and in the serial
program.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..plan import Lease, Plan
from ..step_graph import Vertex
from ..violation import Violation
from .order import Distances, Need
from .reports import Report, is_met, missing_order, repair_of
from .words import counted, instant, later


def early_leases(plan: Plan, distance: Distances) -> Iterator[Violation]:
    """A report for each lease that is missing, or too short; the least short of its pairs first."""
    stated = {(each.state, each.source, each.target): each for each in plan.leases}
    met: dict[tuple[str, str, str], list[Need]] = {}
    for state, datum in plan.graph.states.items():
        if datum.keys is None:
            continue
        touching = [op for op in plan.graph.vertices.values() if _accesses(op, state)]
        for old in touching:
            for new in touching:
                letters = _letters(old, new, state)
                if letters is None:
                    continue
                key = (state, old.op.class_of(state), new.op.class_of(state))
                lease = stated.get(key)
                if lease is None:
                    met.setdefault(key, [])
                    continue
                need = Need(letters, state, 0, old.name, new.name, lease.steps)
                if _turned(old, new, lease.steps) or not is_met(plan, need, distance):
                    met.setdefault(key, []).append(need)
    for key, needs in met.items():
        yield _short(plan, stated[key], needs, distance) if needs else _missing(*key)


def _accesses(op: Vertex, state: str) -> str:
    """`R`, `W`, `RW` or nothing."""
    reads = any(read.name == state for read in op.op.reads)
    return "R" * reads + "W" * (state in op.op.writes)


def _letters(old: Vertex, new: Vertex, state: str) -> str | None:
    """The hazard of two accesses, if one of them writes."""
    first, then = _accesses(old, state), _accesses(new, state)
    if "W" not in first + then:
        return None
    return f"{then[-1]}A{first[-1]}"


def _turned(old: Vertex, new: Vertex, steps: int) -> bool:
    """Whether the serial program has `new` of so many steps later before `old`, or as that."""
    return (new.offset + steps, new.position) <= (old.offset, old.position)


def _missing(state: str, source: str, target: str) -> Violation:
    repair = "compile the graph again"
    return Violation(
        "SW-LEASE",
        f"the plan does not say when a key of {state!r} may pass from {source!r} to {target!r}"
        f"\n  repair   {repair}",
        value=state,
        repair=repair,
    )


def _short(plan: Plan, lease: Lease, needs: list[Need], distance: Distances) -> Violation:
    need = needs[0]
    new, old = plan.graph.vertices[need.after], plan.graph.vertices[need.before]
    then = f"{new.name} of step {later(lease.steps)}"
    why = f"{then} may touch it before {old.name} of step i is done"
    if _turned(old, new, lease.steps):
        why = f"the serial program has not {instant(old.name, new.name, lease.steps)}"
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
