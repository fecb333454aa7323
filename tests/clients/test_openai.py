"""The OpenAI client for Python where it retries, gives up or is cancelled; and its async half."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from tests.clients.conftest import KEY, Service
from tests.clients.logged import logged

STORY = "Write a short story about a fox named Ida."
MESSAGES: Any = [{"role": "user", "content": STORY}]
ASKED: Any = [
    {
        "role": "user",
        "content": "Extract name, age, job and city as JSON: Max Tanaka is a 61-year-old lawyer "
        "from Warsaw.",
    }
]
GREEDY: Any = {"model": "embedded", "temperature": 0, "max_tokens": 16}
LONG: Any = {
    "model": "embedded",
    "prompt": STORY,
    "temperature": 0,
    "max_tokens": 900,
    "extra_body": {"ignore_eos": True},
}


class Person(BaseModel):
    """Who a sentence is about."""

    name: str
    age: int
    job: str
    city: str


MAX = Person(name="Max Tanaka", age=61, job="lawyer", city="Warsaw")


def named(request_id: str) -> dict[str, str]:
    return {"X-Request-Id": request_id}


def test_headers_come_with_the_answer(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        messages=MESSAGES, extra_headers=named("raw-1"), **GREEDY
    )
    assert raw.headers["x-request-id"] == raw.request_id == "raw-1"
    assert raw.retries_taken == 0
    whole = raw.parse()
    assert whole._request_id == "raw-1"
    with client.chat.completions.with_streaming_response.create(
        messages=MESSAGES, stream=True, **GREEDY
    ) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["x-request-id"]
        told = [chunk.choices[0].delta.content or "" for chunk in response.parse()]
    assert "".join(told) == whole.choices[0].message.content


def test_several_choices_and_their_logprobs_are_the_same_streamed(client: openai.OpenAI) -> None:
    body: Any = {
        **GREEDY,
        "temperature": 1,
        "seed": 5,
        "n": 3,
        "messages": MESSAGES,
        "logprobs": True,
        "top_logprobs": 2,
    }
    whole = client.chat.completions.create(**body)
    texts, spelled = ["", "", ""], [b"", b"", b""]
    for chunk in client.chat.completions.create(stream=True, **body):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            told = (choice.logprobs.content if choice.logprobs else None) or ()
            spelled[choice.index] += b"".join(bytes(each.bytes or ()) for each in told)
    assert texts == [each.message.content for each in whole.choices]
    assert len(set(texts)) > 1
    assert [each.decode() for each in spelled] == texts


def test_a_text_completion_is_the_same_streamed(client: openai.OpenAI) -> None:
    body: Any = {**GREEDY, "prompt": [STORY, "hello"]}
    whole = client.completions.create(**body)
    texts = ["", ""]
    usage = None
    for chunk in client.completions.create(
        stream=True, stream_options={"include_usage": True}, **body
    ):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [each.text for each in whole.choices]
    assert whole.usage is not None
    assert usage is not None
    assert usage.completion_tokens == whole.usage.completion_tokens > 16


def test_no_parameter_of_the_client_is_ignored(client: openai.OpenAI) -> None:
    """A value that none can have is refused under the name of each that the client can send."""
    own = {"extra_headers", "extra_query", "extra_body", "timeout"}
    nonsense = {"no": [{"such": "value"}]}
    for create, needed in (
        (client.chat.completions.create, {"messages": MESSAGES}),
        (client.completions.create, {"prompt": STORY}),
    ):
        names = inspect.signature(create).parameters.keys() - own
        assert len(names) > 15
        for name in sorted(names):
            body = {**GREEDY, **needed, name: nonsense}
            with pytest.raises(openai.BadRequestError) as refused:
                client.post(
                    "/chat/completions" if "messages" in needed else "/completions",
                    cast_to=object,
                    body=body,
                )
            assert refused.value.param == name


def test_what_is_not_served_is_said(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="there is no /v1/embeddings"):
        client.embeddings.create(model="embedded", input="hello")


def test_a_full_queue_is_tried_again(client: openai.OpenAI, base_url: str) -> None:
    """Of 64 choices all but four wait, so the next call is refused, and served when they leave."""
    first = client.completions.create(stream=True, n=64, **LONG)
    next(iter(first))
    with pytest.raises(openai.RateLimitError, match="the queue is full") as refused:
        client.completions.create(**{**LONG, "max_tokens": 2})
    assert refused.value.code == "queue_full"
    assert int(refused.value.response.headers["retry-after"]) >= 1

    def leave_when_refused(response: Any) -> None:
        if response.status_code == 429:
            first.close()

    http = openai.DefaultHttpxClient(event_hooks={"response": [leave_when_refused]})
    with openai.OpenAI(base_url=base_url, api_key=KEY, http_client=http, max_retries=20) as patient:
        raw = patient.completions.with_raw_response.create(**{**LONG, "max_tokens": 2})
    assert raw.retries_taken >= 1
    usage = raw.parse().usage
    assert usage is not None
    assert usage.completion_tokens == 2


def test_a_call_that_takes_too_long_is_cancelled(service: Service, client: openai.OpenAI) -> None:
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=openai.Timeout(60, read=0.05)).completions.create(
            extra_headers=named("too-long"), **LONG
        )
    line = logged(service, client, "too-long")
    assert line["status"] == 499
    assert line["completion_tokens"] < 900


def test_the_async_client_parses_streams_and_refuses(base_url: str) -> None:
    async def use() -> None:
        async with openai.AsyncOpenAI(base_url=base_url, api_key=KEY, max_retries=0) as client:
            body: Any = {"model": "embedded", "messages": ASKED, "temperature": 0}
            whole = await client.beta.chat.completions.parse(response_format=Person, **body)
            assert whole.choices[0].message.parsed == MAX
            async with client.beta.chat.completions.stream(
                response_format=Person, **body
            ) as stream:
                deltas = [event async for event in stream if event.type == "content.delta"]
                final = await stream.get_final_completion()
            assert final.choices[0].message.parsed == MAX
            assert deltas[-1].snapshot == whole.choices[0].message.content
            tool = openai.pydantic_function_tool(Person, name="person")
            called: Any = {"tools": [tool], "parallel_tool_calls": False, **body}
            arguments = ""
            async for chunk in await client.chat.completions.create(
                tool_choice="required", stream=True, **called
            ):
                for part in chunk.choices[0].delta.tool_calls or ():
                    assert part.function is not None
                    arguments += part.function.arguments or ""
            assert Person.model_validate_json(arguments) == MAX
            assert [each.id async for each in client.models.list()] == ["embedded"]
            with pytest.raises(openai.BadRequestError, match="temperature"):
                await client.chat.completions.create(**{**body, "temperature": -1})

    asyncio.run(use())


def by_hand(chunks: Any) -> Any:
    """The message that a loop over a stream puts together."""
    calls: list[Any] = []
    for chunk in chunks:
        for part in chunk.choices[0].delta.tool_calls or ():
            if part.id:
                calls.append(part)
            else:
                calls[part.index].function.arguments += part.function.arguments
    return {"role": "assistant", "tool_calls": calls}


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # the client's own, of `parsed`
@pytest.mark.parametrize(
    ("way", "called"),
    [
        *[(way, True) for way in ("create", "parse", "stream", "by hand")],
        *[(way, False) for way in ("create", "parse", "stream")],
    ],
)
def test_a_message_goes_back_as_the_client_has_it(
    client: openai.OpenAI, way: str, called: bool
) -> None:
    """With all that the client's own object has beside what was sent to it."""
    body: Any = {"model": "embedded", "messages": ASKED, "temperature": 0}
    chats = client.chat.completions
    if called:
        tool = openai.pydantic_function_tool(Person, name="person")
        body |= {"tools": [tool], "tool_choice": "required", "parallel_tool_calls": False}
    elif way != "create":
        body["response_format"] = Person
    if way == "parse":
        said: Any = chats.parse(**body).choices[0].message
    elif way == "stream":
        with chats.stream(**body) as stream:
            said = stream.get_final_completion().choices[0].message
    elif way == "by hand":
        said = by_hand(chats.create(**body, stream=True))
    else:
        said = chats.create(**body).choices[0].message
    calls = said["tool_calls"] if isinstance(said, dict) else said.tool_calls or ()
    assert bool(calls) == called
    results = [{"role": "tool", "tool_call_id": each.id, "content": "done"} for each in calls]
    more: Any = [*ASKED, said, *results]
    again = chats.create(**{**GREEDY, "max_tokens": 2}, messages=more)
    assert again.choices[0].finish_reason == "length"


def test_what_an_event_loop_cancels_or_leaves_ends(
    service: Service, client: openai.OpenAI, base_url: str
) -> None:
    async def use() -> None:
        async with openai.AsyncOpenAI(base_url=base_url, api_key=KEY, max_retries=0) as own:
            stream = await own.completions.create(
                stream=True, extra_headers=named("async-left"), **LONG
            )
            async with stream:
                async for _ in stream:
                    break
            begun = asyncio.Event()

            async def read() -> None:
                async for _ in await own.completions.create(
                    stream=True, extra_headers=named("async-cancelled"), **LONG
                ):
                    begun.set()

            reading = asyncio.create_task(read())
            await begun.wait()
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading

    asyncio.run(use())
    for request_id in ("async-left", "async-cancelled"):
        line = logged(service, client, request_id)
        assert line["status"] == 499
        assert line["finish_reasons"] == ["cancelled"]
        assert line["completion_tokens"] < 900
