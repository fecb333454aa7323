"""What the live page asks for: who may, what it says, and what it costs."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import re
from collections.abc import Iterator
from time import perf_counter
from typing import Any

import pytest

from stepweave.server.insight import Insight
from stepweave.server.live import route
from stepweave.server.live.snapshot import snapshot
from stepweave.server.settings import Settings
from tests.server.in_thread import Running, running

STORY = {"prompt": "Once upon a time", "max_tokens": 48, "ignore_eos": True, "temperature": 0}


@pytest.fixture(scope="module")
def service() -> Iterator[Running]:
    with running(Settings(models=("embedded",), api_keys=("secret",))) as found:
        with found.client(headers={"authorization": "Bearer secret"}) as client:
            assert client.post("/v1/completions", json=STORY).status_code == 200
        yield found


def told(service: Running) -> dict[str, Any]:
    return snapshot(service.engine, Insight(service.llm), perf_counter())


def test_the_page_needs_no_key_and_what_it_asks_for_does(service: Running) -> None:
    with service.client() as stranger:
        page, live = stranger.get("/"), stranger.get("/live")
        wrong = stranger.get("/live", headers={"authorization": "Bearer other"})
    assert page.status_code == 200
    assert 'data-key="yes"' in page.text
    assert "embedded" not in page.text
    assert (live.status_code, wrong.status_code) == (401, 401)
    with service.client(headers={"authorization": "Bearer secret"}) as client:
        assert client.get("/live").json()["model"] == "embedded"


def test_the_page_may_run_its_own_script_and_ask_its_own_service_only(service: Running) -> None:
    with service.client() as stranger:
        page = stranger.get("/")
    policy = dict(
        rule.strip().split(" ", 1) for rule in page.headers["content-security-policy"].split(";")
    )
    [script] = re.findall(r'<script type="module">(.*?)</script>', page.text, re.DOTALL)
    [style] = re.findall(r"<style>(.*?)</style>", page.text, re.DOTALL)
    for text, rule in ((script, "script-src"), (style, "style-src")):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert policy.pop(rule) == f"'sha256-{digest}'"
    assert policy == {
        "default-src": "'none'",
        "img-src": "data:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    assert page.headers["x-content-type-options"] == "nosniff"
    for text in ("http://", "https://", "innerHTML", "onclick", "style=", "eval("):
        assert text not in page.text, text


def test_it_says_what_the_service_and_its_last_steps_are_at(service: Running) -> None:
    found, plan = told(service), service.llm.plan
    assert (found["state"], found["running"], found["queued"]) == ("serving", 0, 0)
    assert found["totals"]["tokens"] == service.llm.service.totals.tokens >= 48
    assert found["plan"]["digest"] == plan.digest
    ops = found["plan"]["ops"]
    assert [(ops[s], ops[t], d) for s, t, d in found["plan"]["waits"]] == [
        (wait.source, wait.target, wait.distance) for wait in plan.waits
    ]
    lanes = found["lanes"]
    assert [lane["actor"] for lane in lanes["lanes"]] == [*plan.actors]
    steps = {*range(lanes["first"], lanes["first"] + lanes["steps"])}
    for lane in lanes["lanes"]:
        assert {step for _, step, _, _ in lane["spans"]} == steps
        for op, _, start, us in lane["spans"]:
            assert plan.graph.vertices[ops[op]].actor == lane["actor"]
            assert start >= 0
            assert us >= 0
    assert 0 < found["figures"]["period_us"] < 60e6
    assert len(found["figures"]["waits"]) == len(plan.waits)


def test_requests_are_listed_latest_first_with_what_they_waited_for(service: Running) -> None:
    with service.client(headers={"authorization": "Bearer secret"}) as client:
        for name in ("first", "second"):
            headers = {"x-request-id": name}
            client.post("/v1/completions", json={**STORY, "max_tokens": 4}, headers=headers)
    latest, before = told(service)["requests"][:2]
    assert [latest["id"], before["id"]] == ["second", "first"]
    assert latest["tokens"] == 4
    assert latest["end"] == "length"
    moments = [latest[f"{name}_s"] for name in ("submitted", "scheduled", "first_token", "so_far")]
    assert moments == sorted(moments)


def test_a_request_that_runs_is_listed_and_its_id_is_cut(service: Running) -> None:
    async def begun() -> dict[str, Any]:
        async with await service.llm.submit(
            "a", {"max_tokens": 900, "ignore_eos": True, "n": 40}, id="<b>" * 1000
        ) as stream:
            await anext(stream)
            return told(service)

    found = asyncio.run_coroutine_threadsafe(begun(), service.loop).result(60)
    listed = found["requests"]
    assert len(listed) == 16
    assert {each["end"] for each in listed} == {None}
    assert {each["id"] for each in listed} == {("<b>" * 1000)[:128]}
    assert found["running"] > 0
    assert found["queued"] > 0


def test_however_many_ask_it_is_computed_once_in_a_while(
    service: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, computed = [100.0], []

    def counted(*_: object) -> dict[str, int]:
        computed.append(now[0])
        return {"number": len(computed)}

    monkeypatch.setattr(route, "monotonic", lambda: now[0])
    monkeypatch.setattr(route, "snapshot", counted)
    answers = route.Told(service.engine, Insight(service.llm))
    assert {answers.text() for _ in range(50)} == {b'{"number":1}'}
    now[0] += route.FRESH_S
    assert {answers.text() for _ in range(50)} == {b'{"number":2}'}
    assert computed == [100.0, 100.0 + route.FRESH_S]


class Records(logging.Handler):
    """What is logged, whatever other tests have made of the loggers of this process."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(record)


def test_the_log_is_not_full_of_those_who_look_on(
    service: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = {"authorization": "Bearer secret"}
    records, logger = Records(), logging.Logger("alone", logging.INFO)
    logger.addHandler(records)
    monkeypatch.setattr("stepweave.server.gate.ACCESS", logger)
    with service.client() as client:
        for path in ("/live", "/metrics", "/health", "/ready"):
            assert client.get(path, headers=key).status_code == 200
        assert client.get("/live").status_code == 401
        assert client.get("/version", headers=key).status_code == 200
        client.get("/health")  # on the same connection: what was before it has been logged
    told = [vars(record)["fields"] for record in records.found]
    assert [(each["path"], each["status"]) for each in told] == [("/live", 401), ("/version", 200)]


def test_it_says_so_when_the_service_drains_or_its_recorder_is_off() -> None:
    with running(Settings(models=("embedded",), recorder=False)) as service:
        before = told(service)
        service.engine.draining = True
        after = told(service)
        with service.client() as client:
            assert client.get("/").status_code == 200
            assert client.get("/live").json()["state"] == "draining"
    assert (before["state"], after["state"]) == ("serving", "draining")
    assert (before["recorder"], before["lanes"], before["figures"]) == (False, None, None)
