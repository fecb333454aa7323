"""The client that everybody uses, unchanged, against the service as everybody starts it."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from time import sleep
from typing import Any

import httpx
import openai
import pytest
from pydantic import BaseModel

from tests.server.collector import Collected, collecting
from tests.server.in_process import Process, serving
from tests.server.leftovers import until

STORY = "Write a short story about a fox named Ida."
MESSAGES: Any = [{"role": "user", "content": STORY}]
ASKED: Any = [
    {
        "role": "user",
        "content": "Extract name, age, job and city as JSON: Max Tanaka is a 61-year-old lawyer "
        "from Warsaw.",
    }
]


class Person(BaseModel):
    """Who a sentence is about."""

    name: str
    age: int
    job: str
    city: str


MAX = Person(name="Max Tanaka", age=61, job="lawyer", city="Warsaw")


@pytest.fixture(scope="module")
def collected() -> Iterator[Collected]:
    with collecting() as found:
        yield found


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, collected: Collected) -> Iterator[Process]:
    folder = tmp_path_factory.mktemp("service")
    more = ("--set", "scheduler.max_queue=64", "--otlp-traces-endpoint", collected.endpoint)
    with serving(folder, "quickstart", *more, STEPWEAVE_API_KEY="one two") as found:
        yield found


@pytest.fixture(scope="module")
def client(service: Process) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{service.url}/v1", api_key="two", max_retries=0) as found:
        yield found


def test_what_compiles_grammars_is_started_before_anybody_asks_for_one(service: Process) -> None:
    until(lambda: len(compilers_of(service.child.pid)) == 2, "a process for each library runs")


def compilers_of(pid: int) -> list[str]:
    """The children of a process that compile grammars."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            command = (folder / "cmdline").read_text()
            if int(parent) == pid and "compile_worker" in command:
                found.append(command)
    return found


def test_a_chat_whole_and_streamed(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(
        model="embedded", messages=MESSAGES, temperature=0, max_tokens=16, seed=1
    )
    text = whole.choices[0].message.content
    assert text
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 16
    assert whole.usage.completion_tokens_details is not None
    assert whole.usage.completion_tokens_details.accepted_prediction_tokens

    chunks = list(
        client.chat.completions.create(
            model="embedded",
            messages=MESSAGES,
            temperature=0,
            max_completion_tokens=16,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    told = [each.choices[0].delta.content or "" for each in chunks if each.choices]
    assert "".join(told) == text
    assert len([each for each in told if each]) > 1
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 16
    assert {each.id for each in chunks} == {chunks[0].id}


def test_a_text_completion(client: openai.OpenAI) -> None:
    found = client.completions.create(
        model="embedded", prompt=[STORY, "hello"], max_tokens=4, n=2, temperature=0, logprobs=1
    )
    assert [each.index for each in found.choices] == [0, 1, 2, 3]
    assert found.choices[0].text == found.choices[1].text
    assert found.choices[0].logprobs is not None
    assert len(found.choices[0].logprobs.tokens or ()) == 4


def test_several_chats_of_one_event_loop(service: Process) -> None:
    async def ask(client: openai.AsyncOpenAI, tokens: int) -> str:
        text = ""
        async for chunk in await client.chat.completions.create(
            model="embedded", messages=MESSAGES, temperature=0, max_tokens=tokens, stream=True
        ):
            text += chunk.choices[0].delta.content or ""
        return text

    async def ask_all() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{service.url}/v1", api_key="one") as client:
            return await asyncio.gather(*(ask(client, 4 + index) for index in range(8)))

    texts = asyncio.run(ask_all())
    assert all(longer.startswith(text) for text, longer in pairwise(texts))
    assert len(set(texts)) == 8


def test_a_pydantic_model_is_parsed(client: openai.OpenAI) -> None:
    whole = client.beta.chat.completions.parse(
        model="embedded", messages=ASKED, response_format=Person, temperature=0
    )
    assert whole.choices[0].message.parsed == MAX
    with client.beta.chat.completions.stream(
        model="embedded", messages=ASKED, response_format=Person, temperature=0
    ) as stream:
        kinds = {event.type for event in stream}
        assert stream.get_final_completion().choices[0].message.parsed == MAX
    assert {"content.delta", "content.done", "chunk"} <= kinds


def test_logprobs(client: openai.OpenAI) -> None:
    found = client.chat.completions.create(
        model="embedded",
        messages=MESSAGES,
        temperature=0,
        max_tokens=4,
        logprobs=True,
        top_logprobs=2,
    )
    assert found.choices[0].logprobs is not None
    content = found.choices[0].logprobs.content or []
    assert len(content) == 4
    assert all(each.logprob == each.top_logprobs[0].logprob for each in content)
    spelled = b"".join(bytes(each.bytes or ()) for each in content)
    assert spelled.decode() == found.choices[0].message.content


def test_what_is_ours_goes_through_extra_body(client: openai.OpenAI) -> None:
    found = client.chat.completions.create(
        model="embedded",
        messages=MESSAGES,
        temperature=0,
        max_tokens=12,
        extra_body={
            "structured_outputs": {"choice": ["yes", "no"]},
            "draft_tokens": 0,
            "top_k": 5,
            "min_p": 0.1,
            "repetition_penalty": 1.1,
            "return_token_ids": True,
        },
    )
    assert found.choices[0].message.content in ("yes", "no")
    assert found.usage is not None
    details = found.usage.completion_tokens_details
    assert details is not None
    assert (details.accepted_prediction_tokens, details.rejected_prediction_tokens) == (0, 0)
    assert (found.choices[0].model_extra or {})["token_ids"]


def test_errors_are_those_that_the_client_knows(service: Process, client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="n must be at most 128") as wrong:
        client.chat.completions.create(model="embedded", messages=MESSAGES, n=1000)
    assert (wrong.value.param, wrong.value.type) == ("n", "invalid_request_error")
    assert wrong.value.request_id
    with pytest.raises(openai.BadRequestError, match="did you mean 'top_k'"):
        client.chat.completions.create(model="embedded", messages=MESSAGES, extra_body={"topk": 1})
    with pytest.raises(openai.NotFoundError, match="'gpt' does not exist") as missing:
        client.chat.completions.create(model="gpt", messages=MESSAGES)
    assert missing.value.code == "model_not_found"
    with (
        openai.OpenAI(base_url=f"{service.url}/v1", api_key="no", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError),
    ):
        stranger.models.list()
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model="embedded", prompt=[5] * 2000)
    assert long.value.code == "context_length_exceeded"


def test_the_model_is_listed(client: openai.OpenAI) -> None:
    assert [each.id for each in client.models.list()] == ["embedded"]
    assert client.models.retrieve("embedded").owned_by == "stepweave"


def test_a_stream_that_is_closed_is_cancelled(service: Process, client: openai.OpenAI) -> None:
    named = {"X-Request-Id": "closed-early"}
    stream = client.completions.create(
        model="embedded",
        prompt=STORY,
        max_tokens=900,
        temperature=0,
        stream=True,
        extra_headers=named,
        extra_body={"ignore_eos": True},
    )
    next(iter(stream))
    stream.close()
    # One that comes later, and says so in the log behind it.
    client.completions.create(
        model="embedded", prompt="a", max_tokens=60, temperature=0, extra_body={"ignore_eos": True}
    )
    lines = [json.loads(line) for line in service.log.read_text().splitlines()]
    [line] = [each for each in lines if each.get("request_id") == "closed-early"]
    assert line["status"] == 499
    assert line["finish_reasons"] == ["cancelled"]
    assert line["completion_tokens"] < 900


def test_tools_of_pydantic_models(client: openai.OpenAI) -> None:
    """Behind the others: what compiles their grammar has started meanwhile."""
    tool = openai.pydantic_function_tool(Person, name="person")
    whole = client.beta.chat.completions.parse(
        model="embedded",
        messages=ASKED,
        tools=[tool],
        tool_choice="required",
        temperature=0,
        parallel_tool_calls=False,
    )
    assert whole.choices[0].finish_reason == "tool_calls"
    [call] = whole.choices[0].message.tool_calls or []
    assert call.function.parsed_arguments == MAX
    with client.beta.chat.completions.stream(
        model="embedded",
        messages=ASKED,
        tools=[tool],
        tool_choice={"type": "function", "function": {"name": "person"}},
        temperature=0,
    ) as stream:
        deltas = [each for each in stream if each.type == "tool_calls.function.arguments.delta"]
        final = stream.get_final_completion()
    assert len(deltas) > 3
    [call] = final.choices[0].message.tool_calls or []
    assert call.function.parsed_arguments == MAX


@contextmanager
def read_late(service: Process) -> Iterator[socket.socket]:
    """A stream of megabytes, more than the buffers of both ends hold, of which nothing is read."""
    told = {"logprobs": True, "top_logprobs": 32, "stream": True}  # some kilobytes of each token
    asked = {"messages": MESSAGES, "n": 16, "max_tokens": 80, "temperature": 0, **told}
    data = json.dumps({**asked, "ignore_eos": True}).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer two\r\n"
        "content-type: application/json\r\n"
    )
    with socket.socket() as wire:
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        wire.settimeout(60)
        wire.connect(("127.0.0.1", int(service.url.rpartition(":")[2])))
        wire.sendall(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
        yield wire


def test_term_ends_it_when_what_runs_has_ended(service: Process, client: openai.OpenAI) -> None:
    """The last test of this file but one: the service is gone after it."""
    with read_late(service) as late:
        ends_when_what_runs_has_ended(service, client)
        sleep(1.3)  # longer than it waits where the drain limit is over
        tail = b""
        while told := late.recv(1 << 20):
            tail = (tail + told)[-100:]
    assert b"data: [DONE]" in tail
    assert service.ended() == 0
    lines = [json.loads(line) for line in service.log.read_text().splitlines()]
    assert all({"time", "level", "logger", "message"} <= each.keys() for each in lines)
    assert [each for each in lines if each["message"] == "draining"]


def ends_when_what_runs_has_ended(service: Process, client: openai.OpenAI) -> None:
    stream = iter(
        client.completions.create(
            model="embedded",
            prompt=STORY,
            max_tokens=120,
            temperature=0,
            stream=True,
            extra_body={"ignore_eos": True},
        )
    )
    next(stream)
    with httpx.Client(base_url=service.url, trust_env=False) as probe:
        assert probe.get("/ready").status_code == 200
        service.signal(signal.SIGTERM)
        while probe.get("/ready").status_code == 200:
            sleep(0.005)
        with pytest.raises(openai.InternalServerError) as refused:
            client.completions.create(model="embedded", prompt="a")
        assert refused.value.status_code == 503
        assert refused.value.response.headers["retry-after"]
    last = list(stream)[-1]
    assert last.choices[0].finish_reason == "length"
    with httpx.Client(base_url=service.url, trust_env=False) as probe:
        while True:
            try:
                probe.get("/ready")
            except httpx.TransportError:  # all has been generated
                return
            sleep(0.005)


def test_a_collector_has_the_spans_of_all_calls_when_the_service_has_ended(
    service: Process, client: openai.OpenAI, collected: Collected
) -> None:
    """Without the test before this one it is this one that ends the service."""
    if service.child.poll() is None:
        named = {"X-Request-Id": "last"}
        client.chat.completions.create(
            model="embedded", messages=MESSAGES, max_tokens=2, extra_headers=named
        )
        service.signal(signal.SIGTERM)
    assert service.ended() == 0
    lines = [json.loads(line) for line in service.log.read_text().splitlines()]
    served = [each["request_id"] for each in lines if "finish_reasons" in each]
    calls = [each for each in collected.spans if not each.parent_span_id]
    told = [
        each.value.string_value
        for call in calls
        for each in call.attributes
        if each.key == "gen_ai.response.id"
    ]
    assert sorted(told) == sorted(served) != []
    chat = [each for each in calls if each.name == "chat embedded"][-1]
    below = {each.name for each in collected.spans if each.parent_span_id == chat.span_id}
    assert below == {"queue", "prefill", "decode"}
