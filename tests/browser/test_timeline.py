"""The timeline page in a real browser: pointer, keys, zoom, search, colours, long runs."""

from __future__ import annotations

from typing import Any

import pytest

from stepweave.requests.spans import RequestSpan
from stepweave.requests.step_counts import StepCount
from stepweave.views.timeline_page import timeline_page
from stepweave.views.traced import Trace
from tests.browser.driver import until
from tests.views.test_timeline_page import as_if_run, plan


@pytest.fixture(scope="module")
def trace() -> Trace:
    request = RequestSpan("fox", 99.999, 100.0, 100.001, 100.003, 100.1, 7, 40, "stop", 0, (0, 1))
    counts = [
        StepCount(step, 2 + step % 2, 1, 10 + step, 64, tokens=3, drafted=4, accepted=step % 5)
        for step in range(30)
    ]
    return Trace.of(plan(), as_if_run(plan()), requests=[request], counts=counts)


@pytest.fixture(scope="module")
def html(trace: Trace) -> str:
    return timeline_page(trace, title="decode")


@pytest.fixture
def page(open_page: Any, html: str) -> Any:
    return open_page(html)


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
    until(page, "getComputedStyle(document.body).backgroundColor === 'rgb(15, 19, 24)'")
    until(page, "document.getElementById('theme').getAttribute('aria-pressed') === 'true'")
    assert painted(page) != third


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


# --- waits, counts, measuring, theme --------------------------------------------------------------


def in_view(page: Any) -> int:
    """How many waits have both ends in view, counted from the plan and the run, not the script."""
    found: int = page.execute_script(
        """
        const { waits, ops } = JSON.parse(document.getElementById("data").textContent);
        const [from, to] = [timeline.view().from, timeline.view().to], names = timeline.lanes();
        const left = document.getElementById("lanes").clientWidth;
        let count = 0;
        names.forEach(({ track }, target) => names.forEach((other, source) => {
          if (other.track !== track) return;
          for (const [before, after, distance] of waits)
            for (let step = 0; step < 40; step++) {
              const a = timeline.place(source, ops[before], step - distance);
              const b = timeline.place(target, ops[after], step);
              const gutter = timeline.pixel(from);
              if (a && b && a.from <= left && b.to > gutter && b.from <= left) count++;
            }
        }));
        return count;
        """
    )
    return found


def test_arrows_show_every_wait_in_view_and_can_be_switched_off(page: Any) -> None:
    painted(page)
    arrows = ask(page, "timeline.arrows()")
    assert arrows == in_view(page) > 0
    with_arrows = painted(page)
    page.execute_script("document.getElementById('waits').click()")
    without = painted(page)
    assert without != with_arrows
    assert ask(page, "timeline.arrows()") == 0
    page.execute_script("document.getElementById('waits').click()")
    press_lanes(page, "0")
    painted(page)
    assert ask(page, "timeline.arrows()") == 0, "over a whole run they would cover the lanes"


def press_lanes(page: Any, *names: str) -> None:
    ask(page, "document.getElementById('lanes').focus()")
    press(page, *names)


def test_a_selected_op_links_to_its_waits_in_the_plan(page: Any, trace: Trace) -> None:
    place = spot(page, 0, "commit.host", 14)
    point(page, (place["from"] + place["to"]) / 2, place["y"], click=True)
    assert "In the plan: " in text(page, "#picked")
    link = page.find_element("css selector", "#picked a")
    number = int(link.text.removeprefix("wait "))
    wait = trace.plan.waits[number - 1]
    assert "commit.host" in (wait.source, wait.target)
    link.click()
    row = text(page, "#plan-waits tr:target")
    assert wait.source in row
    assert wait.target in row
    for protection in wait.protects:
        assert f"{protection.hazard} {protection.value}".strip() in row


def drag(page: Any, start: float, end: float, y: float, *, shift: bool = False) -> None:
    box = ask(
        page, "(r => [r.left, r.top])(document.getElementById('lanes').getBoundingClientRect())"
    )
    held = {"button": "left", "buttons": 1, "clickCount": 1, "modifiers": 8 if shift else 0}
    for kind, x in [
        ("mousePressed", start),
        ("mouseMoved", (start + end) / 2),
        ("mouseMoved", end),
        ("mouseReleased", end),
    ]:
        page.execute_cdp_cmd(
            "Input.dispatchMouseEvent", {"type": kind, "x": box[0] + x, "y": box[1] + y, **held}
        )


def test_a_range_is_measured_by_dragging_and_says_what_is_in_it(page: Any, trace: Trace) -> None:
    view = ask(page, "timeline.view()")
    place = spot(page, 1, "forward.device", 14)
    before = painted(page)
    drag(page, place["from"], place["to"], place["y"], shift=True)
    assert ask(page, "timeline.view()") == view, "measuring does not move the lanes"
    start, end = ask(page, "timeline.range()")
    span = next(s for s in trace.run.events if (s.op, s.step) == ("forward.device", 14))
    pixel = (view["to"] - view["from"]) / 1000
    assert start == pytest.approx(span.start_us, abs=2 * pixel)
    assert end == pytest.approx(span.end_us, abs=2 * pixel)
    said = text(page, "#picked")
    assert f"{(end - start) / trace.run.period_us:.2f} periods of the run" in said
    assert "compute 100 %" in said
    assert painted(page) != before
    press_lanes(page, "ESCAPE")
    assert ask(page, "timeline.range()") is None
    ask(page, "document.getElementById('measure').click()")
    assert ask(page, "document.getElementById('measure').getAttribute('aria-pressed')") == "true"
    drag(page, place["to"], place["from"], place["y"])
    low, high = ask(page, "timeline.range()")
    assert (low, high) == pytest.approx((start, end), abs=3 * pixel)


def test_a_range_is_measured_with_keys_from_op_to_op(page: Any, trace: Trace) -> None:
    place = spot(page, 1, "forward.device", 14)
    point(page, (place["from"] + place["to"]) / 2, place["y"], click=True)
    press_lanes(page, "r", "ARROW_RIGHT", "ARROW_RIGHT", "r")
    last = ask(page, "timeline.selected()")
    spans = {(s.op, s.step): s for s in trace.run.events}
    wanted = (spans["forward.device", 14].start_us, spans[last["op"], last["step"]].end_us)
    assert ask(page, "timeline.range()") == pytest.approx(wanted, abs=0.2)


def test_counts_by_step_are_drawn_and_told(page: Any, trace: Trace) -> None:
    counters = {each["name"]: each["y"] for each in ask(page, "timeline.counters()")}
    assert list(counters) == ["rows", "cache", "accepted"]
    place = spot(page, 1, "forward.device", 14)
    point(page, (place["from"] + place["to"]) / 2, counters["cache"])
    step = next(
        count
        for count in trace.counts
        if f"step {count.step}\n" in text(page, "#tip") and count.step in (14, 15, 16)
    )
    said = text(page, "#tip")
    assert f"{step.rows} rows, 1 requests without one" in said
    assert f"{step.blocks} of 64 blocks held" in said
    assert f"{step.accepted} of 4 drafts accepted" in said


def test_a_run_without_counts_draws_none(open_page: Any) -> None:
    page = open_page(timeline_page(Trace.of(plan(), as_if_run(plan()))))
    assert ask(page, "timeline.counters()") == []


def test_the_theme_and_the_keys_are_switched_as_on_the_page_of_a_plan(page: Any) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    light, drawn = ask(page, ground), painted(page)
    ask(page, "document.getElementById('lanes').focus()")
    press(page, "t")
    assert ask(page, ground) != light
    assert painted(page) != drawn
    page.find_element("id", "theme").click()
    assert ask(page, ground) == light
    press(page, "?")
    help_ = page.find_element("id", "help")
    for words in ("measure", "idle time", "whole run", "Esc"):
        assert words in help_.text
    press(page, "ESCAPE")
    assert not help_.is_displayed()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("then", ["+", "s", "wheel"])
def test_a_tooltip_goes_when_what_is_under_the_pointer_changes(page: Any, then: str) -> None:
    place = spot(page, 1, "forward.device", 14)
    point(page, (place["from"] + place["to"]) / 2, place["y"])
    until(page, "!document.getElementById('tip').hidden")
    if then == "wheel":
        page.execute_script(
            "document.getElementById('lanes').dispatchEvent(new WheelEvent('wheel', "
            "{deltaY: -300, ctrlKey: true, clientX: 500, clientY: 100}))"
        )
    else:
        press_lanes(page, then)
    until(page, "document.getElementById('tip').hidden")
    assert ask(page, "document.getElementById('tip').hidden")
