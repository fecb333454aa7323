"""The page of two plans in a real browser: what is drawn where, at a desk and on a phone."""

from __future__ import annotations

from typing import Any

import pytest

from stepweave.cli.planned import planned
from stepweave.graph.answers.difference import difference
from stepweave.views.diff_page import diff_page


@pytest.fixture(scope="module")
def html() -> str:
    found = difference(planned("async"), planned("drafter_stream"))
    return diff_page(found, "async", "drafter_stream")


def boxes(driver: Any) -> list[dict[str, float]]:
    found: list[dict[str, float]] = driver.execute_script(
        "return ['before', 'after'].map((id) =>"
        " document.getElementById(id).getBoundingClientRect().toJSON())"
    )
    return found


@pytest.mark.parametrize(("width", "beside"), [(1440, True), (390, False)])
def test_two_plans_stand_beside_each_other_where_there_is_room(
    open_page: Any, html: str, width: int, beside: bool
) -> None:
    before, after = boxes(driver := open_page(html, width=width))
    assert (after["left"] >= before["right"]) is beside
    assert (after["top"] >= before["bottom"]) is not beside
    assert driver.execute_script("return document.documentElement.scrollWidth <= innerWidth")


def test_what_changed_looks_different_from_what_did_not(open_page: Any, html: str) -> None:
    driver = open_page(html, width=1440)
    strokes = driver.execute_script(
        "const stroke = (css) => { const s = getComputedStyle(document.querySelector(css));"
        " return [s.stroke, s.strokeWidth]; };"
        "return ['#after g.op.changed > rect', '#after g.op:not(.changed) > rect',"
        " '#after g.wait.changed > path:not(.casing)',"
        " '#before g.wait > path:not(.casing)'].map(stroke)"
    )
    new_op, old_op, new_wait, old_wait = strokes
    assert new_op != old_op
    assert new_wait != old_wait
