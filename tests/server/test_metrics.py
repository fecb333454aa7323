"""Metrics: every name that is promised, values that are the service's, closed sets of labels."""

from __future__ import annotations

import json
import re
import runpy
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.parser import text_string_to_metric_families as plain
from prometheus_client.samples import Sample

from stepweave.server import insight
from stepweave.server.metrics.engine_figures import ENGINE
from stepweave.server.metrics.histograms import ANSWERS, SPREADS
from stepweave.server.metrics.plan_figures import PLAN
from stepweave.server.settings import Settings
from tests.server.in_thread import Running, running
from tests.server.test_leaving import Watcher

ROOT = Path(__file__).parents[2]
PATH = ROOT / "server" / "dashboards" / "stepweave.json"
SCRIPT = runpy.run_path(str(ROOT / "docs" / "make_dashboard.py"))
KEY = {"authorization": "Bearer secret"}
STORY = {"prompt": "Once upon a time", "max_tokens": 48, "ignore_eos": True, "temperature": 0}
Labels = frozenset[tuple[str, str]]


@pytest.fixture(scope="module")
def watcher() -> Watcher:
    return Watcher()


@pytest.fixture(scope="module")
def service(watcher: Watcher) -> Iterator[Running]:
    settings = Settings(models=("embedded", "other"), api_keys=("secret",))
    # No process that tries grammars: it takes seconds to start.
    changes = {"nodes.bitmask.compile_limit_s": None}
    with running(settings, changes, observers=[watcher]) as found:
        yield found


@pytest.fixture
def client(service: Running) -> Iterator[httpx.Client]:
    with service.client(headers=KEY) as found:
        yield found


def samples(client: httpx.Client) -> list[Sample]:
    answer = client.get("/metrics")
    assert answer.status_code == 200
    return [sample for family in plain(answer.text) for sample in family.samples]


def value(found: list[Sample], name: str, **labels: str) -> float:
    """The sum of the samples of that name that have these labels."""
    hits = [s.value for s in found if s.name == name and labels.items() <= s.labels.items()]
    assert hits, f"there is no {name} with {labels}"
    return sum(hits)


def completed(client: httpx.Client, **asked: Any) -> Mapping[str, Any]:
    answer = client.post("/v1/completions", json={**STORY, **asked})
    assert answer.status_code == 200, answer.text
    found: Mapping[str, Any] = answer.json()
    return found


def test_every_name_is_exposed_with_its_kind_and_its_words_and_no_other(
    client: httpx.Client,
) -> None:
    completed(client)
    read: list[tuple[str, str, str]] = [(each.name, each.kind, each.says) for each in ENGINE]
    read += [(each.name, each.kind, each.says) for each in PLAN]
    promised = {name.removesuffix("_total"): (kind, says) for name, kind, says in read}
    promised |= {each.name: ("histogram", each.says) for each in SPREADS}
    families = {each.name: each for each in plain(client.get("/metrics").text)}
    own = {name for name in families if not name.startswith("process_")}
    created = {name for name in own if name.endswith("_created")}
    assert own - created == {*promised, ANSWERS.removesuffix("_total")}
    for name, (kind, says) in promised.items():
        assert (families[name].type, families[name].documentation) == (kind, says)
    for name in own:
        for sample in families[name].samples:
            common = {"model_name": "embedded", "engine": "0"}
            assert common.items() <= sample.labels.items(), sample


def test_counters_go_up_by_what_the_answers_say(client: httpx.Client, watcher: Watcher) -> None:
    before = samples(client)
    watcher.forget()
    answers = [completed(client, n=2, seed=seed) for seed in range(2)]
    after = samples(client)

    def gained(name: str, **labels: str) -> float:
        return value(after, name, **labels) - value(before, name, **labels)

    usage = [each["usage"] for each in answers]
    assert gained("vllm:generation_tokens_total") == sum(u["completion_tokens"] for u in usage)
    assert gained("vllm:request_success_total", finished_reason="length") == 4
    assert gained("vllm:request_success_total") == 4
    assert gained("stepweave:requests_total") == 2
    accepted = sum(u["completion_tokens_details"]["accepted_prediction_tokens"] for u in usage)
    drafted = accepted + sum(
        u["completion_tokens_details"]["rejected_prediction_tokens"] for u in usage
    )
    assert gained("vllm:spec_decode_num_accepted_tokens_total") == accepted > 0
    assert gained("vllm:spec_decode_num_draft_tokens_total") == drafted
    assert gained("vllm:spec_decode_num_accepted_tokens_per_pos_total") == accepted
    assert gained("vllm:spec_decode_num_drafts_total") >= gained(
        "vllm:spec_decode_num_accepted_tokens_per_pos_total", position="0"
    )
    assert gained("vllm:time_to_first_token_seconds_count") == 4
    assert gained("vllm:e2e_request_latency_seconds_count") == 4
    assert gained("vllm:request_generation_tokens_sum") == gained("vllm:generation_tokens_total")
    assert gained("vllm:request_params_n_sum") == 4
    between = gained("vllm:inter_token_latency_seconds_count")
    assert between == gained("vllm:time_per_output_token_seconds_count")
    assert 4 * 11 <= between < 4 * 47  # steps settle one to four tokens
    assert between == sum(bool(each.token_ids) for each in watcher.increments) - 4
    assert gained("stepweave:http_requests_total", path="/v1/completions", status="200") == 2


def test_answers_about_one_model_are_counted_together_and_apart_from_unknown_paths(
    client: httpx.Client,
) -> None:
    before = samples(client)
    for name in ("embedded", "other", "none"):
        client.get(f"/v1/models/{name}")
    after = samples(client)
    count = {"path": "/v1/models/{name}"}
    found = [
        each for each in before if each.name == ANSWERS and count.items() <= each.labels.items()
    ]
    gained = value(after, ANSWERS, **count) - sum(each.value for each in found)
    assert gained == 3


def test_the_parts_of_a_request_add_up_to_the_whole(client: httpx.Client) -> None:
    completed(client)
    found = samples(client)
    queue, inference, prefill, decode, whole = (
        value(found, f"vllm:{name}_seconds_sum")
        for name in (
            "request_queue_time",
            "request_inference_time",
            "request_prefill_time",
            "request_decode_time",
            "e2e_request_latency",
        )
    )
    assert prefill + decode == pytest.approx(inference)
    assert 0 < queue + inference < whole  # which begins with the first byte


def test_a_client_that_leaves_is_counted_as_an_abort(
    service: Running, client: httpx.Client, watcher: Watcher
) -> None:
    completed(client)
    samples(client)  # figures of a plan are computed for the first time, which may take long
    before = value(samples(client), "vllm:request_success_total", finished_reason="abort")
    watcher.forget()
    long = {**STORY, "max_tokens": 1000, "n": 40, "stream": True}
    with client.stream("POST", "/v1/completions", json=long) as answer:
        lines = answer.iter_lines()  # kept: an iterator that is gone has closed the connection
        next(lines)
        meanwhile = samples(client)
    watcher.when(lambda: any(each.status == 499 for each in watcher.answers))
    watcher.when(lambda: sum(each.output is not None for each in watcher.increments) == 40)
    found = samples(client)
    running = value(meanwhile, "vllm:num_requests_running")
    assert 0 < running <= value(meanwhile, "stepweave:rows_limit") == 16
    assert value(meanwhile, "vllm:num_requests_waiting") >= 40 - 16
    assert 0 < value(meanwhile, "vllm:kv_cache_usage_perc") <= 1
    assert value(found, "vllm:request_success_total", finished_reason="abort") == before + 40
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        assert value(found, f"vllm:{name}") == 0
    assert value(found, "stepweave:http_requests_total", status="499") == 1


def test_the_plan_is_named_and_its_last_steps_are_judged(
    service: Running, client: httpx.Client
) -> None:
    completed(client)
    found = samples(client)
    plan = service.llm.plan
    assert value(found, "stepweave:plan_info", digest=plan.digest, depth="2") == 1
    measured = value(found, "stepweave:period_measured_seconds")
    assert 0 < measured < 60
    assert 0 < value(found, "stepweave:period_predicted_seconds") < 60
    assert 0 < value(found, "stepweave:host_hidden_ratio") <= 1
    waits = {
        (s.labels["op"], s.labels["event"], s.labels["distance"])
        for s in found
        if s.name == "stepweave:wait_seconds_per_step"
    }
    assert waits == {(w.target, w.source, str(w.distance)) for w in plan.waits}
    ops = {s.labels["op"] for s in found if s.name == "stepweave:op_median_seconds"}
    assert ops == {*plan.graph.vertices}
    causes = [s for s in found if s.name == "stepweave:idle_seconds_per_step"]
    assert {s.labels["by"] for s in causes} <= {"wait", "order", "launch", "start"}
    assert all(s.labels["op"] in plan.graph.vertices for s in causes)


def test_no_label_takes_its_value_from_a_client(client: httpx.Client) -> None:
    completed(client)

    def series() -> set[tuple[str, Labels]]:
        return {
            (s.name, frozenset(s.labels.items()))
            for s in samples(client)
            if not s.name.startswith("stepweave:idle_seconds")  # of the plan, and of the moment
            and not s.name.endswith("_created")
        }

    client.get("/never/heard/of")
    client.request("BREW", "/metrics")
    client.post("/v1/completions", json={"prompt": 1})
    before = series()
    for index in range(20):
        named = {"x-request-id": f"id-{index}"}
        client.get(f"/path/{index}?query={index}", headers=named)
        client.request(f"BREW{index}", "/metrics", headers=named)
        client.request("BREW", f"/metrics/{index}")
        wrong = {**STORY, "model": f"model-{index}", "user": f"user-{index}"}
        client.post("/v1/completions", json=wrong, headers=named)
    completed(client, model="other", user="somebody")
    gained = {name for name, _ in series() - before}
    assert gained <= {ANSWERS}
    new = {dict(labels)["path"] for name, labels in series() - before if name == ANSWERS}
    assert new <= {"other", "/metrics", "/v1/completions"}


def test_grammars_are_timed_when_they_are_compiled_and_not_when_they_are_cached(
    client: httpx.Client,
) -> None:
    def compiled(outcome: str) -> float:
        found = samples(client)
        return value(found, "stepweave:grammar_compile_seconds_count", outcome=outcome)

    well, refused = compiled("compiled"), compiled("refused")
    for _ in range(2):
        completed(client, structured_outputs={"regex": "[a-c]{3}"}, ignore_eos=False)
    wrong = {**STORY, "structured_outputs": {"regex": "(?<=a)b"}}
    assert client.post("/v1/completions", json=wrong).status_code == 400
    assert (compiled("compiled"), compiled("refused")) == (well + 1, refused + 1)


def test_the_key_is_asked_for(service: Running) -> None:
    with service.client() as stranger:
        assert stranger.get("/metrics").status_code == 401


@pytest.mark.parametrize("accept", ["*/*", "application/openmetrics-text; version=1.0.0", ""])
def test_names_have_their_colons_whatever_form_is_preferred(
    client: httpx.Client, accept: str
) -> None:
    answer = client.get("/metrics", headers={"accept": accept})
    assert answer.headers["content-type"] == CONTENT_TYPE_PLAIN_0_0_4
    assert "\nvllm:generation_tokens_total{" in answer.text


def test_those_who_look_on_hold_nobody_up_however_many_and_however_long(
    service: Running, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    flight = service.llm.service.flight
    assert flight is not None
    looking, go_on = threading.Event(), threading.Event()
    stretch = flight.stretch

    def slow(*asked: Any) -> Any:
        looking.set()
        assert go_on.wait(120), "nobody let it go on"
        return stretch(*asked)

    monkeypatch.setattr(flight, "stretch", slow)
    monkeypatch.setattr(insight, "FRESH_S", 0.0)
    with ThreadPoolExecutor(40) as many:
        asked = [many.submit(client.get, path) for _ in range(20) for path in ("/metrics", "/live")]
        try:
            assert looking.wait(120)
            completed(client)
            assert client.get("/health").status_code == 200
        finally:
            go_on.set()
        assert {each.result(120).status_code for each in asked} == {200}


def test_the_dashboard_is_the_one_that_its_script_makes() -> None:
    assert PATH.read_text(encoding="utf-8") == SCRIPT["text"]()


def test_the_dashboard_asks_for_metrics_and_labels_that_there_are(client: httpx.Client) -> None:
    completed(client)
    client.get("/metrics")
    labels: dict[str, set[str]] = {}
    for sample in samples(client):
        labels.setdefault(sample.name, {"instance"}).update(sample.labels)
    found = [panel for panel in dashboard()["panels"] if panel["type"] != "row"]
    assert len(found) > 20
    for panel in found:
        for target in panel["targets"]:
            names = re.findall(r"\b(?:vllm|stepweave|process)[a-z0-9_:]+", target["expr"])
            assert names, target["expr"]
            assert {*names} <= {*labels}, target["expr"]
            grouped = re.findall(r"by \(([a-z_, ]*)\)", target["expr"])
            written = {each.strip() for group in grouped for each in group.split(",")} - {"le"}
            written |= {*re.findall(r"{{([a-z_]+)}}", target["legendFormat"])}
            assert all(written <= labels[name] for name in names[:1]), (target, written)


def test_the_dashboard_loads_without_edits() -> None:
    """Its source of data is a variable, no panel lies on another, every place is in the row."""
    found = dashboard()
    variables = {each["name"]: each for each in found["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert {each["uid"] for each in _values(found, "datasource") if "uid" in each} == {
        "${datasource}"
    }
    used = {*re.findall(r"\$(?!__)\{?([a-z_]+)", PATH.read_text(encoding="utf-8"))}
    assert used == {*variables}
    places = [panel["gridPos"] for panel in found["panels"]]
    cells = [
        (x, y)
        for at in places
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(cells) == len({*cells})
    assert max(x for x, _ in cells) < 24
    ids = [panel["id"] for panel in found["panels"]]
    assert len(ids) == len({*ids})


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(PATH.read_text(encoding="utf-8"))
    return found


def _values(found: Any, key: str) -> Iterator[dict[str, Any]]:
    """Every mapping that is somewhere below under this key."""
    if isinstance(found, Mapping):
        for name, each in found.items():
            if name == key and isinstance(each, dict):
                yield each
            yield from _values(each, key)
    elif isinstance(found, list):
        for each in found:
            yield from _values(each, key)


def test_without_the_recorder_only_the_figures_of_the_plan_are_missing() -> None:
    settings = Settings(models=("embedded",), recorder=False)
    with running(settings) as service, service.client() as client:
        completed(client)
        assert service.llm.service.flight is None
        names = {sample.name for sample in samples(client)}
    assert not names & {each.name for each in PLAN}
    # An engine with one plan never goes over to another: see test_plans.py.
    assert names >= {each.name for each in ENGINE} - {"stepweave:plan_switches_total"}
