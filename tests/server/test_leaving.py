"""Clients that leave, read slowly or not at all: their rows are free, and nobody else notices."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from time import monotonic, sleep
from typing import Any

import pytest

from stepweave.requests.increment import Increment
from stepweave.server.observers import Exchange, Observer, Served
from stepweave.server.settings import Limits, Settings
from tests.server.in_thread import Running, running

LONG = {"prompt": "a", "max_tokens": 1000, "ignore_eos": True, "temperature": 0}


class Watcher(Observer):
    """Notes what it is told; `when` waits for it."""

    def __init__(self) -> None:
        self.begun_calls: list[Served] = []
        self.increments: list[Increment] = []
        self.answers: list[Exchange] = []
        self._changed = threading.Condition()

    def begun(self, served: Served) -> None:
        with self._changed:
            self.begun_calls.append(served)
            self._changed.notify_all()

    def settled(self, served: Served, choice: int, increment: Increment, at_s: float) -> None:
        with self._changed:
            self.increments.append(increment)
            self._changed.notify_all()

    def answered(self, exchange: Exchange) -> None:
        with self._changed:
            self.answers.append(exchange)
            self._changed.notify_all()

    def when(self, true: Callable[[], object]) -> None:
        with self._changed:
            assert self._changed.wait_for(true, timeout=120), "it did not come to that"

    def forget(self) -> None:
        with self._changed:
            self.begun_calls, self.increments, self.answers = [], [], []


class Failing(Observer):
    """Raises whatever it is told."""

    def begun(self, served: Served) -> None:
        raise RuntimeError("begun")

    def settled(self, served: Served, choice: int, increment: Increment, at_s: float) -> None:
        raise RuntimeError("settled")

    def answered(self, exchange: Exchange) -> None:
        raise RuntimeError("answered")


WATCHER = Watcher()


@pytest.fixture(scope="module")
def service() -> Iterator[Running]:
    with running(observers=(Failing(), WATCHER)) as found:
        yield found


@pytest.fixture(autouse=True)
def _watched() -> None:
    WATCHER.forget()


def sent(service: Running, body: dict[str, Any]) -> socket.socket:
    data = json.dumps(body).encode()
    wire = socket.create_connection(("127.0.0.1", service.port), 60)
    head = "POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
    wire.sendall(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
    return wire


def ended(service: Running) -> str:
    """How the one request ended, once it has."""
    WATCHER.when(lambda: WATCHER.answers)
    WATCHER.when(lambda: [each for each in WATCHER.increments if each.output is not None])
    [output] = [each.output for each in WATCHER.increments if each.output is not None]
    assert service.llm.service.running == 0
    assert len(output.token_ids) < 1000
    return output.finish_reason


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_row(service: Running, stream: bool) -> None:
    wire = sent(service, {**LONG, "stream": stream})
    WATCHER.when(lambda: WATCHER.increments)
    wire.close()
    assert ended(service) == "cancelled"
    assert WATCHER.answers[0].status == 499


HEALTH = b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("later", [True, False])
def test_a_client_that_leaves_frees_its_row_also_where_it_has_asked_for_more(
    service: Running, stream: bool, later: bool
) -> None:
    """The next request of the connection was there already, and waited for the first."""
    wire = sent(service, {**LONG, "stream": stream})
    if later:
        WATCHER.when(lambda: WATCHER.increments)
    wire.sendall(HEALTH)
    WATCHER.when(lambda: WATCHER.increments)
    wire.close()
    assert ended(service) == "cancelled"
    assert [each.status for each in WATCHER.answers] == [499]


def test_a_client_that_leaves_before_anything_came_frees_its_row(service: Running) -> None:
    wire = sent(service, LONG)
    WATCHER.when(lambda: WATCHER.begun_calls)
    wire.close()
    assert ended(service) == "cancelled"


def test_of_many_that_leave_at_once_nothing_stays(service: Running) -> None:
    wires = [sent(service, {**LONG, "stream": True}) for _ in range(40)]
    WATCHER.when(lambda: len(WATCHER.begun_calls) == 40)
    for wire in wires:
        wire.close()
    WATCHER.when(lambda: len(WATCHER.answers) == 40)
    ends = [each.output for each in WATCHER.increments if each.output is not None]
    assert {each.finish_reason for each in ends} == {"cancelled"}
    assert len(ends) == 40
    assert (service.llm.service.running, service.llm.service.queued) == (0, 0)


@pytest.mark.parametrize("stream", [True, False])
def test_what_fails_under_way_is_told_in_the_stream_or_as_the_status(
    service: Running, stream: bool
) -> None:
    """And a client after it is served."""
    wire = sent(service, {**LONG, "stream": stream})
    WATCHER.when(lambda: WATCHER.increments)
    engine = service.llm.service
    for ticket in {each for each in engine._live.values()}:
        engine.cancel(ticket, "the matcher is broken")
    WATCHER.when(lambda: WATCHER.answers)
    told = b""
    while b"[DONE]" not in told and b"}}" not in told:
        told += wire.recv(65536)
    wire.close()
    error = b'{"error": {"message": "the matcher is broken", "type": "server_error"'
    if stream:
        head, _, _ = told.partition(b"\r\n")
        assert b" 200 " in head
        assert b"data: " + error in told
    else:
        assert told.startswith(b"HTTP/1.1 500 ")
        assert error in told
    with service.client() as client:
        assert client.post("/v1/completions", json={"prompt": "a"}).status_code == 200


def test_a_client_that_reads_nothing_is_let_go() -> None:
    """What is sent fills the buffers of both ends; then the time for reading runs out."""
    options = {"stream": True, "logprobs": 32, "return_token_ids": True, "n": 16}
    data = json.dumps({**LONG, **options}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
    settings = Settings(models=("embedded",), limits=Limits(write_s=0.3))
    with (
        running(settings, observers=(WATCHER,), pipeline="async", send_bytes=1 << 16) as service,
        socket.socket() as wire,
    ):
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        wire.settimeout(60)
        wire.connect(("127.0.0.1", service.port))
        wire.sendall(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
        WATCHER.when(lambda: WATCHER.answers)
        assert WATCHER.answers[0].status == 499
        WATCHER.when(lambda: len([e for e in WATCHER.increments if e.output is not None]) == 16)
        assert service.llm.service.running == 0


def test_a_client_that_reads_slowly_is_served() -> None:
    """For several times as long as one that reads nothing has."""
    options = {"stream": True, "logprobs": 32, "return_token_ids": True, "n": 4}
    data = json.dumps({**LONG, "max_tokens": 120, **options}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
    settings = Settings(models=("embedded",), limits=Limits(write_s=0.5))
    with (
        running(settings, pipeline="async", send_bytes=1 << 16) as service,
        socket.socket() as wire,
    ):
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        wire.settimeout(60)
        wire.connect(("127.0.0.1", service.port))
        wire.sendall(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
        began, tail = monotonic(), b""
        while b"[DONE]" not in tail:
            told = wire.recv(1 << 16)
            assert told, "the connection has ended"
            tail = (tail + told)[-100:]
            if monotonic() - began < 1.5:
                sleep(0.05)


def test_headers_that_do_not_come_end_the_connection() -> None:
    settings = Settings(models=("embedded",), limits=Limits(header_s=0.3))
    with running(settings, pipeline="synchronous") as service:
        for start in (b"", b"POST /v1/completions HTTP/1.1\r\nhost: a\r\n"):
            with socket.create_connection(("127.0.0.1", service.port), 60) as wire:
                wire.sendall(start)
                try:
                    assert wire.recv(1000) == b"", "closed, without an answer"
                except ConnectionResetError:
                    continue


def rest(wire: socket.socket) -> bytes:
    """All that comes until the service ends the connection."""
    found = b""
    try:
        while part := wire.recv(65536):
            found += part
    except ConnectionResetError:
        pass
    return found


@pytest.mark.parametrize("behind", [b"\r\n", b"GET"])
def test_a_connection_that_is_idle_ends_also_where_a_byte_came_behind_its_answer(
    behind: bytes,
) -> None:
    settings = Settings(models=("embedded",), limits=Limits(header_s=0.3, idle_s=60))
    with (
        running(settings, pipeline="synchronous") as service,
        socket.create_connection(("127.0.0.1", service.port), 30) as wire,
    ):
        wire.sendall(HEALTH)
        assert b'{"status"' in wire.recv(65536)
        wire.sendall(behind)
        assert rest(wire) == b""


def test_headers_that_wait_for_an_answer_to_end_do_not_end_it() -> None:
    """Their time begins behind it."""
    settings = Settings(models=("embedded",), limits=Limits(header_s=0.1, idle_s=60))
    with (
        running(settings, observers=(WATCHER,)) as service,
        sent(service, {**LONG, "max_tokens": 120, "draft_tokens": 0, "stream": True}) as wire,
    ):
        wire.sendall(HEALTH + HEALTH[:-2])
        told = rest(wire)
    [output] = [each.output for each in WATCHER.increments if each.output is not None]
    assert output.timings is not None
    assert output.timings.total_s is not None
    assert output.timings.total_s > 0.1
    assert b"data: [DONE]" in told
    assert told.count(b'{"status"') == 1


def test_what_is_no_request_is_not_answered_within_another_answer(service: Running) -> None:
    with sent(service, {**LONG, "stream": True}) as wire:
        told = wire.recv(1 << 16)  # the answer has begun
        wire.sendall(b"\0no request\r\n\r\n")
        told += rest(wire)
    assert told.count(b"HTTP/1.1 ") == 1
    assert b"this is not an HTTP request" not in told
    assert ended(service) == "cancelled"


def test_observers_are_told_of_each_request(service: Running) -> None:
    """Also where another of them fails."""
    with service.client() as client:
        body = {"prompt": ["a", "b"], "max_tokens": 4, "n": 2, "temperature": 0}
        answer = client.post("/v1/completions", json=body, headers={"x-request-id": "mine"})
        assert answer.status_code == 200
        client.get("/nothing")
    WATCHER.when(lambda: len(WATCHER.answers) == 2)
    [served] = WATCHER.begun_calls
    assert (served.id, served.endpoint, served.choices, served.streams) == (
        "mine",
        "completions",
        4,
        False,
    )
    assert served.prompt_tokens == answer.json()["usage"]["prompt_tokens"]
    tokens = sum(len(each.token_ids) for each in WATCHER.increments)
    assert tokens == answer.json()["usage"]["completion_tokens"]
    outputs = [each.output for each in WATCHER.increments if each.output is not None]
    assert len(outputs) == 4
    assert all(each.timings is not None and each.timings.total_s for each in outputs)
    assert [each.status for each in WATCHER.answers] == [200, 404]
