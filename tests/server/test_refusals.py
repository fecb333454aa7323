"""Every wrong request is answered in one form, with its status, its key, and what to do."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from time import sleep
from typing import Any

import httpx
import pytest

from stepweave.server.protocol.answers import ErrorAnswer
from stepweave.server.settings import Limits, Settings
from tests.server.in_thread import Running, running
from tests.server.leftovers import until

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]
LIMITS = Limits(body_bytes=4096, header_bytes=4096, headers=30, completions=8)


@pytest.fixture(scope="module")
def service() -> Iterator[Running]:
    settings = Settings(models=("embedded", "other"), api_keys=("key one", "key-2"), limits=LIMITS)
    changes = {
        "scheduler.max_queue": 3,
        "scheduler.max_rows": 2,
        "nodes.bitmask.compile_limit_s": None,  # no process that tries them: it takes seconds
    }
    with running(settings, changes) as found:
        yield found


@pytest.fixture(scope="module")
def client(service: Running) -> Iterator[httpx.Client]:
    with service.client(headers={"authorization": "Bearer key-2"}) as found:
        yield found


def refused(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    return ErrorAnswer.model_validate_json(answer.content, strict=True).error.model_dump()


WRONG: list[tuple[str, dict[str, Any], str | None, str]] = [
    (CHAT, {"messages": HELLO, "temprature": 1}, "temprature", "did you mean 'temperature'?"),
    (
        CHAT,
        {"messages": [{**HELLO[0], "tool_calls": []}]},
        "messages",
        "messages[0]: the key 'tool_calls' belongs to another type",
    ),
    (CHAT, {"messages": HELLO, "guided_json": {}}, "guided_json", 'structured_outputs: {"json"'),
    (CHAT, {"messages": HELLO, "guided_regex": "a"}, "guided_regex", '{"regex": pattern}'),
    (CHAT, {"messages": HELLO, "functions": [{}]}, "functions", "use tools"),
    (CHAT, {"messages": HELLO, "prediction": {}}, "prediction", "drafts come from"),
    (CHAT, {"messages": HELLO, "moderation": {}}, "moderation", "judges no text"),
    (CHAT, {"messages": HELLO, "prompt_cache_options": {}}, "prompt_cache_options", "by itself"),
    (CHAT, {"messages": HELLO, "modalities": ["audio"]}, "modalities", "answers are text"),
    (CHAT, {"messages": HELLO, "num_beams": 4}, "num_beams", "beam search chooses among whole"),
    (CHAT, {"messages": HELLO, "n": 129}, "n", "n must be at most 128, not 129"),
    (CHAT, {"messages": HELLO, "n": 9}, "n", "more than 8"),
    (CHAT, {"messages": HELLO, "temperature": "hot"}, "temperature", "must be a number"),
    (CHAT, {"messages": HELLO, "stop": ["a"] * 17}, "stop", "more than 16 entries"),
    (CHAT, {"messages": HELLO, "top_logprobs": 3}, "top_logprobs", "top_logprobs needs"),
    (CHAT, {"messages": HELLO, "logprobs": True, "top_logprobs": 33}, "top_logprobs", "at most 32"),
    (CHAT, {"messages": HELLO, "tool_choice": "auto"}, "tool_choice", "tool_choice needs tools"),
    (CHAT, {"messages": HELLO, "stream_options": {}}, "stream_options", "set stream to true"),
    (CHAT, {"messages": HELLO, "max_tokens": 3, "max_completion_tokens": 4}, "max_tokens", "one"),
    (CHAT, {"messages": HELLO, "min_tokens": 9, "max_tokens": 3}, "min_tokens", "at most"),
    (CHAT, {"messages": HELLO, "logit_bias": {"99999": 1}}, "logit_bias", "outside the model's"),
    (CHAT, {"messages": []}, "messages", "needs at least 1"),
    (CHAT, {}, "messages", "the body lacks the key 'messages'"),
    (CHAT, {"messages": [{"role": "king", "content": "a"}]}, "messages", "messages[0].role"),
    (CHAT, {"messages": [{"role": "user"}]}, "messages", "messages[0] lacks the key 'content'"),
    (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages",
        "of type 'image_url'",
    ),
    (
        CHAT,
        {"messages": HELLO, "structured_outputs": {"regex": "("}},
        "structured_outputs",
        "regex",
    ),
    (
        CHAT,
        {"messages": HELLO, "structured_outputs": {"regex": "a", "choice": ["b"]}},
        "structured_outputs",
        "exactly one",
    ),
    (
        CHAT,
        {
            "messages": HELLO,
            "structured_outputs": {"regex": "a"},
            "response_format": {"type": "json_object"},
        },
        "response_format",
        "different forms",
    ),
    (
        "/v1/completions",
        {"prompt": "a", "echo": True, "logprobs": 1, "stream": True},
        "echo",
        "echo with logprobs is told in one answer: leave out stream",
    ),
    ("/v1/completions", {"prompt": "a", "max_tokens": 0}, "max_tokens", "without echo the answer"),
    ("/v1/completions", {"prompt": "a", "best_of": 2}, "best_of", "use n"),
    (
        "/v1/completions",
        {"prompt": "a", "use_beam_search": True},
        "use_beam_search",
        "take the best",
    ),
    ("/v1/completions", {"prompt": "a", "length_penalty": 2}, "length_penalty", "take the best"),
    ("/v1/completions", {"prompt": "a", "suffix": "b"}, "suffix", "at its end"),
    ("/v1/completions", {"prompt": []}, "prompt", "0 prompts"),
    ("/v1/completions", {"prompt": [1, "a"]}, "prompt", "prompt 1 of 2 must be"),
    ("/v1/completions", {"prompt": [[1], [2.5]]}, "prompt", "prompt 2 of 2 must be"),
    ("/v1/completions", {"prompt": [99999]}, "prompt", "outside the model's vocabulary"),
    ("/v1/completions", {"prompt": [1] * 1024}, "prompt", "context of 1024"),
    ("/v1/completions", {"prompt": ["a"] * 129}, "prompt", "129 prompts"),
    ("/v1/completions", {"prompt": "a", "prompt_logprobs": 1}, "prompt_logprobs", "no place"),
    ("/tokenize", {"prompt": "a", "messages": HELLO}, None, "either prompt or messages"),
    ("/detokenize", {"tokens": [-1]}, "tokens", "at least 0"),
    ("/detokenize", {"tokens": [1 << 20]}, "tokens", "tokens[0] is 1048576"),
]


@pytest.mark.parametrize(("path", "body", "param", "said"), WRONG)
def test_what_is_wrong_is_named_with_what_to_do(
    client: httpx.Client, path: str, body: dict[str, Any], param: str | None, said: str
) -> None:
    error = refused(client.post(path, json=body), 400)
    assert said in error["message"]
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert param is None or f"the body {param}" not in error["message"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[1]",
        b'"text"',
        b"\xff\xfe",
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"messages": ' + b"[" * 1500 + b"]" * 1500 + b"}",
        b'{"messages": [{"role": "user", "content": "a"}], "temperature": NaN}',
        b'{"messages": [{"role": "user", "content": "a"}], "seed": ' + b"9" * 2000 + b"}",
    ],
)
def test_a_body_that_is_no_request_is_refused(client: httpx.Client, body: bytes) -> None:
    refused(client.post(CHAT, content=body, headers={"content-type": "application/json"}), 400)


def test_keys_without_effect_may_be_there(client: httpx.Client) -> None:
    body = {
        "messages": HELLO,
        "max_tokens": 1,
        "guided_json": None,
        "store": False,
        "service_tier": "auto",
        "modalities": ["text"],
        "best_of": 1,
        "num_beams": 1,
        "use_beam_search": False,
        "functions": None,
        "tools": [],
    }
    assert client.post(CHAT, json=body).status_code == 200


def test_what_is_too_large_is_refused_before_it_is_read(service: Running) -> None:
    head = (
        f"POST {CHAT} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer key-2\r\n"
        "content-type: application/json\r\n"
    ).encode()
    with socket.create_connection(("127.0.0.1", service.port), 30) as wire:
        wire.sendall(head + b"content-length: 5000\r\n\r\n{")
        assert b"HTTP/1.1 413 " in _all(wire), "by what it says its length is"
    with socket.create_connection(("127.0.0.1", service.port), 30) as wire:
        chunk = b"1000\r\n" + b"a" * 4096 + b"\r\n"
        wire.sendall(head + b"transfer-encoding: chunked\r\n\r\n" + chunk + chunk)
        assert b"HTTP/1.1 413 " in _all(wire), "by how much has come"


def test_a_body_that_does_not_come_is_408() -> None:
    settings = Settings(models=("embedded",), limits=Limits(body_s=0.3))
    with (
        running(settings, pipeline="synchronous") as service,
        socket.create_connection(("127.0.0.1", service.port), 60) as wire,
    ):
        wire.sendall(
            b"POST /tokenize HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
            b"content-length: 100\r\n\r\n{"
        )
        assert b"HTTP/1.1 408 " in _all(wire)


def test_headers_without_end_are_refused(service: Running) -> None:
    with socket.create_connection(("127.0.0.1", service.port), 30) as wire:
        wire.sendall(b"GET /health HTTP/1.1\r\n")
        endless = b"".join(b"a: " + b"b" * 1000 for _ in range(10_000))
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            wire.sendall(endless)
    with service.client() as client:
        refused(client.get("/health", headers={f"h{each}": "a" for each in range(40)}), 431)
        refused(client.get("/health", headers={"a": "b" * 5000}), 431)


@pytest.mark.parametrize("line", [b"a: " + b"b" * 1000 + b"\r\n", b"b" * 1000])
def test_headers_behind_the_body_have_the_same_limit(service: Running, line: bytes) -> None:
    """They end no request that was answered, so nothing else ends them; and need no key."""
    with socket.create_connection(("127.0.0.1", service.port), 30) as wire:
        wire.sendall(b"GET /health HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\na: ")
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            wire.sendall(line * 10_000)


def test_few_headers_behind_the_body_change_nothing(service: Running) -> None:
    with socket.create_connection(("127.0.0.1", service.port), 30) as wire:
        wire.sendall(
            b"GET /v1/models HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n"
            b"connection: close\r\n\r\n0\r\nauthorization: Bearer key-2\r\n\r\n"
        )
        assert b"HTTP/1.1 401 " in _all(wire)


def test_a_request_that_offers_http_2_is_served_as_it_is(service: Running) -> None:
    """Java's client offers it with each request; its body was taken for the other protocol."""
    body = b'{"prompt": "a"}'
    head = (
        "POST /tokenize HTTP/1.1\r\nhost: a\r\nauthorization: Bearer key-2\r\n"
        "connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    ).encode()
    whole = head + body
    ending = whole.replace(b"Upgrade, ", b"Upgrade, close, ")
    for text, parts in ((ending, 1), (ending, 2), (ending, 50), (whole + ending, 1)):
        size = -(-len(text) // parts)
        with socket.create_connection(("127.0.0.1", service.port), 30) as wire:
            for start in range(0, len(text), size):
                wire.sendall(text[start : start + size])
                sleep(0.001)
            told = _all(wire)
        assert told.count(b"HTTP/1.1 200 OK") == (1 if text == ending else 2), told
    with socket.create_connection(("127.0.0.1", service.port), 30) as wire:
        wire.sendall(whole * 1200)  # at once, and each read again
        assert wire.recv(15) == b"HTTP/1.1 200 OK"


def test_what_is_no_http_is_refused_in_the_same_form(service: Running) -> None:
    with socket.create_connection(("127.0.0.1", service.port), 30) as wire:
        wire.sendall(b"\x16\x03\x01\x02\x00garbage\r\n\r\n")
        head, _, body = _all(wire).partition(b"\r\n\r\n")
    assert b" 400 " in head
    ErrorAnswer.model_validate_json(body)


def test_paths_methods_and_types_are_refused_in_the_same_form(client: httpx.Client) -> None:
    assert "there is no /v1/nothing" in refused(client.get("/v1/nothing"), 404)["message"]
    answer = client.get(CHAT)
    refused(answer, 405)
    assert answer.headers["allow"] == "POST"
    assert "application/json" in refused(client.post(CHAT, content=b"{}"), 415)["message"]
    form = {"content-type": "application/x-www-form-urlencoded"}
    refused(client.post(CHAT, content=b"{}", headers=form), 415)
    packed = {"content-type": "application/json", "content-encoding": "gzip"}
    refused(client.post(CHAT, content=b"{}", headers=packed), 415)


def test_a_model_that_is_not_served_is_404(client: httpx.Client) -> None:
    for answer in (
        client.post(CHAT, json={"messages": HELLO, "model": "gpt"}),
        client.post("/v1/completions", json={"prompt": "a", "model": "gpt"}),
        client.post("/tokenize", json={"prompt": "a", "model": "gpt"}),
        client.get("/v1/models/gpt"),
    ):
        error = refused(answer, 404)
        assert error["code"] == "model_not_found"
        assert "served here: embedded, other" in error["message"]
    listed = client.get("/v1/models").json()["data"]
    assert [each["id"] for each in listed] == ["embedded", "other"]
    assert client.get("/v1/models/other").json() == listed[1]


@pytest.mark.parametrize("given", [None, "Bearer wrong", "Bearer", "Basic key-2", "key-2"])
def test_every_route_but_the_probes_and_the_page_needs_a_key(
    service: Running, given: str | None
) -> None:
    headers = {} if given is None else {"authorization": given}
    paths = service.paths
    assert {CHAT, "/v1/completions", "/v1/models", "/tokenize", "/version"} <= paths
    with service.client(headers=headers) as client:
        for path in sorted(paths - {"/health", "/ready", "/"}):
            for method in ("GET", "POST"):
                answer = client.request(method, path)
                assert refused(answer, 401)["code"] == "invalid_api_key"
                assert answer.headers["www-authenticate"] == "Bearer"
        assert client.get("/health").status_code == 200
        assert client.get("/ready").status_code == 200
        assert client.get("/").status_code == 200


def test_any_of_several_keys_opens(service: Running) -> None:
    for key in ("key one", "key-2"):
        with service.client(headers={"authorization": f"bearer {key}"}) as client:
            assert client.get("/v1/models").status_code == 200


@pytest.mark.parametrize(
    ("given", "echoed"),
    [("abc-1.2:3_4", True), ("a" * 128, True), ("a" * 129, False), ("a b", False), ("é", False)],
)
def test_a_request_id_is_echoed_if_it_is_a_name(service: Running, given: str, echoed: bool) -> None:
    with service.client() as client:
        answer = client.get("/health", headers=[(b"x-request-id", given.encode())])
    found = answer.headers["x-request-id"]
    assert (found == given) is echoed
    assert len(found) <= 128


def test_a_full_queue_is_429_and_says_when_to_come_again(service: Running) -> None:
    """Two rows and a queue of three: of twelve that come at once, some find it full."""
    slow = {"prompt": "a", "max_tokens": 90, "ignore_eos": True, "temperature": 0}

    async def ask(client: httpx.AsyncClient) -> httpx.Response:
        return await client.post("/v1/completions", json=slow)

    async def ask_all() -> list[httpx.Response]:
        auth = {"authorization": "Bearer key-2"}
        async with httpx.AsyncClient(
            base_url=service.url, timeout=120, headers=auth, trust_env=False
        ) as client:
            return await asyncio.gather(*(ask(client) for _ in range(12)))

    answers = asyncio.run(ask_all())
    full = [each for each in answers if each.status_code == 429]
    assert len(full) >= 1
    assert len([each for each in answers if each.status_code == 200]) == 12 - len(full)
    for answer in full:
        assert int(answer.headers["retry-after"]) >= 1
        error = refused(answer, 429)
        assert (error["type"], error["code"]) == ("rate_limit_error", "queue_full")


def test_more_prompts_than_the_service_holds_are_not_to_be_tried_again(
    service: Running, client: httpx.Client
) -> None:
    """Not even where nobody else asks for anything; fewer are served."""
    ask = {"max_tokens": 40, "temperature": 0, "ignore_eos": True}
    until(lambda: not service.llm.service.unended, "nothing is left of others")
    answer = client.post("/v1/completions", json={**ask, "prompt": ["a"] * 8})
    error = refused(answer, 400)
    assert error["param"] == "prompt"
    assert "8 prompts, but 5 may run and wait at once" in error["message"]
    until(lambda: not service.llm.service.unended, "those that were taken in have ended")
    assert client.post("/v1/completions", json={**ask, "prompt": ["a"] * 3}).status_code == 200


def test_what_drains_takes_nothing_in(service: Running, client: httpx.Client) -> None:
    service.engine.draining = True
    try:
        answer = client.post(CHAT, json={"messages": HELLO})
        assert refused(answer, 503)["type"] == "service_unavailable_error"
        assert answer.headers["retry-after"]
        assert client.get("/ready").status_code == 503
        assert client.get("/health").status_code == 200
    finally:
        service.engine.draining = False
    assert client.get("/ready").status_code == 200


def _all(wire: socket.socket) -> bytes:
    found = b""
    while part := wire.recv(65536):
        found += part
    return found


NOTHING = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 5, "maximum": 3}},
    "required": ["a"],
}
SAID = [{"role": "user", "content": "a"}]
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "structured_outputs": ("chat/completions", {"structured_outputs": {"json": NOTHING}}),
    "response_format": (
        "chat/completions",
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": NOTHING},
            }
        },
    ),
    "tools": (
        "chat/completions",
        {
            "tools": [{"type": "function", "function": {"name": "f", "parameters": NOTHING}}],
            "tool_choice": "required",
        },
    ),
    "text": (
        "responses",
        {"text": {"format": {"type": "json_schema", "name": "a", "schema": NOTHING}}},
    ),
}


@pytest.mark.parametrize("key", FORMS)
def test_a_schema_that_nothing_satisfies_is_blamed_on_the_key_that_has_it(
    key: str, client: httpx.Client
) -> None:
    path, asks = FORMS[key]
    prompt = {"input": "a"} if path == "responses" else {"messages": SAID}
    answer = client.post(f"/v1/{path}", json={"model": "embedded", **prompt, **asks})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("invalid_grammar", key)
    assert "no value can satisfy it" in error["message"]
