"""The timeline page as text; `tests/browser` opens it."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from stepweave.executors import RunReport
from stepweave.executors.report import OpEvent
from stepweave.graph.errors import StepweaveError
from stepweave.graph.plan import Plan
from stepweave.graph.planner.compile import compile_plan
from stepweave.requests.spans import RequestSpan
from stepweave.timelines.simulated import Turn, simulate
from stepweave.views.timeline_page import timeline_page
from stepweave.views.traced import Trace
from stepweave.views.words import protected
from tests.graph.pipelines import decode

VOID = {"meta", "input", "br", "hr", "wbr", "link", "img"}


class Balanced(HTMLParser):
    """Every element that begins ends, in order; the texts of table cells are kept."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.cells: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [f"{v}" for name, v in attrs if name in {"src", "href"}]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "td":
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "td":
            self.cells[-1] += data


def plan() -> Plan:
    return compile_plan(decode())


def as_if_run(plan: Plan, steps: int = 30, late_us: float = 0.0, **options: Any) -> RunReport:
    """A simulated run, with commits `late_us` late, as a tracing executor would report it."""

    def takes(turn: Turn) -> float:
        return turn.cost_us * (1 + 0.1 * (turn.step % 3)) + late_us

    run = simulate(plan, steps=steps, takes=takes, **options)
    events = tuple(
        OpEvent(s.op, s.step, s.actor, s.start_us / 1e6, s.end_us / 1e6) for s in run.events
    )
    return RunReport(steps, events=events, seconds=run.seconds, ended_s=100.0 + run.seconds)


def data_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found.group(1))
    return data


def test_the_page_is_one_sound_file_that_names_no_other() -> None:
    page = timeline_page(Trace.of(plan(), as_if_run(plan())))
    parser = Balanced()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    assert parser.addresses == []
    assert "http" not in page.replace("http-equiv", "")
    assert "{{" not in page
    assert page == timeline_page(Trace.of(plan(), as_if_run(plan())))


def test_the_page_has_every_span_of_the_run_at_its_time() -> None:
    trace = Trace.of(plan(), as_if_run(plan()))
    data = data_of(timeline_page(trace))
    measured, planned = data["tracks"]
    assert (measured["name"], planned["name"]) == ("measured", "planned")
    seen = {}
    for lane in measured["lanes"]:
        at = step = 0
        for i, op in enumerate(lane["op"]):
            at, step = at + lane["gap"][i], step + lane["step"][i]
            held = measured["helds"][lane["held"][i]] if lane["held"][i] >= 0 else None
            seen[data["ops"][op], step] = (lane["actor"], at / 10, (at + lane["us"][i]) / 10, held)
            at += lane["us"][i]
    assert len(seen) == len(trace.run.events)
    for span in trace.run.events:
        actor, start, end, held = seen[span.op, span.step]
        assert actor == span.actor
        assert (start, end) == pytest.approx((span.start_us, span.end_us), abs=0.06)
        assert held is not None
        assert span.held is not None
        op, distance, by = held
        assert (data["ops"][op], span.step - distance, by) == span.held
    steps = {s for lane in planned["lanes"] for s in _steps(lane)}
    assert steps == set(trace.run.steady)


def _steps(lane: dict[str, Any]) -> list[int]:
    return [sum(lane["step"][: i + 1]) for i in range(len(lane["step"]))]


def test_the_numbers_are_text_of_the_page() -> None:
    trace = Trace.of(plan(), as_if_run(plan()))
    page = timeline_page(trace)
    assert f"{trace.run.period_us:,.0f} µs" in page
    assert f"{trace.predicted_us:,.0f} µs" in page
    parser = Balanced()
    parser.feed(page)
    for op in plan().graph.vertices:
        assert op in parser.cells
    wait = next(w for w in plan().waits if w.target == "commit.host")
    assert f"waits for {wait.source} ({protected(wait)})" in parser.cells


def test_names_cannot_break_the_page() -> None:
    bad = '</script><b title="x">&amp;'
    report = as_if_run(plan())
    request = RequestSpan(bad, 100.0, 100.0, 100.001, 100.002, 100.01, 3, 2, "stop", 0, (0,))
    page = timeline_page(Trace.of(plan(), report, requests=[request]), title=bad)
    parser = Balanced()
    parser.feed(page)
    assert parser.open == []
    assert bad in parser.cells
    assert data_of(page)["requests"][0]["id"] == bad


def test_only_the_last_steps_are_drawn_where_that_is_asked_for() -> None:
    trace = Trace.of(plan(), as_if_run(plan()))
    whole, part = timeline_page(trace), timeline_page(trace, steps=8)
    assert len(part) < len(whole)
    lanes = data_of(part)["tracks"][0]["lanes"]
    assert {s for lane in lanes for s in _steps(lane)} == set(range(22, 30))


def test_a_long_run_stays_a_small_file() -> None:
    trace = Trace.of(plan(), as_if_run(plan(), steps=2000))
    assert len(timeline_page(trace)) < 2000 * len(plan().graph.vertices) * 2 * 25 + 60_000


def test_a_simulation_says_that_it_is_one() -> None:
    page = timeline_page(Trace.simulation(plan(), 20))
    assert "simulated at the plan" in page
    assert "measured" not in page.partition('<script type="module">')[0]
    assert [track["name"] for track in data_of(page)["tracks"]] == ["simulated"]


def test_a_run_without_steady_steps_is_no_trace() -> None:
    with pytest.raises(StepweaveError, match="Ask for more tokens"):
        Trace.of(plan(), as_if_run(plan(), steps=4))


def test_the_summary_of_a_trace_says_what_the_numbers_are() -> None:
    found = Trace.of(plan(), as_if_run(plan())).to_json()
    period = found["period_us"]
    assert period["error"] == pytest.approx(period["predicted"] / period["measured"] - 1, abs=1e-4)
    assert found["critical_cycle"]["measured"]["repeats"]
    idle = found["idle"][0]
    assert idle["why"].startswith(f"waits for {idle['after']} (")
    for actor in found["actors"]:
        assert actor["busy_us"] + actor["idle_us"] == pytest.approx(period["mean"], abs=0.01)
