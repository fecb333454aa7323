"""The page that shows two plans side by side."""

from __future__ import annotations

import re

import pytest

from stepweave.cli.planned import planned
from stepweave.graph.answers.difference import difference
from stepweave.graph.plan import Plan
from stepweave.graph.planner.switching import switch_plans
from stepweave.timelines.switched import switch_timeline
from stepweave.views.diff_page import diff_page
from tests.views.test_timeline_page import Balanced


def page_of(before: Plan, after: Plan) -> str:
    return diff_page(difference(before, after), "before.yaml", "after.yaml")


def figure(page: str, side: str) -> str:
    found = re.search(rf'<figure id="{side}">.*?</figure>', page, re.DOTALL)
    assert found is not None
    return found.group()


def test_the_page_is_one_sound_file_without_a_script_and_no_id_stands_twice() -> None:
    page = page_of(planned("async"), planned("drafter_stream"))
    parser = Balanced()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    assert "<script" not in page
    assert "script-src &#x27;none&#x27;" in page
    ids = re.findall(r'\sid="([^"]+)"', page)
    assert len(ids) == len(set(ids)) > 10
    used = re.findall(r"url\(#([^)]+)\)", page)
    assert used
    assert set(used) <= set(ids)


def test_ops_and_waits_that_only_one_side_has_are_marked_there_and_listed() -> None:
    before, after = planned("async"), planned("drafter_stream")
    found = difference(before, after)
    page = page_of(before, after)
    left, right = figure(page, "before"), figure(page, "after")
    assert set(found.ops.added) == {"draft.host", "draft.device"}
    assert set(re.findall(r'class="op changed" data-op="([^"]+)"', right)) == set(found.ops.added)
    assert "op changed" not in left
    marked = {int(k) for k in re.findall(r'class="wait changed" data-wait="(\d+)"', right)}
    assert {after.waits[k] for k in marked} == set(found.waits_added)
    assert found.waits_added
    for op in found.ops.added:
        assert f"<ins>{op}</ins>" in page
    for wait in found.waits_added:
        assert f"<ins>{wait.target} waits for {wait.source}" in page


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"depth": "1"}, "640 µs a step"),
        ({"costs.forward.device": "150"}, "150 µs"),
        ({"slots.staging": "1"}, "staging"),
    ],
)
def test_every_kind_of_change_has_its_table(changes: dict[str, str], said: str) -> None:
    before, after = planned("quickstart", changes), planned("quickstart")
    parser = Balanced()
    parser.feed(page_of(before, after))
    assert said in parser.cells


def test_leases_and_proofs_that_changed_are_listed() -> None:
    before = planned("kv_swap")
    after = planned("kv_swap", {"nodes.commit.offset": "2"})
    found = difference(before, after)
    assert found.leases
    page = page_of(before, after)
    parser = Balanced()
    parser.feed(page)
    for (state, source, target), (was, now) in found.leases.items():
        at = parser.cells.index(f"{state}: {source} → {target}")
        said = ["none" if each is None else f"after {each} step" for each in (was, now)]
        assert [cell.rstrip("s") for cell in parser.cells[at + 1 : at + 3]] == said
    assert f", {len(found.leases)} lease" in page
    assert found.proofs
    assert any(cell.startswith(f"{found.proofs} requirement") for cell in parser.cells)


def test_equal_plans_are_said_to_be_identical_and_nothing_is_marked() -> None:
    page = page_of(planned("async"), planned("async"))
    assert "Identical: the same plan, and the same costs." in page
    assert 'changed"' not in page
    assert "<h2>Waits</h2>" not in page


def test_names_cannot_break_the_page() -> None:
    plan = planned("async")
    page = diff_page(difference(plan, plan), "</style><b>&", '"><i>')
    parser = Balanced()
    parser.feed(page)
    assert parser.open == []
    assert "<b>&" not in page
    assert '"><i>' not in page


def test_a_switch_is_drawn_with_each_op_in_its_lane_and_what_waits_once() -> None:
    before = planned("async_grammar")
    after = planned("async_grammar", {"nodes.bitmask.actor": "grammar"})
    switch = switch_plans(before, after)
    assert switch.waits
    page = diff_page(difference(before, after), "x", "y", switch=switch)
    drawing = figure(page, "switch")
    drawn = re.findall(
        r'class="op (before|after)" data-op="([^"]+)" data-actor="([^"]+)" data-step="(-?\d+)"',
        drawing,
    )
    assert drawn
    for part, op, actor, step in drawn:
        plan = before if part == "before" else after
        assert plan.graph.vertices[op].actor == actor
        assert (int(step) < 0) == (part == "before")
    steps = {int(step) for *_, step in drawn}
    assert {-3, -2, -1, 0, 1, 2} <= steps
    assert drawing.count('class="wait"') >= 1
    for wait in switch.waits:
        assert f"<td>{wait.target}</td><td>{wait.source}</td>" in page
    assert 'id="switch"' not in page_of(before, after)


def test_around_a_switch_no_op_begins_before_what_it_comes_after() -> None:
    before, after = (
        planned("async_grammar", {"depth": "1"}),
        planned("async_grammar", {"depth": "3"}),
    )
    switch = switch_plans(before, after)
    spans = {(span.op, span.step): span for span in switch_timeline(switch).events}
    lanes: dict[str, float] = {}
    for span in spans.values():
        assert span.start_us >= lanes.get(span.actor, 0.0) - 1e-6
        lanes[span.actor] = span.end_us
        plan = after if span.step >= 0 else before
        for wait in plan.waits:
            awaited = spans.get((wait.source, span.step - wait.distance))
            both = awaited is not None and (awaited.step >= 0) == (span.step >= 0)
            if wait.target == span.op and awaited is not None and both:
                assert span.start_us >= awaited.end_us - 1e-6
    for once in switch.waits:
        first, then = (spans.get((at.op, at.step)) for at in (once.source, once.target))
        real = [(at.step >= 0) == bool(at.part) for at in (once.source, once.target)]
        if first is not None and then is not None and all(real):
            assert then.start_us >= first.end_us - 1e-6
