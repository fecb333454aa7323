"""The page of a plan in a real browser: everything one can do with it, and how it is drawn."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from stepweave.cli.planned import planned
from stepweave.graph.node import Node, Op, Read, Value
from stepweave.graph.plan import Plan
from stepweave.graph.planner.compile import compile_plan
from stepweave.graph.step_graph import StepGraph
from stepweave.views.page import plan_page
from tests.browser.driver import until
from tests.browser.geometry import outside, overlapping

PIPELINES = [
    "synchronous",
    "async_speculation",
    "async_eagle3_grammar",
    "grammar_worker",
    "quickstart",
]
VIEWS = ("dag", "lanes", "slots")
OpenPage = Callable[..., Any]


@cache
def plan_of(pipeline: str) -> Plan:
    return planned(pipeline)


@cache
def page_of(pipeline: str) -> str:
    return plan_page(plan_of(pipeline), title=pipeline)


@pytest.fixture
def at(open_page: OpenPage) -> Callable[..., Any]:
    """`at("view=lanes&op=…")` opens the page of quickstart there."""
    return lambda fragment="", **options: open_page(
        page_of("quickstart"), fragment=fragment, **options
    )


def press(driver: Any, *keys: str) -> None:
    for key in keys:
        ActionChains(driver).send_keys(key).perform()


def pointer(driver: Any) -> ActionChains:
    """One that is there at once; by itself it takes a quarter of a second on each way."""
    return ActionChains(driver, duration=0)


def click(driver: Any, css: str) -> None:
    pointer(driver).click(driver.find_element(By.CSS_SELECTOR, css)).perform()


def shown(driver: Any) -> str:
    """The view that can be seen."""
    seen = driver.execute_script(
        "return [...document.querySelectorAll('.sheet')]"
        ".filter(s => getComputedStyle(s).visibility === 'visible').map(s => s.dataset.view)"
    )
    assert len(seen) == 1
    return str(seen[0])


def details(driver: Any) -> str:
    return str(driver.find_element(By.ID, "details").text)


def place(driver: Any) -> str:
    return str(driver.execute_script("return location.hash"))


def drawn(driver: Any, css: str, attribute: str = "op") -> set[str]:
    """The `data-…` of all elements of the view that is seen."""
    found = driver.execute_script(
        "return [...document.querySelectorAll('.sheet.current ' + arguments[0])]"
        ".map(g => g.dataset[arguments[1]])",
        css,
        attribute,
    )
    return set(found)


def scale(driver: Any) -> float:
    return float(
        driver.execute_script(
            "const svg = document.querySelector('.sheet.current svg.view');"
            "return svg.getBoundingClientRect().width / svg.viewBox.baseVal.width"
        )
    )


def corner(driver: Any) -> tuple[float, float]:
    box = driver.execute_script(
        "return document.querySelector('.sheet.current svg.view').getBoundingClientRect().toJSON()"
    )
    return box["x"], box["y"]


# --- views, pan and zoom --------------------------------------------------------------------------


def test_buttons_and_keys_switch_between_the_three_drawings(at: Callable[..., Any]) -> None:
    driver = at()
    assert shown(driver) == "dag"
    press(driver, "2")
    assert (shown(driver), place(driver)) == ("lanes", "#view=lanes")
    click(driver, "#tab-slots")
    assert shown(driver) == "slots"
    assert driver.find_element(By.ID, "tab-slots").get_attribute("aria-selected") == "true"
    press(driver, "1")
    assert shown(driver) == "dag"


def test_the_wheel_zooms_about_the_pointer_and_keys_zoom_about_the_middle(
    at: Callable[..., Any],
) -> None:
    driver = at()
    op = driver.find_element(By.CSS_SELECTOR, "#sheet-dag g.op[data-op='forward.device']")
    before, start = op.rect, scale(driver)
    x, y = before["x"] + before["width"] / 2, before["y"] + before["height"] / 2
    wheel = {"type": "mouseWheel", "x": x, "y": y, "deltaX": 0, "deltaY": -300}
    driver.execute_cdp_cmd("Input.dispatchMouseEvent", wheel)
    WebDriverWait(driver, 90, poll_frequency=0.05).until(lambda _: scale(driver) > 1.3 * start)
    after = op.rect
    assert after["x"] + after["width"] / 2 == pytest.approx(x, abs=3)
    assert after["y"] + after["height"] / 2 == pytest.approx(y, abs=3)
    zoomed = scale(driver)
    press(driver, "-")
    assert scale(driver) == pytest.approx(zoomed * 0.8)
    press(driver, "+")
    assert scale(driver) == pytest.approx(zoomed)
    press(driver, "0")
    box = driver.find_element(By.CSS_SELECTOR, "#sheet-dag svg.view").rect
    stage = driver.find_element(By.ID, "stage").rect
    assert box["width"] <= stage["width"] + 1
    assert box["height"] <= stage["height"] + 1


def test_dragging_pans_and_does_not_select(at: Callable[..., Any]) -> None:
    driver = at()
    op = driver.find_element(By.CSS_SELECTOR, "#sheet-dag g.op[data-op='forward.device']")
    x, y = corner(driver)
    pointer(driver).drag_and_drop_by_offset(op, 60, -40).perform()
    assert corner(driver) == pytest.approx((x + 60, y - 40), abs=5)
    assert "op=" not in place(driver)


def test_two_fingers_zoom(at: Callable[..., Any]) -> None:
    driver = at()
    start = scale(driver)

    def touch(kind: str, apart: int) -> None:
        points = [{"x": 600 + side * apart, "y": 400, "id": k} for k, side in enumerate((-1, 1))]
        driver.execute_cdp_cmd(
            "Input.dispatchTouchEvent",
            {"type": kind, "touchPoints": [] if kind == "touchEnd" else points},
        )

    touch("touchStart", 50)
    for apart in (60, 80, 100):
        touch("touchMove", apart)
    touch("touchEnd", 0)
    assert scale(driver) == pytest.approx(2 * start, rel=0.1)


LANES_OUTSIDE = """
const stage = document.getElementById("stage").getBoundingClientRect();
return [...document.querySelectorAll("#sheet-lanes g.op")]
  .filter((g) => { const box = g.getBoundingClientRect();
    return box.bottom > stage.bottom || box.top < stage.top; })
  .map((g) => g.dataset.actor);
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("pipeline", PIPELINES)
@pytest.mark.parametrize(("width", "height"), [(1280, 800), (1280, 560), (390, 800)])
def test_the_first_view_shows_every_lane(
    open_page: OpenPage, pipeline: str, width: int, height: int
) -> None:
    driver = open_page(page_of(pipeline), fragment="view=lanes", width=width, height=height)
    assert driver.execute_script(LANES_OUTSIDE) == []
    if width > 900:
        box = driver.find_element(By.CSS_SELECTOR, "#sheet-lanes svg.view").rect
        assert box["width"] <= width


def test_the_drawing_is_fitted_again_when_the_details_open_and_close(
    at: Callable[..., Any],
) -> None:
    driver = at("view=lanes")
    first = scale(driver)
    click(driver, "#sheet-lanes g.op[data-op='draft.device'][data-step='2']")
    stage = driver.find_element(By.ID, "stage").rect
    box = driver.find_element(By.CSS_SELECTOR, "#sheet-lanes svg.view").rect
    assert stage["width"] < 1000 < box["width"] / scale(driver)
    assert box["x"] + box["width"] <= stage["x"] + stage["width"] + 1
    click(driver, "#panel-close")
    assert scale(driver) == pytest.approx(first)


def test_a_view_that_was_moved_by_hand_is_left_where_it_is(at: Callable[..., Any]) -> None:
    driver = at("view=lanes")
    press(driver, "+", "+")
    zoomed = scale(driver)
    driver.execute_script("location.hash = '#view=lanes&op=draft.device&step=2'")
    driver.execute_async_script("requestAnimationFrame(() => setTimeout(arguments[0]))")
    assert details(driver).startswith("draft.device")
    assert scale(driver) == zoomed
    op = "#sheet-lanes g.op[data-op='draft.device'][data-step='2']"
    box, stage = (driver.find_element(By.CSS_SELECTOR, each).rect for each in (op, "#stage"))
    assert box["x"] + box["width"] <= stage["x"] + stage["width"]


# --- selecting and reading ------------------------------------------------------------------------


def test_a_click_on_an_op_tells_its_accesses_waits_and_requirements(at: Callable[..., Any]) -> None:
    driver = at()
    size = scale(driver)
    click(driver, "#sheet-dag g.op[data-op='d2h_copy.device']")
    text = details(driver)
    plan = plan_of("quickstart")
    vertex = plan.graph.vertices["d2h_copy.device"]
    assert "device op of d2h_copy on stream copy" in text
    for name in [*map(str, vertex.op.reads), *vertex.op.writes]:
        assert name in text
    assert "wait 1: draft.device, the same step" in text
    assert "wait 2: commit.host.advance, the same step" in text
    edges = (*plan.edges, *plan.launch_order)
    before = [edge for edge in edges if edge.target == "d2h_copy.device"]
    after = [edge for edge in edges if edge.source == "d2h_copy.device"]
    assert f"Required before it ({len(before)})" in text
    assert f"Required after it ({len(after)})" in text
    assert " → ".join(op for op, _ in before[0].witness) in text.replace(" @+1", "")
    assert drawn(driver, "g.selected") == {"d2h_copy.device"}
    assert "op=d2h_copy.device" in place(driver)
    assert scale(driver) < size, "the details take room, and the drawing fits beside them"
    assert driver.execute_script(
        "getSelection().selectAllChildren(document.getElementById('details'));"
        "return getSelection().toString()"
    ).startswith("d2h_copy.device")


def test_a_carried_read_says_how_old_it_is(at: Callable[..., Any]) -> None:
    assert "drafts@-1, written 1 step earlier" in details(at("op=prepare_inputs.device"))


def test_a_wait_tells_its_hazards_and_what_would_break(at: Callable[..., Any]) -> None:
    driver = at("view=lanes")
    click(driver, "#sheet-lanes g.wait[data-wait='1'] path.reach")
    text = details(driver)
    assert "commit.host.advance waits for d2h_copy.device" in text
    assert "RAW host_sampled" in text
    assert (
        "Without the wait, commit.host.advance of step i could read host_sampled of step i before"
        " d2h_copy.device has written it" in text
    )
    assert "WAR staging" in text
    assert drawn(driver, "g.selected", "wait") == {"1"}
    assert {"d2h_copy.device", "commit.host.advance"} == drawn(driver, "g.op.related")


def test_a_value_tells_its_slots_and_lifetime(at: Callable[..., Any]) -> None:
    driver = at("view=slots")
    click(driver, "#sheet-slots g.version[data-value='progress'][data-step='1']")
    text = details(driver)
    assert "value on device, 2 slots" in text
    assert "Version i lives in slot i mod 2" in text
    assert "prepare_inputs.device, 1 step later" in text
    assert drawn(driver, "g.version:not(.dim)", "value") == {"progress"}
    press(driver, "1")
    plan = plan_of("quickstart")
    users = {
        name
        for name, vertex in plan.graph.vertices.items()
        if "progress" in vertex.op.writes or "progress" in [read.name for read in vertex.op.reads]
    }
    assert drawn(driver, "g.op:not(.dim)") == users


@pytest.mark.parametrize(
    ("value", "said"),
    [("inputs", "lives in the one slot"), ("batch", "kept until its last reader is done")],
)
def test_one_slot_and_none_are_said_plainly(at: Callable[..., Any], value: str, said: str) -> None:
    assert said in details(at(f"value={value}"))


def test_a_requirement_shows_its_witness(at: Callable[..., Any]) -> None:
    plan = plan_of("quickstart")
    index = next(k for k, edge in enumerate(plan.edges) if edge.by == "path" and edge.distance > 1)
    edge = plan.edges[index]
    driver = at(f"requirement={index}")
    assert drawn(driver, "g.op:not(.dim)") == {op for op, _ in edge.witness}
    text = details(driver)
    assert f"{edge.hazard} {edge.value}" in text
    assert "If nothing ordered them, " in text
    for op, distance in edge.witness:
        assert f"{op} @+{distance}" if distance else op in text
    press(driver, "2")
    lit = driver.execute_script(
        "return [...document.querySelectorAll('#sheet-lanes g.op:not(.dim)')]"
        ".map(g => g.dataset.op + '@' + g.dataset.step)"
    )
    base = -min(distance for _, distance in edge.witness)
    assert set(lit) == {f"{op}@{base + distance}" for op, distance in edge.witness}


def test_links_in_the_details_and_the_tables_select(at: Callable[..., Any]) -> None:
    driver = at("view=lanes&op=d2h_copy.device")
    driver.find_element(By.LINK_TEXT, "copy").click()
    assert "stream, runs its ops in this order" in details(driver)
    assert place(driver) == "#view=lanes&actor=copy"
    driver.find_element(By.CSS_SELECTOR, "#table-waits a[href='#wait=0']").click()
    assert details(driver).startswith("Wait 1")
    assert driver.execute_script("return stage.getBoundingClientRect().bottom > 0")
    driver.find_element(By.LINK_TEXT, "Tables").click()
    assert driver.execute_script("return scrollY") > 300
    assert place(driver) == "#view=lanes&wait=0"


@pytest.mark.parametrize("view", [pytest.param("lanes", marks=pytest.mark.nightly), "dag"])
def test_a_click_on_the_label_of_a_wait_selects_that_wait(
    at: Callable[..., Any], view: str
) -> None:
    driver = at(f"view={view}")
    for index in ("1", "0"):
        label = f"#sheet-{view} text.wait-words[data-wait='{index}']"
        click(driver, label)
        assert place(driver) == f"#view={view}&wait={index}"
        assert details(driver).startswith(f"Wait {int(index) + 1}")
        assert drawn(driver, "g.selected", "wait") == {index}


def test_a_click_on_the_label_of_data_selects_its_requirements(at: Callable[..., Any]) -> None:
    driver = at("view=dag")
    click(driver, "#sheet-dag text.data-words[data-edges]")
    assert "requirement=" in place(driver)


HIDDEN = "document.getElementById('tip').hidden"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("then", ["2", "wheel", Keys.ENTER, "scroll", "t"])
def test_a_tooltip_does_not_outlast_what_it_is_about(at: Callable[..., Any], then: str) -> None:
    driver = at()
    op = driver.find_element(By.CSS_SELECTOR, "#sheet-dag g.op[data-op='forward.device']")
    pointer(driver).move_to_element(op).perform()
    until(driver, f"!{HIDDEN}")
    box = op.rect
    if then == "wheel":
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        wheel = {"type": "mouseWheel", "x": x, "y": y, "deltaX": 0, "deltaY": -300}
        driver.execute_cdp_cmd("Input.dispatchMouseEvent", wheel)
    elif then == "scroll":
        driver.execute_script("scrollTo(0, 400)")
        driver.execute_async_script("requestAnimationFrame(() => setTimeout(arguments[0]))")
    else:
        press(driver, then)
    until(driver, HIDDEN)
    assert driver.execute_script(f"return {HIDDEN}")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("css", "said"),
    [
        ("#sheet-lanes g.op[data-op='forward.device'][data-step='1']", "reads inputs, kv"),
        ("#sheet-lanes g.wait[data-wait='0'] path.reach", "without the wait, "),
        ("#sheet-slots g.version[data-value='drafts'][data-step='1']", "2 slots, device"),
        ("#sheet-slots g.access[data-value='drafts'][data-mode='write']", "writes drafts"),
    ],
)
def test_hovering_reads_without_a_click(at: Callable[..., Any], css: str, said: str) -> None:
    driver = at("view=" + css.split()[0].removeprefix("#sheet-"))
    tip = driver.find_element(By.ID, "tip")
    assert not tip.is_displayed()
    pointer(driver).move_to_element(driver.find_element(By.CSS_SELECTOR, css)).perform()
    until(driver, f"!{HIDDEN}")
    assert said in tip.text
    assert driver.execute_script(
        "const b = arguments[0].getBoundingClientRect();"
        "return b.left >= 0 && b.top >= 0 && b.right <= innerWidth && b.bottom <= innerHeight",
        tip,
    )
    assert "op=" not in place(driver)


# --- search ---------------------------------------------------------------------------------------


def test_search_marks_matches_and_enter_goes_round_them(at: Callable[..., Any]) -> None:
    driver = at()
    press(driver, "/")
    press(driver, "forw", "ard")
    status = driver.find_element(By.ID, "search-status")
    assert drawn(driver, "g.op.match") == {"forward.host", "forward.device"}
    assert status.text == "2 matches"
    visited = []
    for _ in range(3):
        press(driver, Keys.ENTER)
        visited.append((status.text, details(driver).splitlines()[0]))
    assert visited == [
        ("1 of 2", "forward.host"),
        ("2 of 2", "forward.device"),
        ("1 of 2", "forward.host"),
    ]
    ActionChains(driver).key_down(Keys.SHIFT).send_keys(Keys.ENTER).key_up(Keys.SHIFT).perform()
    assert status.text == "2 of 2"
    press(driver, Keys.ESCAPE)
    assert drawn(driver, "g.match") == set()
    assert driver.find_element(By.ID, "search").get_attribute("value") == ""


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("staging", "value staging"),
        pytest.param("copy", "op d2h_copy.host", marks=pytest.mark.nightly),
        ("WAR staging", "wait "),
    ],
)
def test_search_finds_values_actors_and_hazards(
    at: Callable[..., Any], query: str, first: str
) -> None:
    driver = at()
    press(driver, "/", query)
    found = [item.text for item in driver.find_elements(By.CSS_SELECTOR, "#found li")]
    assert found[0].startswith(first)
    kinds = {item.split()[0] for item in found}
    assert {"staging": "requirement", "copy": "actor", "WAR staging": "requirement"}[query] in kinds
    press(driver, "zzz")
    assert driver.find_element(By.ID, "search-status").text == "0 matches"


def test_keys_typed_into_the_search_are_text(at: Callable[..., Any]) -> None:
    driver = at()
    press(driver, "/", "2udgct?")
    assert driver.find_element(By.ID, "search").get_attribute("value") == "2udgct?"
    assert shown(driver) == "dag"


# --- focus and toggles ----------------------------------------------------------------------------


def ordered(plan: Plan, first: str, then: str, distance: int) -> bool:
    """By unrolling: whether `first` of step 8 is done before `then` of step 8 + distance."""
    from stepweave.graph.planner.events import plan_edges

    edges = list(plan_edges(plan))
    reached, todo = {(first, 8)}, [(first, 8)]
    while todo:
        op, step = todo.pop()
        for u, v, d, _ in edges:
            if u == op and 0 <= step + d < 20 and (v, step + d) not in reached:
                reached.add((v, step + d))
                todo.append((v, step + d))
    return (then, 8 + distance) in reached


def test_upstream_and_downstream_dim_everything_else(at: Callable[..., Any]) -> None:
    plan = plan_of("quickstart")
    driver = at("op=sample.device")
    press(driver, "u")
    up = {op for op in plan.graph.vertices if ordered(plan, op, "sample.device", 0)}
    assert drawn(driver, "g.op:not(.dim)") == up
    assert "draft.device" not in up
    assert "focus=up" in place(driver)
    click(driver, "#focus-down")
    down = {op for op in plan.graph.vertices if ordered(plan, "sample.device", op, 0)}
    assert drawn(driver, "g.op:not(.dim)") == down
    arrows = driver.execute_script(
        "return [...document.querySelectorAll('#sheet-dag :is(.wait, .order, .data):not(.dim)')]"
        ".map(g => [g.dataset.from, g.dataset.to])"
    )
    assert ["draft.device", "d2h_copy.device"] in arrows
    assert {op for arrow in arrows for op in arrow} <= down
    press(driver, Keys.ESCAPE)
    assert drawn(driver, ".dim") == set()
    assert drawn(driver, "g.op.selected") == {"sample.device"}
    press(driver, Keys.ESCAPE)
    assert place(driver) == "#view=dag"
    press(driver, "u")
    assert drawn(driver, ".dim") == set()


def test_focus_in_the_lanes_knows_the_steps(at: Callable[..., Any]) -> None:
    plan = plan_of("quickstart")
    driver = at("view=lanes&op=sample.device&step=1&focus=up")
    lit = driver.execute_script(
        "return [...document.querySelectorAll('#sheet-lanes g.op:not(.dim)')]"
        ".map(g => [g.dataset.op, Number(g.dataset.step)])"
    )
    wanted = [
        [op, step]
        for op in plan.graph.vertices
        for step in range(3)
        if ordered(plan, op, "sample.device", 1 - step)
    ]
    assert sorted(lit) == sorted(wanted)
    assert ["draft.device", 0] in lit
    assert ["forward.device", 2] not in lit


def test_ghosts_and_the_critical_cycle_can_be_switched(at: Callable[..., Any]) -> None:
    driver = at("view=lanes")
    ghost = driver.find_element(By.CSS_SELECTOR, "#sheet-lanes g.ghost > path")
    assert ghost.is_displayed()
    press(driver, "g")
    assert not ghost.is_displayed()
    click(driver, "#toggle-ghosts")
    assert ghost.is_displayed()
    press(driver, "1", "c")
    cycle = {op for op, _ in plan_of("quickstart").critical_cycle}
    assert drawn(driver, "g.op:not(.dim)") == cycle
    assert driver.find_element(By.ID, "toggle-critical").get_attribute("aria-pressed") == "true"
    press(driver, Keys.ESCAPE)
    assert drawn(driver, ".dim") == set()


# --- keyboard, address, colours -------------------------------------------------------------------


def focused(driver: Any) -> str | None:
    name = driver.execute_script("return document.activeElement.dataset.op")
    return str(name) if name else None


def test_the_keyboard_alone_reaches_and_selects_an_op(at: Callable[..., Any]) -> None:
    driver = at()
    waits: list[str | None] = []
    while len(waits) < 30 and not focused(driver):
        press(driver, Keys.TAB)
        waits.append(driver.execute_script("return document.activeElement.dataset.wait"))
    assert [wait for wait in waits if wait] == ["0", "1"]
    assert focused(driver) == "schedule.host"
    press(driver, Keys.ARROW_RIGHT)
    assert focused(driver) == "prepare_inputs.host"
    assert driver.execute_script("return document.activeElement.matches(':focus-visible')")
    stroke = "return getComputedStyle(document.activeElement.querySelector('rect')).strokeWidth"
    assert driver.execute_script(stroke) == "4px"
    press(driver, Keys.ARROW_LEFT, Keys.ARROW_DOWN)
    assert focused(driver) not in (None, "schedule.host")
    here = focused(driver)
    press(driver, Keys.ENTER)
    assert details(driver).splitlines()[0] == here
    ActionChains(driver).key_down(Keys.SHIFT).send_keys(Keys.TAB).key_up(Keys.SHIFT).perform()
    press(driver, Keys.ENTER)
    assert details(driver).startswith("Wait 2")


def test_everything_that_can_be_used_has_a_name_and_a_role(at: Callable[..., Any]) -> None:
    driver = at()
    nameless = driver.execute_script(
        "return [...document.querySelectorAll('button, input, [role=button], svg.view')]"
        ".filter(e => !(e.getAttribute('aria-label') || e.textContent.trim()"
        " || e.getAttribute('aria-labelledby'))).map(e => e.outerHTML)"
    )
    assert nameless == []
    roles = driver.execute_script(
        "return [...document.querySelectorAll('g.op, g.wait, g.version')]"
        ".map(g => g.getAttribute('role'))"
    )
    assert set(roles) == {"button"}
    titles = "return document.querySelectorAll('.sheet g > title').length"
    assert driver.execute_script(titles) == 0, "the browser would show them as a second tooltip"
    tabbable = driver.execute_script(
        "return document.querySelectorAll('#sheet-lanes g.op[tabindex=\"0\"]').length"
    )
    assert tabbable == 1


def test_the_question_mark_shows_the_keys(at: Callable[..., Any]) -> None:
    driver = at()
    help_ = driver.find_element(By.ID, "help")
    assert not help_.is_displayed()
    press(driver, "?")
    for word in ("upstream", "critical", "find", "Esc"):
        assert word in help_.text
    press(driver, Keys.ESCAPE)
    assert not help_.is_displayed()


def test_the_address_keeps_view_selection_and_focus(at: Callable[..., Any]) -> None:
    driver = at("op=forward.device&view=lanes")
    assert shown(driver) == "lanes"
    assert details(driver).startswith("forward.device")
    driver.execute_script("location.hash = '#wait=1'")
    assert details(driver).startswith("Wait 2") or driver.execute_async_script(
        "setTimeout(() => arguments[0](document.getElementById('details').innerText), 50)"
    ).startswith("Wait 2")
    assert place(driver) == "#view=lanes&wait=1"
    press(driver, Keys.ESCAPE)
    driver.back()
    assert details(driver).startswith("Wait 2")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("fragment", ["op=nothing", "wait=99", "view=x&requirement=-1", "op=%zz"])
def test_an_address_that_means_nothing_opens_the_page_as_it_is(
    at: Callable[..., Any], fragment: str
) -> None:
    driver = at(fragment)
    assert shown(driver) == "dag"
    assert not driver.find_element(By.ID, "panel").is_displayed()


def test_colours_follow_the_system_and_the_switch(at: Callable[..., Any]) -> None:
    driver = at()

    def ground() -> set[str]:
        return set(
            driver.execute_script(
                "return [getComputedStyle(document.documentElement).backgroundColor,"
                "...[...document.querySelectorAll('svg.view .ground')]"
                ".map(r => getComputedStyle(r).fill)]"
            )
        )

    def system(scheme: str) -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    light, dark = {"rgb(255, 255, 255)"}, {"rgb(15, 19, 24)"}
    assert ground() == light
    press(driver, "t")
    assert ground() == dark
    system("dark")
    click(driver, "#theme")
    assert ground() == light
    driver.execute_script("delete document.documentElement.dataset.theme")
    until(
        driver, "getComputedStyle(document.documentElement).backgroundColor === 'rgb(15, 19, 24)'"
    )
    assert ground() == dark
    driver.execute_async_script(  # a page hears of no change that is undone within a frame
        "const done = arguments[0];requestAnimationFrame(() => requestAnimationFrame(() => done()))"
    )
    for scheme, pressed in [("light", "false"), ("dark", "true")]:
        driver.execute_script("document.getElementById('theme').ariaPressed = 'mixed'")
        system(scheme)
        until(driver, f"document.getElementById('theme').ariaPressed === '{pressed}'")


# --- paper, phones, no scripts --------------------------------------------------------------------


@pytest.mark.parametrize(
    "width",
    [pytest.param(1280, marks=pytest.mark.nightly), 794],  # the second is A4 upright
)
def test_paper_has_all_drawings_and_the_waits_on_white(at: Callable[..., Any], width: int) -> None:
    driver = at("view=lanes&op=forward.device&focus=up", width=width)
    press(driver, "t", "+")
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    until(driver, "matchMedia('print').matches")
    seen = driver.execute_script(
        "return [...document.querySelectorAll('svg.view, .controls, #panel, .table')]"
        ".filter(e => e.checkVisibility({visibilityProperty: true}))"
        ".map(e => e.id || e.getAttribute('class'))"
    )
    assert seen == ["view dag", "view lanes", "view slots", "table-waits"]
    boxes = driver.execute_script(
        "return [...document.querySelectorAll('svg.view, #table-waits')]"
        ".map(e => e.getBoundingClientRect().toJSON())"
    )
    assert all(above["bottom"] <= below["top"] for above, below in pairwise(boxes))
    assert all(box["left"] >= 0 and box["right"] <= width for box in boxes)
    fills = driver.execute_script(
        "return [...document.querySelectorAll('.ground')].map(r => getComputedStyle(r).fill)"
    )
    assert set(fills) == {"rgb(255, 255, 255)"}
    opacities = driver.execute_script(
        "return [...document.querySelectorAll('.dim')].map(g => getComputedStyle(g).opacity)"
    )
    assert set(opacities) == {"1"}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("view", VIEWS)
def test_a_phone_has_a_legend_right_under_the_drawing_and_no_dead_space(
    at: Callable[..., Any], view: str
) -> None:
    driver = at(f"view={view}", width=390)
    legend = driver.find_element(By.ID, "legend")
    assert "Outlined: the cycle" in legend.text or "A bar: one version" in legend.text
    spots = driver.execute_script(
        "const box = (e) => e.getBoundingClientRect();"
        "const svg = box(document.querySelector('.sheet.current svg.view'));"
        "const [stage, legend, table] = ['stage', 'legend', 'table-waits']"
        ".map((id) => box(document.getElementById(id)));"
        "return [Math.min(svg.bottom, stage.bottom), stage.bottom, legend.top, legend.bottom,"
        " table.top]"
    )
    drawing, stage, top, bottom, table = spots
    assert stage - drawing <= 20
    assert top - stage <= 2
    assert table - bottom <= 40
    assert driver.execute_script("return document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize(
    "width", [*(pytest.param(width, marks=pytest.mark.nightly) for width in (1280, 800)), 390]
)
def test_no_width_makes_the_page_scroll_sideways(at: Callable[..., Any], width: int) -> None:
    driver = at("view=lanes&op=forward.device", width=width)
    assert driver.execute_script("return document.documentElement.scrollWidth") == width
    for css in ("#search", "#help-open", "#tab-slots", "#stage", "#panel"):
        box = driver.find_element(By.CSS_SELECTOR, css).rect
        assert box["width"] > 20, css
        assert box["x"] + box["width"] <= width, css
    assert driver.find_element(By.ID, "stage").rect["height"] >= 300


def test_without_scripts_everything_is_there(at: Callable[..., Any]) -> None:
    driver = at(scripts=False)
    for view in VIEWS:
        assert driver.find_element(By.CSS_SELECTOR, f"svg.{view}").is_displayed()
    assert not driver.find_element(By.CSS_SELECTOR, ".controls").is_displayed()
    assert driver.find_element(By.CSS_SELECTOR, "noscript p").is_displayed()
    plan = plan_of("quickstart")
    rows = driver.find_elements(By.CSS_SELECTOR, "#table-requirements tbody tr")
    assert len(rows) == len(plan.edges) + len(plan.launch_order)
    assert "Without the wait" in driver.find_element(By.ID, "table-waits").text


# --- names, and every pipeline --------------------------------------------------------------------


def test_names_are_text_whatever_they_contain(open_page: OpenPage) -> None:
    evil, worse = "<script>alert(1)</script>", "</script><img src=x onerror=alert(2)>&\"'"
    graph = StepGraph.build(
        [
            Node(evil, (Op((), (worse,), cost_us=10),)),
            Node(
                "b&\"'<i>", (Op(cost_us=5),), (Op((Read(worse),), cost_us=90),), stream="<b>s</b>"
            ),
        ],
        [Value(worse, "pinned", "slots", 1)],
        name="<title>&amp;",
    )
    driver = open_page(plan_page(compile_plan(graph)))
    assert driver.title == "<title>&amp; – plan"
    for view in "123":
        press(driver, view)
    press(driver, "/", "onerror")
    found = [item.text for item in driver.find_elements(By.CSS_SELECTOR, "#found li a")]
    assert worse in found
    press(driver, Keys.ENTER, Keys.ESCAPE)
    assert details(driver).splitlines()[0] == worse
    assert evil in details(driver)
    link = driver.find_element(By.CSS_SELECTOR, "#details a")
    link.click()
    assert details(driver).splitlines()[0] == f"{evil}.host"
    assert driver.find_elements(By.CSS_SELECTOR, "img, b, i, script:not([type])") == []


@pytest.mark.sampled(1)
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_the_pages_of_shipped_pipelines_open_and_no_two_labels_overlap(
    open_page: OpenPage, pipeline: str
) -> None:
    driver = open_page(page_of(pipeline))
    plan = plan_of(pipeline)
    for key, view in zip("123", VIEWS, strict=True):
        press(driver, key)
        assert shown(driver) == view
        assert overlapping(driver, view) == []
        assert outside(driver, view) == []
    press(driver, "1")
    assert drawn(driver, "g.op") == set(plan.graph.vertices)
    assert len(drawn(driver, "g.wait", "wait")) == len(plan.waits)
