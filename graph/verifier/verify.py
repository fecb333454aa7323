"""Check a plan against the declarations it came from, trusting nothing that the planner said.

The verifier is the second opinion: it shares no code with the planner. From the declared
accesses it derives anew which orderings must exist, from the plan's actors and waits which
orderings do exist, and compares. A plan passes if

- of nodes with rates: the graph has the firings, versions and slots that they declare (SW-RATE);
- every op runs once per iteration, on its own actor, device ops at the offset of their launch;
  launches that are to be issued as one stand one behind the other;
- of several ranks: run as they block, the programs go on for ever (SW-DEADLOCK), and the n-th call
  on a communicator is the same op of the same step on every member (SW-MATCH);
- no cycle of its orderings has a total distance ≤ 0 (such a plan would stop for ever);
- every required ordering has a path at most as long as its distance (SW-RAW-…, SW-WAR-…,
  SW-WAW-…, by the sides of the two accesses);
- no key of a keyed state can change hands before its old users are done with it (SW-LEASE);
- no op can run ahead of another of its rank without end (SW-BOUND);
- a wait that does not take place in all modes is needed in no other, and known of at both of its
  ends (SW-MODE);
- streams receive their ops in the order in which they run them (SW-LAUNCH), and every stream
  wait is enqueued after the record it waits for, since a wait for an event that is not yet
  recorded does nothing (SW-HOST-ORDER);
- `edges` and `launch_order` state each of these requirements, none weakened, with a witness that
  is really a path of the plan (SW-WITNESS).

One report per cause: a deleted wait may leave twelve pairs unordered, of which eleven follow
from the twelfth; one slot too few lets all readers of a value be overtaken. What has the same
cause is listed under the first. A report says which wait, or how many slots, would repair it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from .. import arguments
from ..errors import UnsoundPlan
from ..plan import Plan
from ..violation import RACE_CODES, Violation
from .blocking import run_blocking
from .claims import wrong_claims, wrong_witnesses
from .conditions import wrong_conditions
from .firings import needs_of, wrong_firings
from .leases import early_leases
from .order import (
    Arc,
    Distances,
    Need,
    arcs_of,
    program_arcs,
    stuck_cycle,
)
from .programs import wrong_programs
from .reports import (
    Report,
    access_of,
    copies,
    deadlock_report,
    goal_of,
    is_fed,
    is_met,
    is_reversed,
    missing_order,
    repair_of,
    slots_for,
)
from .words import instant, later


def verify(plan: Plan) -> None:
    """Return if the plan is sound; else raise `UnsoundPlan` with every cause.

    The error's `code` and `line` are those of the first cause.
    """
    arguments.a("verify", "plan", plan, Plan, arguments.A_PLAN)
    found = violations(plan)
    if found:
        raise UnsoundPlan(
            "\n".join(str(violation) for violation in found),
            code=found[0].code,
            line=found[0].line,
            violations=found,
        )


def violations(plan: Plan) -> list[Violation]:
    """Everything that is wrong with a plan, one entry per cause; empty if it is sound."""
    structural = wrong_firings(plan) or wrong_programs(plan)
    if structural:  # orderings mean nothing before the programs do
        return [_advised(violation) for violation in structural]
    if plan.graph.ranks and (blocked := run_blocking(plan)) is not None:
        return [blocked.violation(plan)]
    arcs = list(arcs_of(plan))
    cycle = stuck_cycle(list(plan.graph.vertices), arcs)
    if cycle:
        return [deadlock_report(plan, cycle)]
    distance = Distances(list(plan.graph.vertices), arcs)
    races = _folded([*_unordered(plan, arcs, distance)])
    runaways = [] if races else _runaways(plan, distance)  # without an order ops run ahead, too
    early = [] if races else [*early_leases(plan, distance)]  # and hand keys on
    raced = {violation.value for violation in (*races, *early)}
    claims = [
        *(claim for claim in wrong_claims(plan, distance) if claim.value not in raced),
        *wrong_witnesses(plan, arcs, distance, broken=not (races or runaways or early)),
    ]
    conditions = [] if races or runaways or early else [*wrong_conditions(plan)]
    return [*races, *runaways, *early, *conditions, *map(_advised, claims)]


def _folded(found: list[Violation]) -> list[Violation]:
    """Races of two ops that a stream runs in a wrong order are listed under that report."""
    for fed in [each for each in found if each.code == "SW-LAUNCH"]:
        assert fed.before is not None
        assert fed.after is not None
        turned = {fed.before.value, fed.after.value}
        same = [each for each in found if _touching(each) == turned]
        also = tuple(line for each in same for line in (_headline(each), *each.also))
        lines = "".join(f"\n  also     {line}" for line in also)
        whole = replace(fed, message=fed.message + lines, also=(*fed.also, *also))
        found = [whole if each is fed else each for each in found if each not in same]
    return found


def _touching(violation: Violation) -> set[str]:
    return {access.op for access in (violation.before, violation.after) if access}


def _headline(race: Violation) -> str:
    assert race.before is not None
    assert race.after is not None
    assert race.needed is not None
    order = instant(race.before.op, race.after.op, race.needed)
    return f"{race.hazard} {race.value}: {order}"


_ADVICE = {
    "SW-RATE": "an unrolled graph is the compiler's to make: compile the declared graph again",
    "SW-ACTORS": "programs are the compiler's to make: compile the graph again",
    "SW-SLOTS": "give it one slot at least, or let it be fresh",
    "SW-WITNESS": "compile the graph again; or state the requirement, with a path of the plan",
}


def _advised(violation: Violation) -> Violation:
    """With what to do, where that follows from the code alone."""
    advice = _ADVICE.get(violation.code)
    if violation.repair or advice is None:
        return violation
    lines = "".join(f"\n  also     {line}" for line in violation.also)
    message = f"{violation.message}\n  repair   {advice}{lines}"
    return replace(violation, message=message, repair=advice)


def _host_order(plan: Plan, distance: Distances) -> Iterator[tuple[Need, Report]]:
    """Streams are fed in the order they run, and no wait is enqueued before its record."""
    ops = plan.graph.vertices
    for u, v, d in program_arcs(plan):
        first, second = ops[u].launch, ops[v].launch
        if first is None or second is None or is_fed(distance, first, second, d):
            continue
        yield (
            Need("LAUNCH", ops[u].actor, 0, first, second, d),
            Report(
                "SW-LAUNCH",
                f"stream {ops[u].actor!r} runs {instant(u, v, d)}, so it must be given them in "
                "that order",
                ("launches", u),
                ("launches", v),
            ),
        )
    for wait in plan.waits:
        stream = ops[wait.target].actor
        first, second = ops[wait.source].launch, ops[wait.target].launch
        if first is None or second is None or is_fed(distance, first, second, wait.distance):
            continue
        yield (
            Need("LAUNCH", wait.source, 0, first, second, wait.distance),
            Report(
                "SW-HOST-ORDER",
                f"stream {stream!r} waits for the event of {wait.source!r} before "
                f"{wait.target!r} (step+{wait.distance}), but the wait may be enqueued before "
                "the event is recorded, and then does nothing",
                ("records", f"the event of {wait.source}"),
                ("enqueues", f"the wait for {wait.source}"),
            ),
        )


def _unordered(plan: Plan, arcs: Sequence[Arc], distance: Distances) -> Iterator[Violation]:
    """What is required and has no path, of streams' feeding and of data: one report per cause."""
    feeding = dict(_host_order(plan, distance))
    missing = [need for need in needs_of(plan) if not is_met(plan, need, distance)]
    causes = _by_slots(plan, _causes(plan, [*feeding, *missing], arcs), distance)
    for need, others in causes:
        yield missing_order(
            plan,
            need,
            feeding.get(need) or _race(plan, need),
            distance,
            repair_of(plan, [need, *others], distance),
            tuple(str(other) for other in others),
        )


def _race(plan: Plan, need: Need) -> Report:
    verb, done = {"R": "read", "W": "write"}, {"R": "read", "W": "written"}
    ops = plan.graph.vertices
    place = "" if need.value in plan.graph.states else copies(plan, need.value)
    first, second = need.hazard[2], need.hazard[0]
    return Report(
        RACE_CODES[need.hazard, ops[need.before].side, ops[need.after].side],
        f"{need.hazard} race on {need.value!r}{place}: {need.after} of step "
        f"{later(need.distance)} may {verb[second]} it before {need.before} of step i has "
        f"{done[first]} it",
        (f"{verb[first]}s", need.value),
        (f"{verb[second]}s", need.value),
    )


def _by_slots(
    plan: Plan, causes: Sequence[tuple[Need, list[Need]]], distance: Distances
) -> list[tuple[Need, list[Need]]]:
    """Causes with those merged that more slots of one value would repair together."""
    merged: dict[str, tuple[Need, list[Need]]] = {}
    found: list[tuple[Need, list[Need]]] = []
    for need, others in causes:
        if slots_for(plan, need, distance) is None:
            found.append((need, others))
        elif need.value in merged:
            merged[need.value][1].extend([need, *others])
        else:
            merged[need.value] = (need, list(others))
            found.append(merged[need.value])
    return found


def _causes(
    plan: Plan, missing: Sequence[Need], arcs: Sequence[Arc]
) -> list[tuple[Need, list[Need]]]:
    """The missing orderings that imply all others, each with those that follow from it."""
    ops = list(plan.graph.vertices)
    kept = {need: (need.before, goal_of(plan, need), need.distance) for need in missing}
    if stuck_cycle(ops, [*arcs, *kept.values()]):  # no waits could add them all
        misplaced = _misplaced(plan, missing, arcs)
        rest = [need for need in missing if not any(need in group for group in misplaced)]
        causes = [(group[0], group[1:]) for group in misplaced]
        return causes + (_causes(plan, rest, arcs) if causes else [(need, []) for need in rest])
    for need in list(kept):
        others = [arc for other, arc in kept.items() if other != need]
        if is_met(plan, need, Distances(ops, [*arcs, *others])):
            del kept[need]
    found: dict[Need, list[Need]] = {need: [] for need in kept}
    with_cause = {need: Distances(ops, [*arcs, arc]) for need, arc in kept.items()}
    for need in missing:
        if need not in found:
            cause = next(
                (cause for cause, table in with_cause.items() if is_met(plan, need, table)),
                next(iter(found)),
            )
            found[cause].append(need)
    return list(found.items())


def _misplaced(plan: Plan, missing: Sequence[Need], arcs: Sequence[Arc]) -> list[list[Need]]:
    """Orderings that the plan has the other way round, by the op that stands in a wrong place.

    With each group comes what else is missing at that op.
    """
    distance = Distances(list(plan.graph.vertices), arcs)
    left = list(missing)
    groups = []
    while reversed_ := [need for need in left if is_reversed(plan, need, distance)]:
        ends = [op for need in reversed_ for op in _ends(plan, need)]
        everywhere = [op for need in left for op in _ends(plan, need)]
        worst = max(ends, key=lambda op: (ends.count(op), everywhere.count(op)))
        group = [need for need in reversed_ if worst in _ends(plan, need)]
        group += [need for need in left if need not in group and worst in _ends(plan, need)]
        groups.append(group)
        left = [need for need in left if need not in group]
    return groups


def _ends(plan: Plan, need: Need) -> tuple[str, str]:
    return need.before, goal_of(plan, need)


def _runaways(plan: Plan, distance: Distances) -> list[Violation]:
    """Ops that nothing keeps within any number of steps of another; all in one report."""
    ops = plan.graph.vertices
    last = {actor: program[-1][0] for actor, program in plan.actors.items() if program}
    first = {actor: program[0][0] for actor, program in plan.actors.items() if program}
    free = [
        (slow, fast)
        for slow in last.values()
        for fast in first.values()
        if ops[fast].side == "host"
        and ops[fast].node.rank == ops[slow].node.rank
        and distance(slow, fast) is None
    ]
    if not free:
        return []
    slow, fast = free[0]
    repair = f"let {fast} wait for {slow} of some step before"
    also = tuple(f"{fast} of {slow}" for slow, fast in free[1:])
    lines = "".join(f"\n  also     {line}" for line in also)
    return [
        Violation(
            "SW-BOUND",
            f"nothing limits how far {fast!r} on {ops[fast].actor} runs ahead of {slow!r} on "
            f"{ops[slow].actor}\n  repair   {repair}{lines}",
            "BOUND",
            "",
            access_of(plan, slow, "runs", slow),
            access_of(plan, fast, "runs", fast),
            also=also,
            repair=repair,
        )
    ]
