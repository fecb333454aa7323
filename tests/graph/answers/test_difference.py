"""What differs between two plans: the one plan and the difference give the other."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given

from stepweave.graph.answers.difference import Difference, difference
from stepweave.graph.plan import Plan, Wait
from stepweave.graph.planner.compile import compile_plan
from tests.graph.pipelines import decode
from tests.graph.shipped_plans import SHIPPED, shipped_plan
from tests.graph.strategies import examples, plans


def waits(plan: Plan) -> set[tuple[str, str, int]]:
    return {(wait.source, wait.target, wait.distance) for wait in plan.waits}


def gone(found: Difference) -> set[tuple[str, str, int]]:
    moved = {(m.source, m.target, m.before) for m in found.waits_moved}
    return moved | {(w.source, w.target, w.distance) for w in found.waits_removed}


def come(found: Difference) -> set[tuple[str, str, int]]:
    moved = {(m.source, m.target, m.after) for m in found.waits_moved}
    return moved | {(w.source, w.target, w.distance) for w in found.waits_added}


def check(before: Plan, after: Plan) -> None:
    found, back = difference(before, after), difference(after, before)
    assert (waits(before) - gone(found)) | come(found) == waits(after)
    assert (gone(found), come(found)) == (come(back), gone(back))
    for ours, theirs in ((found, back), (back, found)):
        assert ours.ops.removed == theirs.ops.added
        assert ours.requirements_removed == theirs.requirements_added
        assert {e.after for e in ours.incidental} == {e.before for e in theirs.direct}
    slots = {**before.slots, **{name: pair[1] for name, pair in found.slots.items()}}
    kept = {name: slots[name] for name in after.slots if name in slots}
    assert kept == {name: after.slots[name] for name in kept}
    assert {a: p[1] for a, p in found.programs.items() if p[1]} == {
        a: p for a, p in after.actors.items() if before.actors.get(a) != p
    }
    json.dumps(found.to_json())


@examples(15)
@given(plans(), plans())
def test_one_plan_and_the_difference_give_the_other(before: Plan, after: Plan) -> None:
    check(before, after)


@pytest.mark.sampled(12)
@pytest.mark.parametrize(("name", "depth"), SHIPPED)
def test_every_shipped_plan_differs_from_quickstart_by_what_it_says(
    name: str, depth: int | None
) -> None:
    check(shipped_plan("quickstart", 2), shipped_plan(name, depth))


@examples(15)
@given(plans())
def test_a_plan_is_identical_to_itself(plan: Plan) -> None:
    found = difference(plan, compile_plan(plan.graph))
    assert found.identical
    assert not found.cycle_changed
    empty = found.to_json()
    assert not any(empty["waits"].values())
    assert not any(empty[key] for key in ("slots", "actors", "costs"))
    assert not any(empty["requirements"].values())


def test_depth_moves_the_order_the_slots_and_the_bound() -> None:
    found = difference(shipped_plan("quickstart", 2), shipped_plan("quickstart", 1))
    assert (found.before.period_us, found.after.period_us) == (500, 640)
    assert found.cycle_changed
    assert found.slots == {"staging": (2, 1)}
    assert list(found.programs) == ["driver"]
    distances = {(n.after.hazard, n.after.value) for n in found.distances}
    assert distances == {
        ("WAR", "staging"),
        ("WAW", "staging"),
        *((hazard, "requests") for hazard in ("RAW", "WAR", "WAW")),
    }


def test_a_guarding_wait_makes_a_protection_direct() -> None:
    found = difference(compile_plan(decode()), compile_plan(decode(staging_slots=1)))
    assert come(found) == {("prepare.device", "prepare.host", 1)}
    assert [(n.after.hazard, n.after.value) for n in found.direct] == [("WAR", "staging")]
    back = difference(compile_plan(decode(staging_slots=1)), compile_plan(decode()))
    assert [(n.before.by, n.after.by) for n in back.incidental] == [("wait", "path")]


def test_a_wait_at_another_distance_is_moved_not_replaced() -> None:
    plan = compile_plan(decode(staging_slots=1))
    first, *rest = plan.waits
    later = Wait(first.source, first.target, first.distance + 1, first.protects)
    found = difference(plan, replace(plan, waits=(later, *rest)))
    assert [m.after - m.before for m in found.waits_moved] == [1]
    assert found.waits_added == found.waits_removed == ()
    assert not found.identical


def test_ops_values_and_costs_of_one_side_only() -> None:
    found = difference(shipped_plan("async", 2), shipped_plan("drafter_stream", 2))
    assert found.ops == ((), ("draft.host", "draft.device"))
    assert set(found.data.added) == {"drafts", "draft_kv"}
    plan = compile_plan(decode())
    slower = compile_plan(decode(), costs={"forward.device": 5000})
    assert difference(plan, slower).costs == {"forward.device": (4000, 5000)}
    assert not difference(plan, replace(plan, costs={**plan.costs, "d2h_copy.host": 1})).identical
