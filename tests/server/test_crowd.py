"""Clients as they are: they leave at any moment, send anything, ask for all there is, in crowds."""

from __future__ import annotations

import json
import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from stepweave.requests.increment import Increment
from stepweave.server.observers import Exchange, Observer, Served
from stepweave.server.settings import Settings
from stepweave.structured.backend import CompiledGrammar
from tests.server.in_thread import Running, running
from tests.server.leftovers import Held, nothing_left_in, until

TEXT = "/v1/completions"
LONG = {"prompt": "a", "max_tokens": 900, "ignore_eos": True, "temperature": 0, "stream": True}
STORY = {"prompt": "Write a short story.", "max_tokens": 80, "temperature": 0, "ignore_eos": True}


class Ends(Observer):
    """Counts what was begun and how it ended."""

    def __init__(self) -> None:
        self.begun_calls = 0
        self.tokens = 0
        self.ends: list[str] = []
        self.statuses: list[int] = []

    def begun(self, served: Served) -> None:
        self.begun_calls += 1

    def settled(self, served: Served, choice: int, increment: Increment, at_s: float) -> None:
        self.tokens += len(increment.token_ids)
        if increment.output is not None:
            self.ends.append(increment.output.finish_reason)

    def answered(self, exchange: Exchange) -> None:
        self.statuses.append(exchange.status)


ENDS = Ends()


@pytest.fixture(scope="module")
def service() -> Iterator[Running]:
    settings = Settings(models=("embedded",))
    changes = {"scheduler.max_rows": 4, "nodes.bitmask.compile_limit_s": None}
    with running(settings, changes, observers=[ENDS]) as found:
        yield found


@pytest.fixture(autouse=True)
def _nothing_left(service: Running) -> Iterator[None]:
    """After each of these the process holds what it held before."""
    with service.client() as client:
        client.post(TEXT, json={**STORY, "max_tokens": 2})
    nothing_left_in(service.llm.service)
    ENDS.__init__()  # type: ignore[misc]
    before = Held.now()
    yield
    nothing_left_in(service.llm.service)
    until(lambda: not Held.now().exceeds(before), "threads and files are those of before")
    with service.client() as client:
        assert client.get("/health").status_code == 200


def sent(service: Running, body: dict[str, Any], *, cut: int | None = None) -> socket.socket:
    """A connection on which a request was sent, or its first `cut` bytes."""
    data = json.dumps(body).encode()
    wire = socket.create_connection(("127.0.0.1", service.port), 60)
    head = f"POST {TEXT} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
    wire.sendall((f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)[:cut])
    return wire


def leave(wire: socket.socket, *, abruptly: bool) -> None:
    """End a connection; abruptly: with a reset."""
    if abruptly:
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wire.close()


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("count", "abruptly"),
    [(40, False), (200, True), pytest.param(1000, True, marks=pytest.mark.nightly)],
)
def test_a_thousand_clients_that_leave_at_once_leave_nothing(
    service: Running, count: int, abruptly: bool
) -> None:
    """They have been taken in, each with its stream; somebody who stays gets all of his."""
    with service.client() as client:
        alone = client.post(TEXT, json=STORY).json()["choices"][0]["text"]
    begun = ENDS.begun_calls
    wires = [sent(service, LONG) for _ in range(count)]
    found: list[str] = []

    def stay() -> None:
        with service.client() as client:
            found.append(client.post(TEXT, json=STORY).json()["choices"][0]["text"])

    staying = threading.Thread(target=stay)
    until(lambda: ENDS.begun_calls - begun == count, "all of them are taken in")
    staying.start()
    for wire in wires:
        leave(wire, abruptly=abruptly)
    until(lambda: ENDS.ends.count("cancelled") == count, "each of them is cancelled")
    staying.join()
    assert found == [alone]
    assert ENDS.statuses.count(499) == count


class Gate:
    """Holds whoever comes by, until it is opened."""

    def __init__(self) -> None:
        self.reached, self.open = threading.Event(), threading.Event()

    def before(self, work: Callable[..., Any]) -> Callable[..., Any]:
        def held(*given: Any, **more: Any) -> Any:
            self.reached.set()
            assert self.open.wait(120)
            return work(*given, **more)

        return held


@pytest.mark.sampled(2)
@pytest.mark.parametrize("cut", [0, 1, 40, 110, -1])
def test_leaving_before_all_is_said_begins_nothing(service: Running, cut: int) -> None:
    leave(sent(service, LONG, cut=cut), abruptly=cut % 2 == 1)
    with service.client() as client:
        assert client.post(TEXT, json={**STORY, "max_tokens": 3}).status_code == 200
    assert ENDS.begun_calls == 1


@pytest.mark.parametrize("where", ["read", "requests"])
def test_leaving_while_the_prompt_is_read_ends_it(
    service: Running, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, intake = Gate(), service.llm.service.intake
    part = intake.prompts if where == "read" else intake
    monkeypatch.setattr(part, where, gate.before(getattr(part, where)))
    wire = sent(service, LONG)
    assert gate.reached.wait(60)
    wire.close()
    gate.open.set()
    until(lambda: ENDS.statuses, "it is over")


def test_leaving_while_a_grammar_compiles_ends_it(
    service: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    never: Future[CompiledGrammar] = Future()
    monkeypatch.setattr(service.llm.service.intake, "grammar", lambda *_: never)
    wire = sent(service, {**LONG, "structured_outputs": {"regex": "a"}})
    until(lambda: service.llm.service._uncompiled, "it waits for its grammar")
    wire.close()
    until(lambda: ENDS.ends == ["cancelled"], "it is cancelled")


def test_leaving_in_the_queue_while_others_run_ends_it(service: Running) -> None:
    running_ones = [sent(service, LONG) for _ in range(4)]
    until(lambda: service.llm.service.running == 4, "every row is taken")
    waiting = sent(service, LONG)
    until(lambda: service.llm.service.queued == 1, "one waits")
    waiting.close()
    until(lambda: ENDS.ends == ["cancelled"], "it is cancelled")
    assert service.llm.service.running == 4
    for wire in running_ones:
        wire.close()


def test_leaving_during_the_prefill_and_while_it_decodes_ends_it(service: Running) -> None:
    wire = sent(service, {**LONG, "prompt": [5] * 900, "max_tokens": 100})
    until(lambda: service.llm.service.running, "its prompt is computed")
    wire.close()
    until(lambda: ENDS.ends == ["cancelled"], "it is cancelled")
    wire = sent(service, LONG)
    until(lambda: ENDS.tokens, "it decodes")
    wire.close()
    until(lambda: ENDS.ends == ["cancelled"] * 2, "it is cancelled")


def test_leaving_when_all_has_been_written_changes_nothing(service: Running) -> None:
    wire = sent(service, {**LONG, "max_tokens": 3})
    until(lambda: ENDS.ends, "it has ended")
    wire.close()
    until(lambda: ENDS.statuses, "it was answered")
    assert ENDS.ends == ["length"]


def test_a_prompt_of_the_largest_size_changes_no_tokens_of_those_who_decode(
    service: Running,
) -> None:
    largest = {"prompt": [7] * 1022, "max_tokens": 1, "temperature": 0}
    with service.client() as client, service.client() as other:
        alone = client.post(TEXT, json=STORY).json()["choices"][0]
        found: list[Any] = []
        decoding = threading.Thread(
            target=lambda: found.append(other.post(TEXT, json=STORY).json()["choices"][0])
        )
        before = ENDS.tokens
        decoding.start()
        until(lambda: ENDS.tokens > before, "it decodes")
        answers = [client.post(TEXT, json=largest) for _ in range(2)]
        assert [each.status_code for each in answers] == [200, 200]
        decoding.join()
        assert found == [alone]
        one_more = client.post(TEXT, json={**largest, "prompt": [7] * 1024})
        assert one_more.json()["error"]["code"] == "context_length_exceeded"


WHOLE = (
    f"POST {TEXT} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
    'content-length: 34\r\n\r\n{"prompt": "a", "max_tokens":   2 }'
).encode()


def garbage(draw: random.Random) -> bytes:
    """Bytes that are no request, or nearly one."""
    kind = draw.randrange(6)
    if kind == 0:
        return draw.randbytes(draw.randrange(1, 4000))
    if kind == 1:
        return WHOLE[: draw.randrange(1, len(WHOLE))]
    data = bytearray(WHOLE)
    if kind == 2:
        for _ in range(draw.randrange(1, 6)):
            data[draw.randrange(len(data))] = draw.randrange(256)
    elif kind == 3:
        at = draw.randrange(len(data))
        data[at:at] = draw.randbytes(draw.randrange(1, 50))
    elif kind == 4:
        return bytes(data).replace(b"content-length: 34", b"transfer-encoding: chunked") + b"zz\r\n"
    else:
        return bytes(data) * draw.randrange(2, 5)
    return bytes(data)


def test_garbage_is_answered_or_ended_and_nobody_else_notices(service: Running) -> None:
    draw = random.Random(5)
    for _ in range(60):
        with socket.create_connection(("127.0.0.1", service.port), 60) as wire:
            wire.sendall(garbage(draw))
            if draw.random() < 0.5:
                wire.shutdown(socket.SHUT_WR)
                answer = b""
                while part := wire.recv(65536):
                    answer += part
                assert not answer or answer.startswith(b"HTTP/1.1 ")
                assert b" 500 " not in answer.partition(b"\r\n")[0]
    with service.client() as client:
        assert client.post(TEXT, json={**STORY, "max_tokens": 3}).status_code == 200
    assert 500 not in ENDS.statuses
