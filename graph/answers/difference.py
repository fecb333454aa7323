"""What differs between two plans: waits, slots, orders, requirements, and what bounds the speed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import starmap
from typing import Any, Literal, NamedTuple

from .. import arguments
from ..plan import By, Edge, Placed, Plan, Wait

Key = tuple[str, str, int, str, str]  # hazard, value, carry, source, target


class Moved(NamedTuple):
    """A wait between the same two ops, at another distance."""

    source: str
    target: str
    before: int
    after: int


class Needed(NamedTuple):
    """A requirement in both plans, which are met, or placed, differently."""

    before: Edge
    after: Edge

    @property
    def change(self) -> Literal["incidental", "direct", "other"]:
        """Whether only a path of other orderings meets it now, or no longer only a path."""
        was, now = self.before.by == "path", self.after.by == "path"
        if was == now:
            return "other"
        return "incidental" if now else "direct"


class Names(NamedTuple):
    """Names that one plan has and the other has not."""

    removed: tuple[str, ...]
    added: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """From plan `before` to plan `after`; empty tuples where nothing changed."""

    before: Plan
    after: Plan
    identical: bool
    ops: Names
    data: Names  # values and states
    waits_removed: tuple[Wait, ...]
    waits_added: tuple[Wait, ...]
    waits_moved: tuple[Moved, ...]
    slots: Mapping[str, tuple[int | None, int | None]]  # of values in both
    programs: Mapping[str, tuple[tuple[Placed, ...], tuple[Placed, ...]]]  # by actor, if changed
    costs: Mapping[str, tuple[float, float]]  # of ops in both
    requirements_removed: tuple[Edge, ...]
    requirements_added: tuple[Edge, ...]
    distances: tuple[Needed, ...]  # the same accesses, needed at another distance
    incidental: tuple[Needed, ...]  # met by a program, a launch or a wait; now by a path only
    direct: tuple[Needed, ...]  # the other way round
    proofs: int  # requirements whose witness alone differs
    leases: Mapping[tuple[str, str, str], tuple[int | None, int | None]]  # that are not the same

    @property
    def cycle_changed(self) -> bool:
        return self.before.critical_cycle != self.after.critical_cycle

    def to_json(self) -> dict[str, Any]:
        return {
            "identical": self.identical,
            "digests": [self.before.digest, self.after.digest],
            "period_us": [self.before.period_us, self.after.period_us],
            "step_us": [self.before.step_us, self.after.step_us],
            "critical_cycle": [
                [list(placed) for placed in plan.critical_cycle]
                for plan in (self.before, self.after)
            ],
            "ops": _names_json(self.ops),
            "values": _names_json(self.data),
            "waits": {
                "removed": [_wait_json(wait) for wait in self.waits_removed],
                "added": [_wait_json(wait) for wait in self.waits_added],
                "moved": [
                    {"from": m.source, "to": m.target, "distance": [m.before, m.after]}
                    for m in self.waits_moved
                ],
            },
            "slots": {name: list(pair) for name, pair in self.slots.items()},
            "actors": {
                actor: [[list(placed) for placed in program] for program in pair]
                for actor, pair in self.programs.items()
            },
            **({"leases": list(starmap(_lease_json, self.leases.items()))} if self.leases else {}),
            "costs": {op: list(pair) for op, pair in self.costs.items()},
            "requirements": {
                "removed": [_edge_json(edge) for edge in self.requirements_removed],
                "added": [_edge_json(edge) for edge in self.requirements_added],
                "distance": [_needed_json(each) for each in self.distances],
                "newly_incidental": [_needed_json(each) for each in self.incidental],
                "no_longer_incidental": [_needed_json(each) for each in self.direct],
                "proved_by_another_path": self.proofs,
            },
        }


def difference(before: Plan, after: Plan) -> Difference:
    """What changed from one plan to the other. Raises `GraphError` if one of them is not a plan."""
    arguments.a("difference", "before", before, Plan, arguments.A_PLAN)
    arguments.a("difference", "after", after, Plan, arguments.A_PLAN)
    was, now = _edges(before), _edges(after)
    both = [Needed(was[key], now[key]) for key in was if key in now]
    waits = [{(w.source, w.target): w for w in plan.waits} for plan in (before, after)]
    costs = {op: (us, after.costs[op]) for op, us in before.costs.items() if op in after.costs}
    return Difference(
        before,
        after,
        before.digest == after.digest and before.costs == after.costs,
        _names(before.graph.vertices, after.graph.vertices),
        _names(_data(before), _data(after)),
        tuple(wait for pair, wait in waits[0].items() if pair not in waits[1]),
        tuple(wait for pair, wait in waits[1].items() if pair not in waits[0]),
        tuple(
            Moved(*pair, wait.distance, waits[1][pair].distance)
            for pair, wait in waits[0].items()
            if pair in waits[1] and waits[1][pair].distance != wait.distance
        ),
        {
            name: (count, after.slots[name])
            for name, count in before.slots.items()
            if name in after.slots and after.slots[name] != count
        },
        {
            actor: (before.actors.get(actor, ()), after.actors.get(actor, ()))
            for actor in dict.fromkeys([*before.actors, *after.actors])
            if before.actors.get(actor) != after.actors.get(actor)
        },
        {op: pair for op, pair in costs.items() if pair[0] != pair[1]},
        tuple(edge for key, edge in was.items() if key not in now),
        tuple(edge for key, edge in now.items() if key not in was),
        tuple(each for each in both if each.before.distance != each.after.distance),
        tuple(each for each in both if each.change == "incidental"),
        tuple(each for each in both if each.change == "direct"),
        sum(_proved_otherwise(each) for each in both),
        _leases(before, after),
    )


def _leases(before: Plan, after: Plan) -> dict[tuple[str, str, str], tuple[int | None, int | None]]:
    """Where users have classes; else they follow from the waits."""
    if not (before.has_classes or after.has_classes):
        return {}
    was, now = (
        {(each.state, each.source, each.target): each.steps for each in plan.leases}
        for plan in (before, after)
    )
    pairs = {key: (was.get(key), now.get(key)) for key in dict.fromkeys([*was, *now])}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def _edges(plan: Plan) -> dict[Key, Edge]:
    return {
        (e.hazard, e.value, e.carry, e.source, e.target): e
        for e in (*plan.edges, *plan.launch_order)
    }


def _proved_otherwise(each: Needed) -> bool:
    same = each.before.by == each.after.by and each.before.distance == each.after.distance
    return same and each.before.witness != each.after.witness


def _data(plan: Plan) -> list[str]:
    return [*plan.graph.values, *plan.graph.states]


def _names(before: Collection[str], after: Collection[str]) -> Names:
    return Names(
        tuple(name for name in before if name not in after),
        tuple(name for name in after if name not in before),
    )


def _names_json(names: Names) -> dict[str, Any]:
    return {"removed": list(names.removed), "added": list(names.added)}


def _wait_json(wait: Wait) -> dict[str, Any]:
    return {"from": wait.source, "to": wait.target, "distance": wait.distance}


def _edge_json(edge: Edge) -> dict[str, Any]:
    return {
        "hazard": edge.hazard,
        "value": edge.value,
        "carry": edge.carry,
        "from": edge.source,
        "to": edge.target,
        "distance": edge.distance,
        "by": edge.by,
    }


def _lease_json(key: tuple[str, str, str], steps: tuple[int | None, int | None]) -> dict[str, Any]:
    return {"state": key[0], "from": key[1], "to": key[2], "steps": list(steps)}


def _needed_json(each: Needed) -> dict[str, Any]:
    by: list[By] = [each.before.by, each.after.by]
    distance = [each.before.distance, each.after.distance]
    return {**_edge_json(each.after), "by": by, "distance": distance}
