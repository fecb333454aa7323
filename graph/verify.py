"""Check a plan against the declarations it came from, trusting nothing that the planner said.

The verifier is the second opinion: it shares no code with the planner. From the declared
accesses it derives anew which orderings must exist, from the plan's actors and waits which
orderings do exist, and compares. A plan passes if

- every op runs once per iteration, on its own actor, device ops at the offset of their launch;
- no cycle of its orderings has a total distance ≤ 0 (such a plan would stop for ever);
- every required ordering has a path at most as long as its distance (SW-RAW-…, SW-WAR-…,
  SW-WAW-…, by the sides of the two accesses);
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

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from .errors import UnsoundPlan
from .plan import Edge, Plan
from .step_graph import Vertex
from .violation import RACE_CODES, Access, Violation

Arc = tuple[str, str, int]  # (u, v, d): u of step i is done before v of step i + d starts


def verify(plan: Plan) -> None:
    """Return if the plan is sound; else raise `UnsoundPlan` with every cause.

    The error's `code` and `line` are those of the first cause.
    """
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
    structural = [*_actors(plan), *_slots(plan), *_wait_ends(plan)]
    if structural:  # orderings mean nothing before the programs do
        return [_advised(violation) for violation in structural]
    arcs = list(_arcs(plan))
    cycle = _stuck(list(plan.graph.vertices), arcs)
    if cycle:
        return [_deadlock(plan, cycle)]
    distance = _Distances(list(plan.graph.vertices), arcs)
    races = _folded([*_unordered(plan, arcs, distance)])
    raced = {violation.value for violation in races}
    claims = [
        *(claim for claim in _claims(plan, distance) if claim.value not in raced),
        *_witnesses(plan, arcs, distance, broken=not races),
    ]
    return [*races, *map(_advised, claims)]


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
    order = _instant(race.before.op, race.after.op, race.needed)
    return f"{race.hazard} {race.value}: {order}"


_ADVICE = {
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


# --- what must be ordered -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Need:
    """before(i) must be done when after(i + distance) starts."""

    hazard: str
    value: str
    carry: int
    before: str
    after: str
    distance: int

    def __str__(self) -> str:
        what = f"{self.hazard} {self.value}".strip()
        return f"{what}: {_instant(self.before, self.after, self.distance)}"


def _needs(plan: Plan) -> Iterator[_Need]:
    """Every required ordering, from the declared accesses alone."""
    ops = plan.graph.vertices
    writer = {name: op.name for op in ops.values() for name in op.op.writes}
    for op in ops.values():
        for read in op.op.reads:
            if read.name in plan.graph.states or read.name not in writer:
                continue  # states below; an external value never changes
            wrote, copies = writer[read.name], plan.slots.get(read.name)
            yield _Need("RAW", read.name, read.carry, wrote, op.name, read.carry)
            if copies is not None:  # the version read is overwritten `copies` versions later
                gap = copies - read.carry
                yield _Need("WAR", read.name, read.carry, op.name, wrote, gap)
    for name, wrote in writer.items():
        copies = plan.slots.get(name)
        if name not in plan.graph.states and copies is not None:
            yield _Need("WAW", name, 0, wrote, wrote, copies)
    for state in plan.graph.states:
        yield from _state_needs(state, list(ops.values()))


def _state_needs(state: str, ops: Sequence[Vertex]) -> Iterator[_Need]:
    """Conflicting accesses of a state, in the order of (step + offset, position)."""
    touching = [
        (op, letter)
        for op in ops
        for letter, names in (("R", [read.name for read in op.op.reads]), ("W", op.op.writes))
        if state in names
    ]
    for first, a in touching:
        for second, b in touching:
            if a == b == "R":
                continue
            # The least d for which (step + offset, position) of `second` at i + d is later.
            gap = first.offset - second.offset + (first.position >= second.position)
            yield _Need(f"{b}A{a}", state, 0, first.name, second.name, gap)


def _feeds(plan: Plan) -> Iterator[_Need]:
    """What streams need of the order between launch ops, as far as one thread's does not say it."""
    ops = plan.graph.vertices
    waits = dict.fromkeys((wait.source, wait.target, wait.distance) for wait in plan.waits)
    for u, v, d in (*_program_arcs(plan), *waits):
        first, second = ops[u].launch, ops[v].launch
        if first is None or second is None or (first == second and d >= 0):
            continue
        if ops[first].actor != ops[second].actor or (u, v, d) in waits:
            yield _Need("LAUNCH", "", 0, first, second, d)


# --- what is ordered ----------------------------------------------------------------------


def _arcs(plan: Plan) -> Iterator[Arc]:
    """Every ordering that running the plan gives: programs, launches, waits."""
    yield from _program_arcs(plan)
    for op in plan.graph.vertices.values():
        if op.launch is not None:
            yield op.launch, op.name, 0
    for wait in plan.waits:
        yield wait.source, wait.target, wait.distance


def _program_arcs(plan: Plan) -> Iterator[Arc]:
    for program in plan.actors.values():
        following = [*program[1:], *program[:1]]
        for place, ((u, at), (v, then)) in enumerate(zip(program, following, strict=True)):
            # In iteration t the actor runs u for step t - at, and v for step t - then.
            yield u, v, at - then + (place == len(program) - 1)


class _Distances:
    """The least distance d such that u(i) is done before v(i + d) starts, for all u and v.

    By at least one ordering: an op is not before itself. Needs cycles of positive distance.
    """

    def __init__(self, ops: Sequence[str], arcs: Iterable[Arc]) -> None:
        self._index = {op: place for place, op in enumerate(ops)}
        self._arcs = list(arcs)
        table: NDArray[np.float64] = np.full((len(ops), len(ops)), np.inf)
        for u, v, d in self._arcs:
            i, j = self._index[u], self._index[v]
            table[i, j] = min(table[i, j], d)
        for k in range(len(ops)):
            np.minimum(table, table[:, k, None] + table[None, k, :], out=table)
        self._table = table

    def __call__(self, u: str, v: str) -> int | None:
        least = self._table[self._index[u], self._index[v]]
        return int(least) if np.isfinite(least) else None

    def ordered(self, u: str, v: str, most: int) -> bool:
        least = self(u, v)
        return least is not None and least <= most

    def path(self, u: str, v: str) -> tuple[tuple[str, int], ...]:
        """A shortest path as (op, total distance so far), of fewest arcs; empty if unordered."""
        least = self(u, v)
        if least is None:
            return ()
        rounds: list[dict[str, tuple[int, str]]] = [{u: (0, u)}]  # by number of arcs
        while v not in rounds[-1] or len(rounds) == 1 or rounds[-1][v][0] > least:
            reached: dict[str, tuple[int, str]] = {}
            for source, target, d in self._arcs:
                if source in rounds[-1]:
                    total = rounds[-1][source][0] + d
                    if target not in reached or total < reached[target][0]:
                        reached[target] = (total, source)
            rounds.append(reached)
        found: list[tuple[str, int]] = []
        at = v
        for reached in reversed(rounds):
            found.append((at, reached[at][0]))
            at = reached[at][1]
        return tuple(reversed(found))


def _stuck(ops: Sequence[str], arcs: Sequence[Arc]) -> list[tuple[str, int]]:
    """A cycle of total distance ≤ 0 as (op, distance to the next), or nothing.

    Bellman-Ford with lengths d * (n + 1) - 1: those of a simple cycle sum to less than zero
    exactly if its distances sum to zero or less.
    """
    length = dict.fromkeys(ops, 0)
    came: dict[str, Arc] = {}
    last: str | None = None
    for _ in range(len(ops) + 1):
        last = None
        for u, v, d in arcs:
            if length[u] + d * (len(ops) + 1) - 1 < length[v]:
                length[v] = length[u] + d * (len(ops) + 1) - 1
                came[v] = (u, v, d)
                last = v
        if last is None:
            return []
    assert last is not None, "the loop above returned otherwise"
    for _ in ops:  # walk back into the cycle, then once around it
        last = came[last][0]
    cycle: list[tuple[str, int]] = []
    at = last
    while not cycle or at != last:
        u, _, d = came[at]
        cycle.append((u, d))
        at = u
    return cycle[::-1]


# --- the checks ---------------------------------------------------------------------------


def _actors(plan: Plan) -> Iterator[Violation]:
    """Each op once, on its actor; device ops beside their launch; phases in their order."""
    ops = plan.graph.vertices
    runs = [(actor, op, at) for actor, program in plan.actors.items() for op, at in program]
    offset = {op: at for _, op, at in runs}
    for name in ops:
        count = sum(op == name for _, op, _ in runs)
        if count != 1:
            yield Violation(
                "SW-ACTORS", f"op {name!r} stands {count} times in the programs, not once"
            )
    for actor, op, at in runs:
        if op not in ops:
            yield Violation("SW-ACTORS", f"actor {actor!r} runs {op!r}, which the graph lacks")
        elif ops[op].actor != actor:
            yield Violation("SW-ACTORS", f"op {op!r} runs on {actor!r}, not on {ops[op].actor!r}")
        elif (launch := ops[op].launch) is not None and offset.get(launch, at) != at:
            yield Violation(
                "SW-ACTORS",
                f"op {op!r} runs at offset {at}, its launch {launch!r} at {offset[launch]}",
            )
        elif plan.graph.order == "keep" and at != ops[op].offset:
            yield Violation(
                "SW-ACTORS", f"op {op!r} runs at offset {at}, declared {ops[op].offset}"
            )
    place = {op: (at, index) for index, (_, op, at) in enumerate(runs)}
    for node in plan.graph.nodes:
        for names in (node.op_names("host"), node.op_names("device") if node.device else ()):
            for first, second in pairwise(names):
                if first in place and second in place and place[first] > place[second]:
                    yield Violation(
                        "SW-ACTORS", f"phase {second!r} runs before {first!r} of the same node"
                    )


def _slots(plan: Plan) -> Iterator[Violation]:
    written = {name for op in plan.graph.vertices.values() for name in op.op.writes}
    for name, value in plan.graph.values.items():
        copies = plan.slots.get(name)
        if copies is not None and copies < 1:
            yield Violation("SW-SLOTS", f"value {name!r} has {copies} slots", value=name)
        if copies is None and value.storage == "slots" and name in written:
            yield Violation("SW-SLOTS", f"value {name!r} has no number of slots", value=name)


def _wait_ends(plan: Plan) -> Iterator[Violation]:
    """A wait's ends are ops, and a stream waits only for device work."""
    ops = plan.graph.vertices
    for wait in plan.waits:
        unknown = [op for op in (wait.source, wait.target) if op not in ops]
        if unknown:
            yield Violation("SW-ACTORS", f"a wait names {unknown[0]!r}, which the graph lacks")
        elif ops[wait.target].side == "device" and ops[wait.source].side == "host":
            yield Violation(
                "SW-HOST-ORDER",
                f"stream {ops[wait.target].actor!r} cannot wait for host op {wait.source!r}: host "
                f"work has no event. Let {ops[wait.target].launch!r}, which launches "
                f"{wait.target!r}, wait for it\n  repair   let {ops[wait.target].launch} wait for "
                f"{wait.source} of {_ago(wait.distance)}",
                before=_access(plan, wait.source, "runs", wait.source),
                after=_access(plan, wait.target, "waits for", wait.source),
                needed=wait.distance,
                repair=f"let {ops[wait.target].launch} wait for {wait.source} of "
                f"{_ago(wait.distance)}",
            )


@dataclass(frozen=True, slots=True)
class _Report:
    """How to report that a requirement is not met."""

    code: str
    headline: str
    first: tuple[str, str]  # verb and object of the access that must come first
    second: tuple[str, str]


def _host_order(plan: Plan, distance: _Distances) -> Iterator[tuple[_Need, _Report]]:
    """Streams are fed in the order they run, and no wait is enqueued before its record."""
    ops = plan.graph.vertices
    for u, v, d in _program_arcs(plan):
        first, second = ops[u].launch, ops[v].launch
        if first is None or second is None or _fed(distance, first, second, d):
            continue
        yield (
            _Need("LAUNCH", ops[u].actor, 0, first, second, d),
            _Report(
                "SW-LAUNCH",
                f"stream {ops[u].actor!r} runs {_instant(u, v, d)}, so it must be given them in "
                "that order",
                ("launches", u),
                ("launches", v),
            ),
        )
    for wait in plan.waits:
        stream = ops[wait.target].actor
        first, second = ops[wait.source].launch, ops[wait.target].launch
        if first is None or second is None or _fed(distance, first, second, wait.distance):
            continue
        yield (
            _Need("LAUNCH", wait.source, 0, first, second, wait.distance),
            _Report(
                "SW-HOST-ORDER",
                f"stream {stream!r} waits for the event of {wait.source!r} before "
                f"{wait.target!r} (step+{wait.distance}), but the wait may be enqueued before "
                "the event is recorded, and then does nothing",
                ("records", f"the event of {wait.source}"),
                ("enqueues", f"the wait for {wait.source}"),
            ),
        )


def _fed(distance: _Distances, first: str, second: str, most: int) -> bool:
    """`first` hands to its stream before `second` does: one launch op feeds in phase order."""
    return (first == second and most >= 0) or distance.ordered(first, second, most)


def _goal(plan: Plan, need: _Need) -> str:
    """Host work reaches a device op only through the op that launches it."""
    ops = plan.graph.vertices
    after = ops[need.after]
    if ops[need.before].side == "host" and after.launch is not None:
        return after.launch
    return need.after


def _met(plan: Plan, need: _Need, distance: _Distances) -> bool:
    goal = _goal(plan, need)
    if goal != need.after and goal == need.before:
        return need.distance >= 0  # the launch op itself is the first access
    return distance.ordered(need.before, goal, need.distance)


def _unordered(plan: Plan, arcs: Sequence[Arc], distance: _Distances) -> Iterator[Violation]:
    """What is required and has no path, of streams' feeding and of data: one report per cause."""
    feeding = dict(_host_order(plan, distance))
    missing = [need for need in _needs(plan) if not _met(plan, need, distance)]
    causes = _by_slots(plan, _causes(plan, [*feeding, *missing], arcs), distance)
    for need, others in causes:
        yield _missing(
            plan,
            need,
            feeding.get(need) or _race(plan, need),
            distance,
            _repair(plan, [need, *others], distance),
            tuple(str(other) for other in others),
        )


def _race(plan: Plan, need: _Need) -> _Report:
    verb, done = {"R": "read", "W": "write"}, {"R": "read", "W": "written"}
    ops = plan.graph.vertices
    place = "" if need.value in plan.graph.states else _copies(plan, need.value)
    first, second = need.hazard[2], need.hazard[0]
    return _Report(
        RACE_CODES[need.hazard, ops[need.before].side, ops[need.after].side],
        f"{need.hazard} race on {need.value!r}{place}: {need.after} of step "
        f"{_later(need.distance)} may {verb[second]} it before {need.before} of step i has "
        f"{done[first]} it",
        (f"{verb[first]}s", need.value),
        (f"{verb[second]}s", need.value),
    )


def _by_slots(
    plan: Plan, causes: Sequence[tuple[_Need, list[_Need]]], distance: _Distances
) -> list[tuple[_Need, list[_Need]]]:
    """Causes with those merged that more slots of one value would repair together."""
    merged: dict[str, tuple[_Need, list[_Need]]] = {}
    found: list[tuple[_Need, list[_Need]]] = []
    for need, others in causes:
        if _slots_for(plan, need, distance) is None:
            found.append((need, others))
        elif need.value in merged:
            merged[need.value][1].extend([need, *others])
        else:
            merged[need.value] = (need, list(others))
            found.append(merged[need.value])
    return found


def _causes(
    plan: Plan, missing: Sequence[_Need], arcs: Sequence[Arc]
) -> list[tuple[_Need, list[_Need]]]:
    """The missing orderings that imply all others, each with those that follow from it."""
    ops = list(plan.graph.vertices)
    kept = {need: (need.before, _goal(plan, need), need.distance) for need in missing}
    if _stuck(ops, [*arcs, *kept.values()]):  # no waits could add them all
        misplaced = _misplaced(plan, missing, arcs)
        rest = [need for need in missing if not any(need in group for group in misplaced)]
        causes = [(group[0], group[1:]) for group in misplaced]
        return causes + (_causes(plan, rest, arcs) if causes else [(need, []) for need in rest])
    for need in list(kept):
        others = [arc for other, arc in kept.items() if other != need]
        if _met(plan, need, _Distances(ops, [*arcs, *others])):
            del kept[need]
    found: dict[_Need, list[_Need]] = {need: [] for need in kept}
    with_cause = {need: _Distances(ops, [*arcs, arc]) for need, arc in kept.items()}
    for need in missing:
        if need not in found:
            cause = next(
                (cause for cause, table in with_cause.items() if _met(plan, need, table)),
                next(iter(found)),
            )
            found[cause].append(need)
    return list(found.items())


def _misplaced(plan: Plan, missing: Sequence[_Need], arcs: Sequence[Arc]) -> list[list[_Need]]:
    """Orderings that the plan has the other way round, by the op that stands in a wrong place.

    With each group comes what else is missing at that op.
    """
    distance = _Distances(list(plan.graph.vertices), arcs)
    left = list(missing)
    groups = []
    while reversed_ := [need for need in left if _is_reversed(plan, need, distance)]:
        ends = [op for need in reversed_ for op in _ends(plan, need)]
        everywhere = [op for need in left for op in _ends(plan, need)]
        worst = max(ends, key=lambda op: (ends.count(op), everywhere.count(op)))
        group = [need for need in reversed_ if worst in _ends(plan, need)]
        group += [need for need in left if need not in group and worst in _ends(plan, need)]
        groups.append(group)
        left = [need for need in left if need not in group]
    return groups


def _ends(plan: Plan, need: _Need) -> tuple[str, str]:
    return need.before, _goal(plan, need)


def _is_reversed(plan: Plan, need: _Need, distance: _Distances) -> bool:
    """Whether a wait for it would close a cycle of distance ≤ 0."""
    goal = _goal(plan, need)
    back = 0 if goal == need.before else distance(goal, need.before)
    return back is not None and back + need.distance <= 0


def _claims(plan: Plan, distance: _Distances) -> Iterator[Violation]:
    """The plan states every requirement as strongly as it must be met. One report per value."""
    stated: dict[tuple[str, str, str, str, int], int] = {}
    for edge in (*plan.edges, *plan.launch_order):
        key = (edge.source, edge.target, edge.value, edge.hazard, edge.carry)
        stated[key] = min(edge.distance, stated.get(key, edge.distance))
    poor: dict[str, list[tuple[_Need, str]]] = {}
    for need in (*_needs(plan), *_feeds(plan)):
        claimed = stated.get((need.before, need.after, need.value, need.hazard, need.carry))
        if claimed is None:
            poor.setdefault(need.value, []).append((need, "no edge states the requirement"))
        elif claimed > need.distance:
            problem = f"an edge at distance {claimed} weakens the requirement"
            poor.setdefault(need.value, []).append((need, problem))
    for value, found in poor.items():
        need, problem = found[0]
        yield Violation(
            "SW-WITNESS",
            f"{problem} {need}",
            need.hazard,
            value,
            _access(plan, need.before, "touches", value),
            _access(plan, need.after, "touches", value),
            need.distance,
            distance(need.before, need.after),
            also=tuple(str(other) for other, _ in found[1:]),
        )


def _witnesses(
    plan: Plan, arcs: Sequence[Arc], distance: _Distances, broken: bool
) -> Iterator[Violation]:
    """Witnesses that prove nothing, one report per reason.

    Only if `broken`, those in which a step is missing: where there is a race, that is its echo.
    """
    least: dict[tuple[str, str], int] = {}
    for u, v, d in arcs:
        least[u, v] = min(d, least.get((u, v), d))
    reasons: dict[str, list[Edge]] = {}
    for edge in (*plan.edges, *plan.launch_order):
        reason = _malformed(plan, edge) or (_gap(plan, edge, least) if broken else None)
        if reason:
            reasons.setdefault(reason, []).append(edge)
    for reason, edges in reasons.items():
        edge = edges[0]
        yield Violation(
            "SW-WITNESS",
            f"the witness of {_edge_text(edge)} is no proof: {reason}",
            edge.hazard,
            edge.value,
            _access(plan, edge.source, "touches", edge.value),
            _access(plan, edge.target, "touches", edge.value),
            edge.distance,
            distance(edge.source, edge.target)
            if {edge.source, edge.target} <= plan.graph.vertices.keys()
            else None,
            also=tuple(_edge_text(other) for other in edges[1:]),
        )


def _gap(plan: Plan, edge: Edge, least: Mapping[tuple[str, str], int]) -> str | None:
    """A step of the witness that the plan does not order."""
    if edge.event is not None and edge.event not in plan.records:
        return f"it names the event of {edge.event!r}, which nobody records"
    for (u, at), (v, then) in pairwise(edge.witness):
        if least.get((u, v), then - at + 1) > then - at:
            return f"the plan has no ordering {_instant(u, v, then - at)}"
    return None


def _malformed(plan: Plan, edge: Edge) -> str | None:
    """Why an edge's witness would prove nothing even if each of its steps were ordered."""
    ops = plan.graph.vertices
    path = edge.witness
    for op in (edge.source, edge.target, *(op for op, _ in path)):
        if op not in ops:
            return f"{op!r} is no op of the graph"
    if len(path) < 2 or path[0] != (edge.source, 0) or path[-1][0] != edge.target:
        return f"it does not lead from {edge.source!r} to {edge.target!r}"
    if path[-1][1] > edge.distance:
        return f"it is longer ({path[-1][1]}) than the distance ({edge.distance})"
    launch = ops[edge.target].launch
    if (
        ops[edge.source].side == "host"
        and launch is not None
        and not any(op == launch and total <= edge.distance for op, total in path)
    ):
        return f"host work reaches {edge.target!r} only through its launch {launch!r}"
    if (edge.from_stream, edge.to_stream) != (ops[edge.source].actor, ops[edge.target].actor):
        return f"it names the actors {edge.from_stream!r} and {edge.to_stream!r}"
    return None


# --- reports ------------------------------------------------------------------------------


def _missing(
    plan: Plan,
    need: _Need,
    report: _Report,
    distance: _Distances,
    repair: str,
    also: tuple[str, ...],
) -> Violation:
    """An ordering that is needed and not there."""
    goal = _goal(plan, need)
    present, path = _present(plan, need, distance)
    needed = _instant(need.before, need.after, need.distance)
    if goal != need.after:
        needed += f", through its launch {goal!r}"
    if present is None:
        shown = "no ordering between them"
    else:
        shown = f"only {_instant(need.before, goal, present)}: {_path_text(path)}"
    before = _access(plan, need.before, *report.first, step=0)
    after = _access(plan, need.after, *report.second, step=need.distance)
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


def _present(
    plan: Plan, need: _Need, distance: _Distances
) -> tuple[int | None, tuple[tuple[str, int], ...]]:
    """The nearest order that there is, and the path that gives it."""
    goal = _goal(plan, need)
    if goal != need.after and goal == need.before:  # it launches the second access itself
        return 0, ((need.before, 0), (need.after, 0))
    return distance(need.before, goal), distance.path(need.before, goal)


def _place(plan: Plan, value: str, version: int) -> str:
    """Where the version of a value lies, relative to step i."""
    if value in plan.graph.states:
        return "in place"
    copies = plan.slots.get(value)
    if copies is None:
        return f"version {_later(version)}, allocated anew in each step"
    number = f"({_later(version)})" if version else "i"
    slot = "the only slot" if copies == 1 else f"slot {number} mod {copies}"
    return f"version {_later(version)} in {slot}"


def _slots_for(plan: Plan, need: _Need, distance: _Distances) -> int | None:
    """How many slots would repair an overwriting, if any number would.

    The overwriting is K - carry steps after the access, and what orders them is `present` long.
    """
    if need.hazard not in ("WAR", "WAW") or plan.slots.get(need.value) is None:
        return None
    present, _ = _present(plan, need, distance)
    return None if present is None else present + need.carry


def _repair(plan: Plan, needs: Sequence[_Need], distance: _Distances) -> str:
    """Which wait, or how many slots, would order all that one cause leaves unordered."""
    need = needs[0]
    counts = [_slots_for(plan, each, distance) for each in needs if each.value == need.value]
    enough = max((count for count in counts if count is not None), default=None)
    if len(counts) < len(needs) or None in counts:
        enough = None
    more = "" if enough is None else f"give {need.value!r} {_count(enough, 'slot')}"
    goal = _goal(plan, need)
    if _is_reversed(plan, need, distance):
        if more:
            return f"{more} (a wait would be a deadlock)"
        return (
            f"run {goal} later on {plan.graph.vertices[goal].actor!r}, after {need.before} of "
            f"{_ago(need.distance)}; a wait would be a deadlock, since "
            f"{_path_text(distance.path(goal, need.before))} is ordered already"
        )
    found = f"let {goal} wait for {need.before} of {_ago(need.distance)}"
    first, second = plan.graph.vertices[need.before].launch, plan.graph.vertices[goal].launch
    if first and second and not _fed(distance, first, second, need.distance):
        found += f", and {second} for {first}, or the wait is enqueued before its record"
    return f"{found}; or {more}" if more else found


def _deadlock(plan: Plan, cycle: Sequence[tuple[str, int]]) -> Violation:
    shown = " → ".join(f"{op} (+{d})" if d >= 0 else f"{op} ({d})" for op, d in cycle)
    total = sum(d for _, d in cycle)
    ends = [op for op, _ in [*cycle[1:], cycle[0]]]
    steps = {(u, v, d) for (u, d), v in zip(cycle, ends, strict=True)}
    waits = [w for w in plan.waits if (w.source, w.target, w.distance) in steps]
    repair = "take away one of its waits: " + ", ".join(
        f"{wait.target} for {wait.source} of {_ago(wait.distance)}" for wait in waits
    )
    if not waits:
        repair = "run the ops of the actors on it in another order"
    return Violation(
        "SW-DEADLOCK",
        f"the plan waits for itself: {shown} → {cycle[0][0]}, in all {total} ≤ 0\n"
        f"  repair   {repair}",
        repair=repair,
    )


def _access(plan: Plan, op: str, verb: str, value: str, step: int | None = None) -> Access:
    vertex = plan.graph.vertices.get(op)
    if vertex is None:
        return Access("?", op, "?", verb, value)
    return Access(vertex.node.name, op, vertex.actor, verb, value, vertex.node.line, step)


def _copies(plan: Plan, value: str) -> str:
    copies = plan.slots.get(value)
    return "" if copies is None else f" ({copies} slot{'s' if copies != 1 else ''})"


def _instant(u: str, v: str, d: int) -> str:
    """`u(i) before v(i+d)`."""
    return f"{u}(i) before {v}({_later(d)})"


def _later(d: int) -> str:
    return "i" if d == 0 else f"i{d:+d}"


def _ago(d: int) -> str:
    """Which step's event an op of step i + d waits for, seen from that op."""
    if d == 0:
        return "the same step"
    return f"{'the step' if abs(d) == 1 else f'{abs(d)} steps'} {'before' if d > 0 else 'after'}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _path_text(path: Sequence[tuple[str, int]]) -> str:
    return " → ".join(f"{op}{f'@{total:+d}' if total else ''}" for op, total in path)


def _edge_text(edge: Edge) -> str:
    what = f"{edge.hazard} {edge.value}".strip()
    return f"{what}: {_instant(edge.source, edge.target, edge.distance)}"
