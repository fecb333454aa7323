"""What the service tells of itself."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import pytest
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from stepweave.server.gate import Gate
from stepweave.server.protocol.answers import (
    DetokenizeAnswer,
    ModelList,
    StateAnswer,
    TokenizeAnswer,
    VersionAnswer,
)
from stepweave.server.settings import Settings
from tests.server.in_thread import Running

STORY = "Write a short story about a fox named Ida."


def test_its_model_and_version(service: Running) -> None:
    with service.client() as client:
        ModelList.model_validate_json(client.get("/v1/models").content)
        told = VersionAnswer.model_validate_json(client.get("/version").content)
        assert told.version == version("stepweave")
        assert StateAnswer.model_validate_json(client.get("/ready").content).status == "ok"


@pytest.mark.parametrize("path", ["/health", "/ready", "/version", "/v1/models"])
def test_the_status_alone_may_be_asked_for(path: str, service: Running) -> None:
    with service.client() as client:
        answer, whole = client.head(path), client.get(path)
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-type"] == whole.headers["content-type"]


def test_tokens_of_texts_and_conversations(service: Running) -> None:
    tokenizer = service.llm.tokenizer
    with service.client() as client:

        def tokenized(**body: Any) -> TokenizeAnswer:
            answer = client.post("/tokenize", json=body)
            assert answer.status_code == 200, answer.text
            return TokenizeAnswer.model_validate_json(answer.content)

        told = tokenized(prompt=STORY, return_token_strs=True)
        assert told.tokens == tokenizer(STORY)["input_ids"]
        assert "".join(told.token_strs or ()) == tokenizer.decode(told.tokens)
        assert (told.count, told.max_model_len) == (len(told.tokens), 1024)
        bare = tokenized(prompt=STORY, add_special_tokens=False)
        assert bare.tokens == told.tokens[1:]
        chat = tokenized(messages=[{"role": "user", "content": STORY}])
        back = client.post("/detokenize", json={"tokens": chat.tokens})
        text = DetokenizeAnswer.model_validate_json(back.content).prompt
        assert text == f"<|bos|><|user|>{STORY}<|assistant|>"
        messages = [{"role": "user", "content": STORY}]
        spent = client.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 1})
        assert spent.json()["usage"]["prompt_tokens"] == chat.count


def test_what_it_does_not_serve_is_refused_by_name(service: Running) -> None:
    with service.client() as client:
        answer = client.post("/v1/embeddings", json={"input": "hello"})
        assert answer.status_code == 404
        assert "the model generates text" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("host", "served"),
    [
        ("localhost", True),
        ("LOCALHOST:8000", True),
        ("127.0.0.1:1", True),
        ("[::1]:8000", True),
        ("evil.example", False),
        ("localhost.evil.example:8000", False),
        ("[::2]", False),
        ("", False),
    ],
)
def test_a_page_of_another_site_cannot_take_this_host_for_its_own(host: str, served: bool) -> None:
    """DNS rebinding: the browser calls the address of this machine by the name of that site."""
    reached: list[int] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await Response(b"", 200)(scope, receive, send)

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            reached.append(message["status"])

    names = frozenset({"localhost", "127.0.0.1", "::1"})
    gate = Gate(app, Settings(models=("embedded",), hosts=names), ())
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/v1/models",
        "query_string": b"",
        "headers": [(b"host", host.encode())] if host else [],
        "state": {},
    }
    asyncio.run(gate(scope, receive, send))
    assert reached == [200 if served else 421]


def test_the_document_of_the_api_names_every_route_and_model(service: Running) -> None:
    with service.client() as client:
        document = client.get("/openapi.json").json()
    schemas = document["components"]["schemas"]
    for path, methods in document["paths"].items():
        for method, route in methods.items():
            assert route["responses"]["200"], (path, method)
            text = str(route)
            for name in _references(route):
                assert name in schemas, f"{path}: {name}"
            assert ("requestBody" in route) == (method == "post"), text
    assert all(name in schemas for schema in schemas.values() for name in _references(schema))
    chat = schemas["ChatRequest"]
    assert chat["additionalProperties"] is False
    assert "prompt_logprobs" not in chat["properties"]
    assert all("description" in each for each in chat["properties"].values())


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "$ref":
                yield inner.rsplit("/", 1)[-1]
            else:
                yield from _references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _references(inner)


def test_an_engine_whose_runs_all_fail_is_dead_until_one_does_not(
    service: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no device")

    body = {"prompt": STORY, "max_tokens": 2, "temperature": 0}
    with service.client() as client:
        with monkeypatch.context() as patched:
            patched.setattr(service.llm.engine, "run", broken)
            service.llm.service.table.leave()  # the run that is on ends, and another begins
            statuses = []
            while client.get("/health").status_code == 200:
                answer = client.post("/v1/completions", json=body)
                statuses.append(answer.status_code)
                assert "no device" in answer.json()["error"]["message"]
                assert len(statuses) < 10
            assert set(statuses) == {500}
            assert client.get("/ready").status_code == 503
        assert client.post("/v1/completions", json=body).status_code == 200
        assert client.get("/health").status_code == 200
