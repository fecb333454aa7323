"""`stepweave serve`: what is wrong is told in one line, before anything is loaded; how it ends."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import uvicorn
from typer.testing import CliRunner

from stepweave.cli import serve
from stepweave.cli.main import app
from stepweave.replicas.scale import Scale
from stepweave.server import run as server_run
from stepweave.server.logs import ACCESS, SERVER
from stepweave.server.run import configured
from tests.server.in_process import serving
from tests.server.in_thread import Running, running
from tests.server.leftovers import until


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    """What `serve` sets up for its process, the others of this one have not: its stream is gone."""
    loggers = [logging.getLogger(), ACCESS, SERVER]
    before = [(each.level, [*each.handlers]) for each in loggers]
    yield
    for each, (level, handlers) in zip(loggers, before, strict=True):
        each.setLevel(level)
        each.handlers[:] = handlers


def told(*arguments: str) -> tuple[int, list[str]]:
    """The exit status, and the lines on stderr."""
    done = CliRunner().invoke(app, ["serve", *arguments])
    assert not isinstance(done.exception, AssertionError)
    return done.exit_code, done.stderr.splitlines()


def test_without_the_extra_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "NEEDED", ("json", "no_such_package"))
    status, lines = told("quickstart")
    assert status == 2
    assert lines == [
        "error: `stepweave serve` needs no_such_package: pip install 'stepweave[server]'"
    ]


def test_spans_need_an_address_and_their_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    status, [line] = told("quickstart", "--otlp-traces-endpoint", "localhost:4318")
    assert (status, "must be an address such as" in line) == (2, True)
    monkeypatch.setattr(serve, "OTEL", ("no_such_package.traces",))
    status, [line] = told("quickstart", "--otlp-traces-endpoint", "http://localhost:4318")
    assert (status, line) == (
        2,
        "error: --otlp-traces-endpoint needs no_such_package.traces: pip install 'stepweave[otel]'",
    )


@pytest.mark.parametrize(
    ("options", "recorder"), [([], True), (["--recorder"], True), (["--no-recorder"], False)]
)
def test_the_last_steps_are_noted_unless_it_is_told_not_to(
    monkeypatch: pytest.MonkeyPatch, options: list[str], recorder: bool
) -> None:
    served = []

    def serve_none(_: object, settings: Any, *__: object, **___: object) -> bool:
        served.append(settings.recorder)
        return True

    monkeypatch.setattr(serve, "loaded_async", lambda _: advising({}))
    monkeypatch.setattr(server_run, "serve", serve_none)
    assert told("quickstart", "--port", "0", *options) == (0, [])
    assert served == [recorder]


def test_a_host_may_be_called_by_the_name_that_was_given_however_it_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served: list[Any] = []

    def serve_none(_: object, settings: Any, *__: object, **___: object) -> bool:
        served.append(settings.hosts)
        return True

    monkeypatch.setattr(serve, "loaded_async", lambda _: advising({}))
    monkeypatch.setattr(server_run, "serve", serve_none)
    assert told("quickstart", "--port", "0", "--host", "LocalHost") == (0, [])
    assert served == [{"localhost", "127.0.0.1", "::1"}]


def test_the_status_says_whether_the_service_was_told_to_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serve, "loaded_async", lambda _: advising({}))
    monkeypatch.setattr(server_run, "serve", lambda *_, **__: False)
    assert told("quickstart", "--port", "0") == (1, [])


def advising(sampling: dict[str, Any]) -> Any:
    """An engine whose model's authors have tokens drawn in this way."""
    model = SimpleNamespace(sampling_defaults=sampling)
    config = SimpleNamespace(model=SimpleNamespace(name="this"))
    return SimpleNamespace(engine=SimpleNamespace(model=model), config=config)


@pytest.mark.parametrize(
    ("options", "sampling"),
    [([], {"temperature": 0.6, "top_k": 20}), (["--generation-config", "none"], {})],
)
def test_a_models_generation_config_is_used_unless_it_is_told_not_to(
    monkeypatch: pytest.MonkeyPatch, options: list[str], sampling: dict[str, Any]
) -> None:
    served = []

    def serve_none(_: object, settings: Any, *__: object, **___: object) -> bool:
        served.append(settings.sampling)
        return True

    monkeypatch.setattr(
        serve, "loaded_async", lambda _: advising({"temperature": 0.6, "top_k": 20})
    )
    monkeypatch.setattr(server_run, "serve", serve_none)
    assert told("quickstart", "--port", "0", *options) == (0, [])
    assert served == [sampling]


@pytest.mark.parametrize("wrong", ["hot", -1.0, float("nan"), [1], True])
def test_a_generation_config_with_wrong_values_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, wrong: Any
) -> None:
    monkeypatch.setattr(serve, "loaded_async", lambda _: advising({"temperature": wrong}))
    status, [line] = told("quickstart", "--port", "0")
    assert status == 2
    assert line.startswith("error: generation_config.json of embedded: temperature must be ")
    assert line.endswith("; --generation-config none serves the model without it")


def test_a_name_that_is_none_is_refused() -> None:
    found = told("quickstart", "--port", "0", "--served-model-name", "")
    assert found == (2, ["error: --served-model-name must not be empty"])


@pytest.mark.parametrize("said", ["0", "2-", "-2", "3-2", "two", "1-2-3", "２", "1025"])
def test_a_number_of_replicas_that_is_none_is_refused(
    monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    monkeypatch.setattr(serve, "_there", lambda _: True)
    status, [line] = told("quickstart", f"--replicas={said}")
    assert status == 2
    assert line.startswith("error: --replicas must be a number such as 4, or a range such as 2-8")


def test_replicas_are_a_number_or_a_range() -> None:
    assert serve.scale_of(None, 30.0) is None
    assert serve.scale_of("4", 5.0) == Scale(4, 4, 5.0)
    assert serve.scale_of("2-8", 30.0, 60.0) == Scale(2, 8, 30.0, 60.0)
    for fixed in (None, "4"):
        with pytest.raises(serve.ServeError, match="give one, as --replicas 2-8"):
            serve.scale_of(fixed, 30.0, 60.0)
    assert [f"{each}" for each in (Scale(4, 4), Scale(2, 8))] == ["4", "2 to 8"]


def test_replicas_without_ray_are_told_which_extra_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "_there", lambda module: module != "ray")
    status, [line] = told("quickstart", "--replicas", "2")
    assert status == 2
    assert line == "error: --replicas needs ray: pip install 'stepweave[ray]'"


def test_replicas_of_another_front_need_ray_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "_there", lambda module: module != "ray")
    status, [line] = told("quickstart", "--fleet", "blue")
    assert status == 2
    assert line == "error: --fleet needs ray: pip install 'stepweave[ray]'"


def test_a_port_that_is_taken_is_told_before_a_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def loaded(_: object) -> None:
        raise AssertionError("loaded")

    monkeypatch.setattr(serve, "loaded_async", loaded)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, [line] = told("quickstart", "--port", str(port))
    assert status == 2
    assert line.startswith(f"error: 127.0.0.1:{port} cannot be listened on: ")
    status, [line] = told("quickstart", "--host", "no.such.host.invalid", "--port", "0")
    assert status == 2
    assert "cannot be listened on" in line


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("quickstart", "--set", "model.adapters.embedded=x"), "rename the adapter"),
        (("quickstart", "--api-key", " "), "--api-key"),
        (("quickstart", "--api-key", ""), "--api-key"),
        (("quickstart", "--api-key", "secret "), "no space at its ends"),
        (("quickstart", "--host", "a..b", "--port", "0"), "a..b:0 cannot be listened on: "),
        (("quickstart", "--host", "x" * 70, "--port", "0"), "cannot be listened on: "),
        (("quickstart", "--api-key", "schlüssel"), "--api-key"),
        (("abstract_decode",), "no code to run"),
        (("no_such_config",), "no_such_config"),
        (("quickstart", "--set", "depht=3"), "depht"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(arguments: tuple[str, ...], said: str) -> None:
    status, [line] = told(*arguments)
    assert status == 2
    assert line.startswith("error: ")
    assert said in line


LONG = {"prompt": "a", "max_tokens": 1000, "ignore_eos": True, "temperature": 0, "stream": True}


@pytest.mark.nightly
def test_a_second_signal_ends_the_process_at_once(tmp_path: Path) -> None:
    with (
        serving(tmp_path, "synchronous", "--drain-s", "600", "--log-level", "warning") as service,
        httpx.Client(base_url=service.url, timeout=120, trust_env=False) as client,
        client.stream("POST", "/v1/completions", json=LONG) as stream,
    ):
        parts = stream.iter_raw()  # kept: one that is gone has closed the connection
        next(parts)
        while service.child.poll() is None:  # signals within a second are one press of Ctrl-C
            service.signal(signal.SIGTERM)
            try:
                service.child.wait(0.1)
            except subprocess.TimeoutExpired:
                continue
        assert service.ended() == 128 + signal.SIGTERM
        [line] = service.log.read_text().splitlines()
        assert json.loads(line)["message"] == "ended at once, by a second signal"


def test_a_second_signal_ends_it_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """But not one within a second of the first: a shell signals a process and its group."""
    statuses: list[int] = []
    clock = iter((100.0, 100.9, 101.1))
    monkeypatch.setattr("os._exit", statuses.append)
    monkeypatch.setattr(server_run, "monotonic", lambda: next(clock))
    engine: Any = SimpleNamespace(draining=False)
    service: Any = server_run._Service(uvicorn.Config(lambda: None), engine, lambda: None)

    async def signalled() -> None:
        monkeypatch.setattr(service, "_drain", lambda: asyncio.sleep(0))
        service._signalled(signal.SIGTERM)
        service._signalled(signal.SIGTERM)
        assert engine.draining
        assert statuses == []
        service._signalled(signal.SIGINT)
        await service._draining

    asyncio.run(signalled())
    assert statuses == [130]


def test_what_has_not_ended_in_time_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is over at once here; the answer that runs is told its end all the same."""
    resorts: list[float] = []

    def timer(seconds: float, *_: object) -> Any:
        resorts.append(seconds)
        return SimpleNamespace(start=lambda: None)

    monkeypatch.setattr("stepweave.server.run.threading.Timer", timer)
    with running() as service, service.client() as client:
        with client.stream("POST", "/v1/completions", json=LONG) as stream:
            parts = stream.iter_text()
            text = next(parts)
            assert drained(service, 0.0)
            text += "".join(parts)
        assert '"finish_reason":"cancelled"' in text
        assert text.endswith("data: [DONE]\n\n")
        assert service.llm.service.unended == 0
    assert resorts == [server_run.LAST_RESORT_S]


def test_a_request_that_had_not_begun_by_then_may_go_to_another_service(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timer: Any = SimpleNamespace(start=lambda: None)  # the last resort would end this process
    monkeypatch.setattr("stepweave.server.run.threading.Timer", lambda *given: timer)
    asked = {**LONG, "stream": False}
    with (
        running(overrides={"scheduler.max_rows": 1}) as service,
        service.client() as client,
        service.client() as other,
        ThreadPoolExecutor(1) as pool,
    ):
        with client.stream("POST", "/v1/completions", json=LONG) as stream:
            next(parts := stream.iter_text())
            waiting = pool.submit(other.post, "/v1/completions", json=asked)
            until(lambda: service.llm.service.queued == 1, "the second request waits")
            assert drained(service, 0.0)
            assert '"finish_reason":"cancelled"' in "".join(parts)
        answer = waiting.result(60)
    assert answer.status_code == 503
    assert answer.headers["retry-after"]
    error = answer.json()["error"]
    assert (error["code"], error["type"]) == ("unavailable", "service_unavailable_error")
    assert "before the request began" in error["message"]


def drained(service: Running, seconds: float) -> bool:
    """Drain as after TERM; whether the server is told to end."""
    object.__setattr__(service.engine.settings, "drain_s", seconds)
    config = configured(service.app, service.engine.settings.limits)
    ending = server_run._Service(config, service.engine, lambda: None)
    asyncio.run_coroutine_threadsafe(ending._drain(), service.loop).result(120)
    return ending._server.should_exit


def test_whoever_looks_for_it_finds_the_log_as_it_was_before_these_tests() -> None:
    streams = [getattr(each, "stream", None) for each in logging.getLogger().handlers]
    assert not any(stream is not None and stream.closed for stream in streams)
