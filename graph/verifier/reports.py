"""The verifier's reports: both accesses, the order needed, the order there is, and the repair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..plan import Plan
from ..violation import Access, Violation
from .order import Distances, Need
from .words import ago, counted, instant, later, path_text


@dataclass(frozen=True, slots=True)
class Report:
    """How to report that a requirement is not met."""

    code: str
    headline: str
    first: tuple[str, str]  # verb and object of the access that must come first
    second: tuple[str, str]


def is_fed(distance: Distances, first: str, second: str, most: int) -> bool:
    """`first` hands to its stream before `second` does: one launch op feeds in phase order."""
    return (first == second and most >= 0) or distance.ordered(first, second, most)


def goal_of(plan: Plan, need: Need) -> str:
    """Host work reaches a device op only through the op that launches it.

    And nobody waits within a meeting: what its end must follow, its beginning must.
    """
    ops = plan.graph.vertices
    after = ops[need.after]
    if ops[need.before].side == "host" and after.launch is not None:
        return after.launch
    return after.node.op_names(after.side)[0] if after.node.comm else need.after


def is_met(plan: Plan, need: Need, distance: Distances) -> bool:
    """Whether the plan has what is needed."""
    goal = goal_of(plan, need)
    if goal != need.after and goal == need.before:
        return need.distance >= 0  # the launch op itself is the first access
    return distance.ordered(need.before, goal, need.distance)


def is_reversed(plan: Plan, need: Need, distance: Distances) -> bool:
    """Whether a wait for it would close a cycle of distance ≤ 0."""
    goal = goal_of(plan, need)
    back = 0 if goal == need.before else distance(goal, need.before)
    return back is not None and back + need.distance <= 0


def missing_order(
    plan: Plan,
    need: Need,
    report: Report,
    distance: Distances,
    repair: str,
    also: tuple[str, ...],
) -> Violation:
    """An ordering that is needed and not there."""
    goal = goal_of(plan, need)
    present, path = nearest(plan, need, distance)
    needed = instant(need.before, need.after, need.distance)
    if goal != need.after:
        needed += f", through its launch {goal!r}"
    if present is None:
        shown = "no ordering between them"
    else:
        shown = f"only {instant(need.before, goal, present)}: {path_text(path)}"
    before = access_of(plan, need.before, *report.first, step=0)
    after = access_of(plan, need.after, *report.second, step=need.distance)
    if need.hazard != "LAUNCH":
        read = {"W": 0, "R": need.carry}  # how far back the version is that an access touches
        before = replace(before, place=_place(plan, need.value, -read[need.hazard[2]]))
        after = replace(after, place=_place(plan, need.value, need.distance - read[need.hazard[0]]))
    return Violation(
        report.code,
        f"{report.headline}\n  first    {before}\n  second   {after}\n"
        f"  needed   {needed}\n  present  {shown}\n  repair   {repair}"
        + "".join(f"\n  also     {line}" for line in also),
        need.hazard,
        need.value,
        before,
        after,
        need.distance,
        present,
        also,
        repair,
        path,
    )


def nearest(
    plan: Plan, need: Need, distance: Distances
) -> tuple[int | None, tuple[tuple[str, int], ...]]:
    """The nearest order that there is, and the path that gives it."""
    goal = goal_of(plan, need)
    if goal != need.after and goal == need.before:  # it launches the second access itself
        return 0, ((need.before, 0), (need.after, 0))
    return distance(need.before, goal), distance.path(need.before, goal)


def _place(plan: Plan, value: str, version: int) -> str:
    """Where the version of a value lies, relative to step i."""
    if value in plan.graph.states:
        return "in place"
    copies = plan.slots.get(value)
    if copies is None:
        return f"version {later(version)}, allocated anew in each step"
    number = f"({later(version)})" if version else "i"
    slot = "the only slot" if copies == 1 else f"slot {number} mod {copies}"
    return f"version {later(version)} in {slot}"


def slots_for(plan: Plan, need: Need, distance: Distances) -> int | None:
    """How many slots would repair an overwriting, if any number would.

    The overwriting is K - carry steps after the access, and what orders them is `present` long.
    """
    if need.hazard not in ("WAR", "WAW") or plan.slots.get(need.value) is None:
        return None
    present, _ = nearest(plan, need, distance)
    return None if present is None else present + need.carry


def repair_of(plan: Plan, needs: Sequence[Need], distance: Distances) -> str:
    """Which wait, or how many slots, would order all that one cause leaves unordered."""
    need = needs[0]
    counts = [slots_for(plan, each, distance) for each in needs if each.value == need.value]
    enough = max((count for count in counts if count is not None), default=None)
    if len(counts) < len(needs) or None in counts:
        enough = None
    more = "" if enough is None else f"give {need.value!r} {counted(enough, 'slot')}"
    goal = goal_of(plan, need)
    if is_reversed(plan, need, distance):
        if more:
            return f"{more} (a wait would be a deadlock)"
        return (
            f"run {goal} later on {plan.graph.vertices[goal].actor!r}, after {need.before} of "
            f"{ago(need.distance)}; a wait would be a deadlock, since "
            f"{path_text(distance.path(goal, need.before))} is ordered already"
        )
    found = f"let {goal} wait for {need.before} of {ago(need.distance)}"
    first, second = plan.graph.vertices[need.before].launch, plan.graph.vertices[goal].launch
    if first and second and not is_fed(distance, first, second, need.distance):
        found += f", and {second} for {first}, or the wait is enqueued before its record"
    return f"{found}; or {more}" if more else found


def deadlock_report(plan: Plan, cycle: Sequence[tuple[str, int]]) -> Violation:
    shown = " → ".join(f"{op} (+{d})" if d >= 0 else f"{op} ({d})" for op, d in cycle)
    total = sum(d for _, d in cycle)
    ends = [op for op, _ in [*cycle[1:], cycle[0]]]
    steps = {(u, v, d) for (u, d), v in zip(cycle, ends, strict=True)}
    waits = [w for w in plan.waits if (w.source, w.target, w.distance) in steps]
    repair = "take away one of its waits: " + ", ".join(
        f"{wait.target} for {wait.source} of {ago(wait.distance)}" for wait in waits
    )
    if not waits:
        repair = "run the ops of the actors on it in another order"
    return Violation(
        "SW-DEADLOCK",
        f"the plan waits for itself: {shown} → {cycle[0][0]}, in all {total} ≤ 0\n"
        f"  repair   {repair}",
        repair=repair,
    )


def access_of(plan: Plan, op: str, verb: str, value: str, step: int | None = None) -> Access:
    vertex = plan.graph.vertices.get(op)
    if vertex is None:
        return Access("?", op, "?", verb, value)
    return Access(vertex.node.name, op, vertex.actor, verb, value, vertex.node.line, step)


def copies(plan: Plan, value: str) -> str:
    copies = plan.slots.get(value)
    return "" if copies is None else f" ({copies} slot{'s' if copies != 1 else ''})"
