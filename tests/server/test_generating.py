"""Both generating endpoints, streamed and not, against what `LLM` itself says."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import openai
import pytest

from stepweave import LLM, SamplingParams
from stepweave.server.forms import ChunkForm
from stepweave.server.protocol.answers import ChatAnswer, CompletionAnswer
from stepweave.server.response_form import ResponseForm
from stepweave.structured.backend import CompiledGrammar
from stepweave.structured.grammar import GrammarSpec
from tests.server.in_thread import Running

STORY = "Write a short story about a fox named Ida."
GREEDY = {"temperature": 0, "max_tokens": 24}


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM() as found:
        yield found


def post(service: Running, path: str, **body: Any) -> Any:
    with service.client() as client:
        answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def events(service: Running, path: str, **body: Any) -> list[Any]:
    """The data of each event of a stream, the last being [DONE]."""
    with service.client() as client, client.stream("POST", path, json=body | {"stream": True}) as s:
        assert s.headers["content-type"].startswith("text/event-stream")
        text = s.read().decode()
    parts = text.split("\n\n")
    assert parts.pop() == "", "a stream ends with an empty line"
    assert all(part.startswith("data: ") for part in parts)
    assert parts.pop() == "data: [DONE]"
    return [json.loads(part.removeprefix("data: ")) for part in parts]


MIX: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0.9, "seed": 7, "top_k": 20, "top_p": 0.9, "min_p": 0.01},
    {"temperature": 0.8, "seed": 3, "presence_penalty": 0.7, "frequency_penalty": 0.3},
    {"temperature": 0, "repetition_penalty": 1.3, "bad_words": ["fox"]},
    {"temperature": 0, "stop": [" was", "zzz"]},
    {
        "temperature": 1.0,
        "seed": 5,
        "xtc_probability": 1.0,
        "xtc_threshold": 0.05,
        "dry_multiplier": 0.8,
        "dry_sequence_breakers": ["."],
        "no_repeat_ngram_size": 3,
    },
    {"temperature": 0, "ignore_eos": True, "min_tokens": 30, "max_tokens": 32},
    {"temperature": 1.0, "seed": 11, "logit_bias": {"40": 5, "41": -100}},
    {"temperature": 0, "draft_tokens": 1, "priority": -3},
    {"temperature": 0, "structured_outputs": {"regex": "[a-z ]{5,20}"}},
    {"temperature": 0, "structured_outputs": {"choice": ["yes", "no"]}},
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("params", MIX, ids=lambda each: "-".join(each))
def test_tokens_through_the_service_are_those_of_generate(
    service: Running, llm: LLM, params: dict[str, Any]
) -> None:
    asked = {"max_tokens": 24, **params}
    given = dict(asked)
    if "logit_bias" in given:
        given["logit_bias"] = {int(key): value for key, value in given["logit_bias"].items()}
    expected = llm.generate([STORY], SamplingParams.of(given))[0]
    assert expected.error is None
    body = {**asked, "model": "embedded", "return_token_ids": True}

    whole = post(service, "/v1/completions", prompt=STORY, **body)["choices"][0]
    assert whole["token_ids"] == list(expected.token_ids)
    assert (whole["text"], whole["finish_reason"]) == (expected.text, expected.finish_reason)

    messages = [{"role": "user", "content": STORY}]
    chunks = events(service, "/v1/chat/completions", messages=messages, **body)
    choices = [each for chunk in chunks for each in chunk["choices"]]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(each["delta"].get("content", "") for each in choices) == expected.text
    ids = [token for each in choices for token in each.get("token_ids", ())]
    assert ids == list(expected.token_ids)
    assert [each["finish_reason"] for each in choices if each["finish_reason"]] == [
        expected.finish_reason
    ]


def test_whole_answers_have_the_form_that_is_documented(service: Running) -> None:
    messages = [{"role": "user", "content": STORY}]
    chat = post(
        service, "/v1/chat/completions", messages=messages, logprobs=True, top_logprobs=2, **GREEDY
    )
    ChatAnswer.model_validate(chat, strict=True)
    completion = post(service, "/v1/completions", prompt=STORY, logprobs=2, **GREEDY)
    CompletionAnswer.model_validate(completion, strict=True)
    usage = completion["usage"]
    assert usage["completion_tokens"] == 24
    assert usage["total_tokens"] == usage["prompt_tokens"] + 24
    details = usage["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] > 0
    assert usage["prompt_tokens_details"]["cached_tokens"] > 0, "the chat had the same prompt"


def test_logprobs_are_those_of_generate_in_both_forms(service: Running, llm: LLM) -> None:
    params = SamplingParams(max_tokens=8, logprobs=3)
    expected = llm.generate([STORY], params)[0]
    assert expected.logprobs is not None
    body = {"temperature": 0, "max_tokens": 8}
    messages = [{"role": "user", "content": STORY}]
    chat = post(
        service, "/v1/chat/completions", messages=messages, logprobs=True, top_logprobs=3, **body
    )["choices"][0]
    streamed = events(
        service, "/v1/chat/completions", messages=messages, logprobs=True, top_logprobs=3, **body
    )
    content = chat["logprobs"]["content"]
    pieces = [
        each
        for chunk in streamed
        for choice in chunk["choices"]
        if choice["logprobs"]
        for each in choice["logprobs"]["content"]
    ]
    assert pieces == content
    assert [each["logprob"] for each in content] == [each.logprob for each in expected.logprobs]
    assert [[top["logprob"] for top in each["top_logprobs"]] for each in content] == [
        [value for _, value in each.top[:3]] for each in expected.logprobs
    ]
    spelled = b"".join(bytes(each["bytes"]) for each in content)
    assert spelled.decode() == chat["message"]["content"]

    whole = post(service, "/v1/completions", prompt=STORY, logprobs=3, **body)["choices"][0]
    told = whole["logprobs"]
    assert told["token_logprobs"] == [each.logprob for each in expected.logprobs]
    for name, offset in zip(told["tokens"], told["text_offset"], strict=True):
        assert whole["text"][offset : offset + len(name)] == name
    parts = events(service, "/v1/completions", prompt=STORY, logprobs=3, **body)
    joined: dict[str, list[Any]] = {key: [] for key in told}
    for chunk in parts:
        for choice in chunk["choices"]:
            for key, values in (choice["logprobs"] or {}).items():
                joined[key] += values
    assert joined == told


def test_tokens_of_a_text_are_told_where_they_begin_in_it(service: Running) -> None:
    """Characters of several tokens, and tokens that the text does not have."""
    asks = {"temperature": 0, "max_tokens": 24, "logprobs": 0}
    forms: list[dict[str, Any]] = [
        {"structured_outputs": {"regex": "é{3}ab😄x"}},
        {"structured_outputs": {"regex": "é{2}x"}, "ignore_eos": True},
    ]
    for form in forms:
        body = {"prompt": "emoji", **asks, **form}
        whole = post(service, "/v1/completions", **body)["choices"][0]
        told = whole["logprobs"]
        assert set(told["text_offset"]) >= {0, 1, 2}
        for name, offset in zip(told["tokens"], told["text_offset"], strict=True):
            rest = whole["text"][offset:]
            assert rest.startswith(name) or name.startswith(("bytes:", "<|")), (name, offset)
            assert offset == len(whole["text"]) or not name.startswith("<|")
        streamed = [
            offset
            for chunk in events(service, "/v1/completions", **body)
            for choice in chunk["choices"]
            for offset in (choice["logprobs"] or {"text_offset": []})["text_offset"]
        ]
        assert streamed == told["text_offset"]


def test_a_prompt_among_several_that_is_too_long_is_named(service: Running) -> None:
    with service.client() as client:
        answer = client.post("/v1/completions", json={"prompt": ["a", "b " * 9000, "c"]})
        chat = [{"role": "user", "content": "b " * 9000}]
        other = client.post("/v1/chat/completions", json={"messages": chat})
    assert answer.json()["error"]["message"].startswith("prompt 2 of 3: ")
    assert answer.json()["error"]["param"] == "prompt"
    assert other.json()["error"]["param"] == "messages"


def test_a_stream_tells_its_usage_at_the_end_or_with_each_chunk(service: Running) -> None:
    options = {"include_usage": True}
    chunks = events(service, "/v1/completions", prompt=STORY, stream_options=options, **GREEDY)
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 24

    options["continuous_usage_stats"] = True
    chunks = events(service, "/v1/completions", prompt=STORY, stream_options=options, **GREEDY)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == 24
    assert counts[0] > 0

    plain = events(service, "/v1/completions", prompt=STORY, **GREEDY)
    assert all("usage" not in chunk for chunk in plain)


def test_several_prompts_and_choices_have_the_indices_of_the_api(
    service: Running, llm: LLM
) -> None:
    prompts: list[Any] = [STORY, [40, 41, 42]]
    params = {"temperature": 0.9, "seed": 5, "max_tokens": 6, "n": 2}
    expected = [
        choice.text
        for output in llm.generate(prompts, SamplingParams.of(params))
        for choice in output.choices
    ]
    answer = post(service, "/v1/completions", prompt=prompts, **params)
    assert [each["index"] for each in answer["choices"]] == [0, 1, 2, 3]
    assert [each["text"] for each in answer["choices"]] == expected
    assert answer["usage"]["completion_tokens"] <= 24

    texts = ["", "", "", ""]
    ends = []
    for chunk in events(service, "/v1/completions", prompt=prompts, **params):
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["text"]
            ends += [choice["index"]] if choice["finish_reason"] else []
    assert texts == expected
    assert sorted(ends) == [0, 1, 2, 3]


def test_a_response_format_holds_the_answer_to_a_schema(service: Running) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    messages = [{"role": "user", "content": "Extract name and age as JSON: Max is 61."}]
    format = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema}}
    answer = post(
        service, "/v1/chat/completions", messages=messages, response_format=format, temperature=0
    )
    found = json.loads(answer["choices"][0]["message"]["content"])
    assert found.keys() == {"name", "age"}
    answer = post(
        service,
        "/v1/chat/completions",
        messages=messages,
        response_format={"type": "json_object"},
        temperature=0,
        max_tokens=64,
    )
    assert isinstance(json.loads(answer["choices"][0]["message"]["content"]), dict)


def test_without_a_seed_each_answer_is_drawn_anew(service: Running) -> None:
    messages = [{"role": "user", "content": STORY}]
    texts = {
        post(service, "/v1/chat/completions", messages=messages, max_tokens=24, temperature=1.5)[
            "choices"
        ][0]["message"]["content"]
        for _ in range(4)
    }
    assert len(texts) > 1


def test_a_stream_that_waits_has_comments_which_clients_pass_over(
    service: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    intake = service.llm.service.intake
    held: list[Callable[[], object]] = []

    def slow(spec: GrammarSpec, reasoning: bool | None) -> Future[CompiledGrammar]:
        given: Future[CompiledGrammar] = Future()
        held.append(lambda: given.set_result(real(spec, reasoning).result(60)))
        return given

    real = intake.grammar
    monkeypatch.setattr(intake, "grammar", slow)
    object.__setattr__(service.engine.settings, "keep_alive_s", 0.01)
    asked: dict[str, Any] = {"prompt": STORY, "temperature": 0, "stream": True}
    yes = {"structured_outputs": {"choice": ["yes"]}}
    with (
        service.client() as client,
        client.stream("POST", "/v1/completions", json=asked | yes) as answer,
    ):
        lines = answer.iter_lines()
        assert [next(lines) for _ in range(4)] == [": keep-alive", "", ": keep-alive", ""]
        held.pop()()
        told = [json.loads(each[6:]) for each in lines if each.startswith("data: {")]
    assert "".join(each["choices"][0]["text"] for each in told) == "yes"
    with openai.OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0) as known:
        stream = known.completions.create(model="embedded", **asked, extra_body=yes)
        held.pop()()  # the answer has begun, and so with a comment
        assert "".join(each.choices[0].text for each in stream) == "yes"
    object.__setattr__(service.engine.settings, "keep_alive_s", 15.0)


@pytest.fixture
def advised(service: Running) -> Iterator[dict[str, Any]]:
    """What the model's authors advise, while the test runs."""
    advice = {"temperature": 0.0, "repetition_penalty": 1.3, "max_tokens": 9}
    object.__setattr__(service.engine.settings, "sampling", advice)
    yield advice
    object.__setattr__(service.engine.settings, "sampling", {})


def test_what_a_request_does_not_give_is_as_the_models_authors_advise(
    service: Running, llm: LLM, advised: dict[str, Any]
) -> None:
    chat = {"messages": [{"role": "user", "content": STORY}]}

    def asked(**given: Any) -> tuple[str, int]:
        found = post(service, "/v1/chat/completions", **chat, **given)
        return found["choices"][0]["message"]["content"], found["usage"]["completion_tokens"]

    def alone(**params: Any) -> tuple[str, int]:
        [found] = llm.chat(chat["messages"], params)
        return found.text, len(found.token_ids)

    assert asked() == alone(**advised)
    assert asked(max_tokens=14, repetition_penalty=1.0) == alone(**GREEDY | {"max_tokens": 14})
    assert asked(temperature=0.9, seed=3) == alone(**advised | {"temperature": 0.9, "seed": 3})
    whole = post(service, "/v1/completions", prompt=STORY)
    assert whole["usage"]["completion_tokens"] == 16, "that is the API's own"
    [found] = llm.generate([STORY], {**advised, "max_tokens": 16})
    assert whole["choices"][0]["text"] == found.text


def test_a_chat_without_max_tokens_may_fill_the_context(service: Running) -> None:
    messages = [{"role": "user", "content": "a " * 480}]
    answer = post(
        service, "/v1/chat/completions", messages=messages, temperature=0, ignore_eos=True
    )
    usage = answer["usage"]
    assert usage["completion_tokens"] > 16, "which is the default of the other endpoint"
    assert usage["total_tokens"] == service.engine.context_length
    assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/responses", {"input": "a"}),
    ],
)
def test_a_whole_answer_is_written_beside_the_event_loop(
    service: Running, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> None:
    """With many log-probabilities it takes a second, for which all streams would wait."""
    at_work: list[str] = []
    for form in (ChunkForm, ResponseForm):
        whole: Any = form.whole

        def noted(self: Any, outputs: Any, whole: Any = whole) -> Any:
            at_work.append(threading.current_thread().name)
            return whole(self, outputs)

        monkeypatch.setattr(form, "whole", noted)
    post(service, path, **body)
    assert len(at_work) == 1
    assert at_work[0] != "test-service"
