"""/v1/responses: the same answers as chats, in the words that the client of OpenAI expects."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from pydantic import BaseModel

from stepweave.server.protocol.response_answers import ResponseAnswer
from tests.server.in_thread import Running

STORY = "Write a short story about a fox named Ida."
GREEDY: dict[str, Any] = {"model": "embedded", "temperature": 0}
ASKED = "Extract name and age as JSON: Max Tanaka is a 61-year-old lawyer from Warsaw."


class Person(BaseModel):
    name: str
    age: int


PERSON = Person(name="Max Tanaka", age=61)
TOOL: Any = {
    "type": "function",
    "name": "person",
    "description": "A person.",
    "parameters": {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    "strict": True,
}

UNIQUE = {
    "format": {"type": "json_schema", "name": "a", "schema": {"type": "array", "uniqueItems": True}}
}
OF_CHATS = ("name", "description", "parameters")


@pytest.fixture(scope="module")
def client(service: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0) as found:
        yield found


def post(service: Running, path: str = "/v1/responses", **body: Any) -> httpx.Response:
    with service.client() as client:
        return client.post(path, json=body)


def chatted(service: Running, messages: list[Any], **body: Any) -> tuple[Any, Any]:
    """The message that a chat answers, and its usage."""
    answer = post(service, "/v1/chat/completions", messages=messages, **GREEDY | body)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"], answer.json()["usage"]


def test_a_text_whole_and_streamed_is_that_of_a_chat(
    service: Running, client: openai.OpenAI
) -> None:
    message, usage = chatted(
        service,
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": STORY}],
        max_tokens=16,
    )
    asked: Any = {**GREEDY, "input": STORY, "instructions": "Be brief.", "max_output_tokens": 16}
    whole = client.responses.create(**asked, metadata={"a": "b"})
    assert whole.output_text == message["content"]
    assert whole.status == "incomplete"
    assert whole.incomplete_details is not None
    assert whole.incomplete_details.reason == "max_output_tokens"
    assert (whole.instructions, whole.metadata) == ("Be brief.", {"a": "b"})
    assert whole.usage is not None
    assert whole.usage.input_tokens == usage["prompt_tokens"]
    assert whole.usage.output_tokens == 16
    assert whole.usage.total_tokens == usage["total_tokens"]

    events = list(client.responses.create(**asked, stream=True))
    assert [each.sequence_number for each in events] == [*range(len(events))]
    kinds = [each.type.removeprefix("response.") for each in events]
    deltas = kinds.count("output_text.delta")
    assert deltas > 1
    assert kinds == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *["output_text.delta"] * deltas,
        *("output_text.done", "content_part.done", "output_item.done", "incomplete"),
    ]
    assert (
        "".join(e.delta for e in events if e.type == "response.output_text.delta")
        == (message["content"])
    )
    last = events[-1]
    assert last.type == "response.incomplete"
    assert last.response.output_text == message["content"]
    assert last.response.usage is not None
    assert last.response.usage.output_tokens == 16


def test_an_answer_that_ends_by_itself_is_completed(client: openai.OpenAI) -> None:
    asked: Any = {**GREEDY, "input": "x", "extra_body": {"structured_outputs": {"choice": ["yes"]}}}
    assert client.responses.create(**asked).status == "completed"
    with client.responses.stream(**asked) as stream:
        final = stream.get_final_response()
    assert (final.status, final.output_text) == ("completed", "yes")


def test_answers_and_events_have_the_form_that_is_documented(service: Running) -> None:
    for more in ({}, {"tools": [TOOL], "tool_choice": "required"}, {"top_logprobs": 2}):
        body = {**GREEDY, "input": ASKED, "max_output_tokens": 40, **more}
        answer = post(service, **body)
        assert answer.status_code == 200, answer.text
        ResponseAnswer.model_validate(answer.json(), strict=True)
        streamed = post(service, **body, stream=True).text
        assert streamed.endswith("\n\n")
        for event in streamed.removesuffix("\n\n").split("\n\n"):
            name, _, data = event.partition("\ndata: ")
            said = json.loads(data)
            assert name == f"event: {said['type']}"
            if "response" in said:
                ResponseAnswer.model_validate(said["response"], strict=True)
        ids = ("id", "call_id", "created_at")
        assert without(said["response"], ids) == without(answer.json(), ids)


def without(said: Any, keys: tuple[str, ...]) -> Any:
    """Without these keys at any depth, and without what the prefix cache had."""
    if isinstance(said, dict):
        left = {key: value for key, value in said.items() if key not in (*keys, "cached_tokens")}
        return {key: without(value, keys) for key, value in left.items()}
    return [without(each, keys) for each in said] if isinstance(said, list) else said


def test_a_pydantic_model_is_parsed_whole_and_streamed(client: openai.OpenAI) -> None:
    whole = client.responses.parse(**GREEDY, input=ASKED, text_format=Person)
    assert whole.output_parsed == PERSON
    with client.responses.stream(**GREEDY, input=ASKED, text_format=Person) as stream:
        kinds = [each.type for each in stream]
        final = stream.get_final_response()
    assert final.output_parsed == PERSON
    assert kinds.count("response.output_text.delta") > 1
    assert kinds[-1] == "response.completed"
    found = client.responses.create(
        **GREEDY, input=ASKED, text={"format": {"type": "json_object"}}, max_output_tokens=60
    )
    assert found.output_text.startswith("{")


def test_a_function_is_called_and_its_result_is_read(
    service: Running, client: openai.OpenAI
) -> None:
    asked: Any = {**GREEDY, "tools": [TOOL]}
    first = client.responses.create(
        **asked, input=ASKED, tool_choice={"type": "function", "name": "person"}
    )
    [call] = first.output
    assert call.type == "function_call"
    assert (call.name, json.loads(call.arguments)) == ("person", PERSON.model_dump())
    assert first.status == "completed"

    with client.responses.stream(**asked, input=ASKED, tool_choice="required") as stream:
        events = list(stream)
        final = stream.get_final_response()
    deltas = [e for e in events if e.type == "response.function_call_arguments.delta"]
    assert len(deltas) > 3
    assert deltas[-1].snapshot == call.arguments
    [streamed] = final.output
    assert streamed.type == "function_call"
    assert streamed.arguments == call.arguments

    told = {"type": "function_call_output", "call_id": call.call_id, "output": "stored"}
    items: Any = [{"role": "user", "content": ASKED}, *first.output, told]
    second = client.responses.create(**asked, input=items, max_output_tokens=12)
    function = {"name": "person", "arguments": call.arguments}
    message, usage = chatted(
        service,
        [
            {"role": "user", "content": ASKED},
            {
                "role": "assistant",
                "tool_calls": [{"id": call.call_id, "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": call.call_id, "content": "stored"},
        ],
        tools=[{"type": "function", "function": {key: TOOL[key] for key in OF_CHATS}}],
        max_tokens=12,
    )
    assert second.usage is not None
    assert second.usage.input_tokens == usage["prompt_tokens"]
    assert second.output_text == (message["content"] or "")


def test_the_asynchronous_client_reads_the_same(service: Running, client: openai.OpenAI) -> None:
    asked: Any = {**GREEDY, "input": STORY, "max_output_tokens": 8}

    async def streamed() -> str:
        async with (
            openai.AsyncOpenAI(base_url=f"{service.url}/v1", api_key="none") as known,
            known.responses.stream(**asked) as stream,
        ):
            kinds = [each.type async for each in stream]
            assert kinds[-1] == "response.incomplete"
            whole = await known.responses.create(**asked)
        return str(whole.output_text)

    assert asyncio.run(streamed()) == client.responses.create(**asked).output_text


def test_answers_go_back_into_the_input_as_they_are(
    service: Running, client: openai.OpenAI
) -> None:
    first = client.responses.create(**GREEDY, input=STORY, max_output_tokens=8)
    asked: Any = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": STORY}]},
        *first.output,
        {"type": "message", "role": "user", "content": "And a dog?"},
    ]
    second = client.responses.create(**GREEDY, input=asked, max_output_tokens=8)
    message, _ = chatted(
        service,
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": STORY},
            {"role": "assistant", "content": first.output_text},
            {"role": "user", "content": "And a dog?"},
        ],
        max_tokens=8,
    )
    assert second.output_text == message["content"]


def test_log_probabilities_are_those_of_a_chat(service: Running, client: openai.OpenAI) -> None:
    asked: Any = {**GREEDY, "input": STORY, "max_output_tokens": 6}
    found = client.responses.create(
        **asked, top_logprobs=2, include=["message.output_text.logprobs"]
    )
    [item] = found.output
    assert item.type == "message"
    [part] = item.content
    assert part.type == "output_text"
    answer = post(
        service,
        "/v1/chat/completions",
        **GREEDY,
        messages=[{"role": "user", "content": STORY}],
        max_tokens=6,
        logprobs=True,
        top_logprobs=2,
    )
    expected = answer.json()["choices"][0]["logprobs"]["content"]
    assert [each.model_dump() for each in part.logprobs or ()] == expected
    assert len(expected) == 6
    events = client.responses.create(**asked, top_logprobs=0, stream=True)
    told = [
        each.token
        for event in events
        if event.type == "response.output_text.delta"
        for each in event.logprobs
    ]
    assert told == [each["token"] for each in expected]


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        ({"store": True}, "store", "keeps nothing"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "send the items"),
        ({"conversation": "conv_1"}, "conversation", "send the items"),
        ({"background": True}, "background", "see stream"),
        ({"reasoning": {"effort": "low"}}, "reasoning", "template decides"),
        ({"truncation": "auto"}, "truncation", "shorten"),
        ({"max_tokens": 5}, "max_tokens", "max_output_tokens"),
        ({"include": ["reasoning.encrypted_content"]}, "include", "logprobs"),
        ({"tools": [{"type": "web_search"}]}, "tools", "function"),
        ({"tool_choice": "required"}, "tool_choice", "needs tools"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "no"}}, "tool_choice", "no"),
        ({"tools": [TOOL], "top_logprobs": 1}, "include", "without tools"),
        ({"text": {"format": {"type": "grammar"}}}, "text", "json_schema"),
        ({"text": {"verbosity": "low"}}, "verbosity", "message"),
        ({"text": UNIQUE}, "text", "uniqueItems"),
        ({"text": UNIQUE, "tools": [TOOL]}, "text", "uniqueItems"),
        ({"text": UNIQUE, "structured_outputs": {"regex": "a"}}, "text", "text and structured_"),
        ({"min_tokens": 5}, "min_tokens", "at most max_output_tokens, 4"),
        ({"input": []}, "input", "at least 1"),
        ({"input": 3}, "input", "input: must be a text or a list of items, not 3"),
        ({"input": {"role": "user"}}, "input", "input: must be a text or a list of items"),
        ({"input": [{"type": "item_reference", "id": "1"}]}, "input", "function_call_output"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input",
            "'input_image'",
        ),
        (
            {"input": [{"type": "function_call", "call_id": "1", "name": "f", "arguments": "["}]},
            "input",
            "input[0].arguments: must be the text of a JSON object",
        ),
        ({"input": "word " * 3000}, "input", "the context holds no more"),
        ({"model": "other"}, "model", "does not exist"),
        ({"inptu": "a"}, "inptu", "did you mean 'input'"),
    ],
)
def test_what_is_not_served_is_refused_by_name(
    service: Running, body: dict[str, Any], param: str, said: str
) -> None:
    answer = post(service, **{"input": "hello", "max_output_tokens": 4, **body})
    assert answer.status_code in (400, 404), answer.text
    error = answer.json()["error"]
    assert (error["param"], said in error["message"]) == (param, True), error


def test_what_is_too_much_for_one_message_of_the_model_is_refused(service: Running) -> None:
    """Items in a row are one message, and each of them alone is within the limits."""
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    part = {"type": "reasoning_text", "text": "a" * (3 << 20)}
    asked: list[tuple[Any, str]] = [
        ([call] * 129, "its tool_calls has more than 128 entries"),
        ([{"type": "reasoning", "content": [part] * 2}], "its reasoning_content is longer than"),
    ]
    for items, said in asked:
        answer = post(service, input=items, max_output_tokens=1)
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert error["param"] == "input"
        assert said in error["message"]


@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN"])
def test_a_number_that_json_cannot_write_is_refused_in_a_schema(
    service: Running, number: str
) -> None:
    """The answer has the tools and the schema as they were sent."""
    schema = {"type": "object", "properties": {"a": {"enum": [1, "here"]}}}
    named = {"type": "json_schema", "name": "f", "schema": schema}
    tool = {"type": "function", "name": "f", "parameters": schema}
    asked: dict[str, Any] = {"tools": [tool], "text": {"format": named}}
    for key, value in asked.items():
        body = json.dumps({"input": "hi", key: value}).replace('"here"', number)
        with service.client() as client:
            headers = {"content-type": "application/json"}
            answer = client.post("/v1/responses", content=body, headers=headers)
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert error["param"] == key
        assert "has a number that is not finite" in error["message"]


def test_what_asks_for_nothing_is_taken(client: openai.OpenAI) -> None:
    found = client.responses.create(
        **GREEDY,
        input="hello",
        max_output_tokens=1,
        store=False,
        background=False,
        truncation="disabled",
        tool_choice="auto",
        parallel_tool_calls=True,
        service_tier="auto",
        text={"format": {"type": "text"}, "verbosity": "medium"},
    )
    assert found.store is False
