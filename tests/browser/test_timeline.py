"""The timeline page in a real browser: pointer, keys, zoom, search, colours, long runs."""

from __future__ import annotations

from typing import Any

import pytest

from stepweave.requests.spans import RequestSpan
from stepweave.views.timeline_page import timeline_page
from stepweave.views.traced import Trace
from tests.views.test_timeline_page import as_if_run, plan


@pytest.fixture
def trace() -> Trace:
    request = RequestSpan("fox", 99.999, 100.0, 100.001, 100.003, 100.1, 7, 40, "stop", 0, (0, 1))
    return Trace.of(plan(), as_if_run(plan()), requests=[request])


@pytest.fixture
def page(open_page: Any, trace: Trace) -> Any:
    return open_page(timeline_page(trace, title="decode"))


def ask(page: Any, script: str) -> Any:
    return page.execute_script(f"return {script}")


def text(page: Any, selector: str) -> str:
    return str(ask(page, f"document.querySelector('{selector}').innerText"))


def point(page: Any, x: float, y: float, *, click: bool = False) -> None:
    """Move the pointer to a place of the canvas, as a hand would; perhaps click there."""
    box = ask(
        page,
        "(r => [r.left, r.top])(document.getElementById('lanes').getBoundingClientRect())",
    )
    kinds = ["mouseMoved", *(["mousePressed", "mouseReleased"] if click else [])]
    for kind in kinds:
        page.execute_cdp_cmd(
            "Input.dispatchMouseEvent",
            {"type": kind, "x": box[0] + x, "y": box[1] + y, "button": "left", "clickCount": 1}
            if kind != "mouseMoved"
            else {"type": kind, "x": box[0] + x, "y": box[1] + y},
        )


def press(page: Any, *names: str) -> None:
    from selenium.webdriver.common.keys import Keys

    for name in names:
        page.switch_to.active_element.send_keys(getattr(Keys, name, name))


def spot(page: Any, lane: int, op: str, step: int) -> dict[str, float]:
    found: dict[str, float] = ask(page, f"timeline.place({lane}, '{op}', {step})")
    found["y"] = ask(page, "timeline.lanes()")[lane]["y"]
    return found


def painted(page: Any) -> str:
    """What is on the canvas, after the frame that is being drawn."""
    found: str = page.execute_async_script(
        "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => "
        "done(document.getElementById('lanes').toDataURL())))"
    )
    return found


def test_the_page_opens_with_numbers_lanes_and_a_steady_view(page: Any, trace: Trace) -> None:
    facts = text(page, ".facts")
    assert f"{trace.run.period_us:,.0f} µs" in facts
    assert f"{trace.predicted_us:,.0f} µs" in facts
    assert f"{trace.analysis.overlap.hidden:.0%}" in facts
    lanes = ask(page, "timeline.lanes().map(lane => lane.track + ' ' + lane.actor)")
    assert lanes == [f"{t} {a}" for t in ("measured", "planned") for a in trace.run.actors]
    view = ask(page, "timeline.view()")
    assert 0 < view["from"] < view["to"] < trace.run.seconds * 1e6
    assert ask(page, "document.documentElement.scrollWidth <= innerWidth")


def test_the_pointer_shows_an_op_and_the_cause_of_an_idle_time(page: Any) -> None:
    place = spot(page, 1, "forward.device", 14)
    point(page, (place["from"] + place["to"]) / 2, place["y"])
    assert "forward.device of step 14" in text(page, "#tip")
    idle = spot(page, 0, "commit.host", 14)
    point(page, (idle["idle"] + idle["from"]) / 2, idle["y"])
    said = text(page, "#tip")
    assert "driver idle for" in said
    assert "because of the wait for d2h_copy.device of step 14" in said
    assert "RAW out" in said
    point(page, 5, 5)
    assert ask(page, "document.getElementById('tip').hidden")


def test_a_click_picks_and_the_inspector_says_what_held_it(page: Any) -> None:
    before = painted(page)
    idle = spot(page, 0, "commit.host", 14)
    point(page, (idle["idle"] + idle["from"]) / 2, idle["y"], click=True)
    assert ask(page, "timeline.selected()") == {
        "op": "commit.host",
        "step": 14,
        "actor": "driver",
        "track": "measured",
        "idle": True,
    }
    assert "the wait for d2h_copy.device of step 14" in text(page, "#picked")
    assert painted(page) != before


def test_everything_can_be_done_with_keys(page: Any) -> None:
    ask(page, "document.getElementById('lanes').focus()")
    press(page, "ARROW_RIGHT")
    chosen = ask(page, "timeline.selected()")
    assert chosen["actor"] == "driver"
    press(page, "g")
    assert ask(page, "timeline.selected()")["idle"]
    press(page, "ARROW_RIGHT")
    op = ask(page, "timeline.selected()")
    assert (op["op"], op["idle"]) == ("commit.host", False)
    press(page, "h")
    held = ask(page, "timeline.selected()")
    assert (held["op"], held["actor"], held["step"]) == ("d2h_copy.device", "copy", op["step"])
    press(page, "h")
    assert ask(page, "timeline.selected()")["op"] == "forward.device"
    press(page, "ARROW_DOWN")
    assert ask(page, "timeline.selected()")["actor"] == "copy"
    wide = ask(page, "(v => v.to - v.from)(timeline.view())")
    press(page, "+")
    assert ask(page, "(v => v.to - v.from)(timeline.view())") == pytest.approx(wide * 0.6)
    press(page, "-", "d")
    moved = ask(page, "timeline.view()")
    assert moved["to"] - moved["from"] == pytest.approx(wide)
    press(page, "ESCAPE")
    assert ask(page, "timeline.selected()") is None
    press(page, "0")
    whole = ask(page, "timeline.view()")
    assert whole["to"] - whole["from"] > wide
    press(page, "/")
    assert ask(page, "document.activeElement.id") == "search"


def test_a_wheel_with_ctrl_zooms_where_the_pointer_is(page: Any) -> None:
    place = spot(page, 1, "forward.device", 14)
    page.execute_script(
        "document.getElementById('lanes').dispatchEvent(new WheelEvent('wheel', {deltaY: -300, "
        "ctrlKey: true, clientX: arguments[0] + document.getElementById('lanes')"
        ".getBoundingClientRect().left, clientY: 100}))",
        place["from"],
    )
    after = spot(page, 1, "forward.device", 14)
    assert after["from"] == pytest.approx(place["from"], abs=2)
    assert after["to"] - after["from"] > 2 * (place["to"] - place["from"])


def test_search_finds_ops_and_steps(page: Any) -> None:
    before = painted(page)
    search = page.find_element("id", "search")
    search.send_keys("forward")
    assert text(page, "#found") == "2 of 8 ops"
    assert painted(page) != before
    search.clear()
    search.send_keys("step 7")
    assert text(page, "#found") == "step 7"
    place = spot(page, 1, "forward.device", 7)
    assert 0 < place["from"] < place["to"] < ask(page, "innerWidth")


def test_the_plan_is_aligned_with_the_step_in_view(page: Any) -> None:
    def apart() -> float:
        run, planned = (spot(page, lane, "schedule.host", 23) for lane in (0, 3))
        return abs(run["from"] - planned["from"])

    search = page.find_element("id", "search")
    search.send_keys("23")
    before = apart()
    page.find_element("id", "align").click()
    assert apart() < before / 4


def test_what_is_drawn_can_be_chosen_and_follows_the_colours_asked_for(page: Any) -> None:
    first = painted(page)
    page.find_element("id", "chain").click()
    second = painted(page)
    assert second != first
    page.find_element("id", "gaps").click()
    third = painted(page)
    assert third != second
    features = [{"name": "prefers-color-scheme", "value": "dark"}]
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": features})
    assert painted(page) != third
    dark = ask(page, "getComputedStyle(document.body).backgroundColor")
    assert dark == "rgb(15, 19, 24)"


def test_without_scripts_the_numbers_are_still_there(open_page: Any, trace: Trace) -> None:
    page = open_page(timeline_page(trace), scripts=False)
    facts = page.find_element("class name", "facts").text
    assert f"{trace.predicted_us:,.0f} µs" in facts
    assert "forward.device" in page.find_element("class name", "tables").text


def test_a_narrow_screen_scrolls_in_one_direction_only(open_page: Any, trace: Trace) -> None:
    page = open_page(timeline_page(trace), width=400)
    assert ask(page, "document.documentElement.scrollWidth <= 400")


def test_a_run_of_two_thousand_steps_draws_at_once(open_page: Any) -> None:
    page = open_page(timeline_page(Trace.of(plan(), as_if_run(plan(), steps=2000))))
    page.find_element("id", "fit").click()
    painted(page)
    took = page.execute_async_script(
        "const done = arguments[0], canvas = document.getElementById('lanes');"
        "const from = performance.now();"
        "canvas.dispatchEvent(new KeyboardEvent('keydown', {key: '+'}));"
        "requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - from)))"
    )
    assert took < 2000  # some 20 ms on a free machine
