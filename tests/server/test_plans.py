"""A service whose engine goes from plan to plan: what /metrics and the live page say of it."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter

import pytest
from prometheus_client.parser import text_string_to_metric_families as plain

from stepweave.executors.course import Course, Goal
from stepweave.server.insight import Insight
from stepweave.server.live.snapshot import snapshot
from stepweave.server.settings import Settings
from stepweave.serving.async_llm import AsyncLLM
from stepweave.serving.plans import USUAL, Load
from tests.server.in_thread import Running, running

STORY = {"prompt": "Once upon a time", "max_tokens": 80, "ignore_eos": True, "temperature": 0}


def deeper(course: Course, step: int, load: Load) -> Goal:
    """Go over once, after some steps."""
    return Goal("deep", reason="predicted", said="less") if step >= 10 else Goal(course.at)


def prepare(llm: AsyncLLM) -> None:
    llm.engine.steer = deeper


@pytest.fixture(scope="module")
def service() -> Iterator[Running]:
    plans = {"plans": {"deep": {"depth": 3}}, "nodes.bitmask.compile_limit_s": None}
    with running(Settings(models=("embedded",)), plans, prepare=prepare) as found:
        with found.client() as client:
            for _ in range(2):
                assert client.post("/v1/completions", json=STORY).status_code == 200
        yield found


def test_metrics_say_which_plan_runs_and_how_often_the_engine_switched(service: Running) -> None:
    with service.client() as client:
        families = plain(client.get("/metrics").text)
    found = [sample for family in families for sample in family.samples]
    digests = {name: plan.digest for name, plan in service.llm.plans.items()}
    assert [*digests] == [USUAL, "deep"]
    info = [each for each in found if each.name == "stepweave:plan_info"]
    assert {
        (each.labels["plan"], each.labels["digest"], each.labels["depth"]): each.value
        for each in info
    } == {(USUAL, digests[USUAL], "2"): 0, ("deep", digests["deep"], "3"): 1}
    switches = [each for each in found if each.name == "stepweave:plan_switches_total"]
    [only] = [
        (e.labels["before"], e.labels["after"], e.labels["reason"], e.value) for e in switches
    ]
    assert only == (USUAL, "deep", "predicted", 1)


def test_the_live_page_shows_the_plan_that_ran_its_steps_and_the_switches(service: Running) -> None:
    seen = snapshot(service.engine, Insight(service.llm), perf_counter())
    deep = service.llm.plans["deep"]
    assert (seen["plan"]["name"], seen["plan"]["of"], seen["plan"]["depth"]) == ("deep", 2, 3)
    assert seen["plan"]["digest"] == deep.digest
    assert [lane["actor"] for lane in seen["lanes"]["lanes"]] == [*deep.actors]
    assert seen["figures"]["period_us"] > 0
    assert seen["switches"]["count"] == 1
    [switch] = seen["switches"]["latest"]
    assert switch["step"] > 10
    assert {key: switch[key] for key in switch if key != "step"} == {
        "before": USUAL,
        "after": "deep",
        "reason": "predicted",
        "said": "less",
    }


def test_figures_are_of_steps_of_one_plan(service: Running) -> None:
    flight = service.llm.service.flight
    assert flight is not None
    found = flight.stretch(service.llm.plans)
    assert found is not None
    assert found.plan == "deep"
    assert found.first >= service.llm.engine.turned[0].step
    ops = service.llm.plans["deep"].graph.vertices
    assert {(event.op, event.actor) for event in found.report.events} == {
        (op, vertex.actor) for op, vertex in ops.items()
    }
