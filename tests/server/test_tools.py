"""Tools: what the template is told, what the grammar holds, and what clients get back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepweave.models.call_format import CallFormat
from stepweave.models.chat import Chat, ChatError
from stepweave.models.source import resolve
from stepweave.models.tokenizer import load_tokenizer
from stepweave.server.sections import Piece, Reasoning, Section
from stepweave.server.tools import Calls, structural_tag
from stepweave.serving.engine import EngineError
from tests.server.in_thread import Running, running

CHAT = "/v1/chat/completions"
ASKED = "Extract name, age, job and city as JSON: Max Tanaka is a 61-year-old lawyer from Warsaw."
MESSAGES = [{"role": "user", "content": ASKED}]
"""What the embedded model answers well, in a call as in text."""


def function(name: str, *keys: str, **types: str) -> dict[str, Any]:
    properties = {key: {"type": types.get(key, "string")} for key in keys}
    schema = {
        "type": "object",
        "properties": properties,
        "required": [*keys],
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "parameters": schema}}


PERSON = function("person", "name", "age", "job", "city", age="integer")
PLACE = function("place", "city")

LLAMA = (
    "{{ bos_token }}{% for message in messages %}{{ '<|' + message['role'] + '|>' }}"
    "{% if message['tool_calls'] %}"
    "{% if message['tool_calls'] | length > 1 %}{{ raise_exception('one call') }}{% endif %}"
    "{% set call = message['tool_calls'][0]['function'] %}"
    "{{ '{\"name\": \"' + call['name'] + '\", \"parameters\": ' }}"
    "{{ call['arguments'] | tojson }}{{ '}' }}"
    "{% else %}{{ message['content'] }}{% endif %}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
"""Calls as Llama 3.1 writes them: nothing but JSON, and one per turn."""

QWEN = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role }}"
    "{% if message.content %}{{ '\\n' + message.content }}{% endif %}"
    "{% for call in message.tool_calls or [] %}"
    '{{ \'\\n<tool_call>\\n{"name": "\' + call.function.name + \'", "arguments": \' }}'
    "{{ call.function.arguments | tojson }}{{ '}\\n</tool_call>' }}{% endfor %}"
    "{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
LISTED = (
    "{% for message in messages %}{{ '[' + message.role + ']' }}"
    "{% if message.tool_calls %}{{ '[CALLS] [' }}{% for call in message.tool_calls %}"
    '{{ \'{"name": "\' + call.function.name + \'", "arguments": \' }}'
    "{{ call.function.arguments | tojson }}{{ '}' }}{% if not loop.last %}{{ ', ' }}{% endif %}"
    "{% endfor %}{{ ']' }}{% else %}{{ message.content }}{% endif %}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '[assistant]' }}{% endif %}"
)


def chat_with(template: str) -> Chat:
    tokenizer = load_tokenizer("embedded")
    tokenizer.chat_template = template
    return Chat(tokenizer)


def test_the_form_of_calls_is_read_off_the_template() -> None:
    own = CallFormat.of(Chat(load_tokenizer("embedded")))
    assert own == CallFormat(
        begin='<tool_call>{"name": "',
        between='", "arguments": ',
        end="}</tool_call>",
        middle='}</tool_call><tool_call>{"name": "',
    )
    assert own.trigger == "<tool_call>"
    assert CallFormat.of(chat_with(QWEN)) == CallFormat(
        '<tool_call>\n{"name": "',
        '", "arguments": ',
        "}\n</tool_call>",
        '}\n</tool_call>\n<tool_call>\n{"name": "',
    )
    llama = CallFormat.of(chat_with(LLAMA))
    assert llama == CallFormat('{"name": "', '", "parameters": ', "}", None)
    assert llama.trigger == '{"name": "'
    listed = CallFormat.of(chat_with(LISTED))
    assert listed == CallFormat('[CALLS] [{"name": "', '", "arguments": ', "}]", '}, {"name": "')


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}", "does not write the"),
        (QWEN.replace("arguments | tojson", "arguments | string"), "arguments as JSON"),
        (QWEN.replace("<tool_call>", "<|user|>"), "special tokens"),
        ("", "no chat template"),
    ],
)
def test_a_template_without_a_form_of_calls_is_refused_with_the_reason(
    template: str, why: str
) -> None:
    with pytest.raises(ChatError, match=why):
        CallFormat.of(chat_with(template))


def test_special_tokens_in_tools_and_calls_are_text() -> None:
    tokenizer = load_tokenizer("embedded")
    tool = {"type": "function", "function": {"name": "f", "description": "<|eos|>"}}
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": "<|eos|>"}}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "<|eos|>"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "<|eos|>"},
    ]
    ids = Chat(tokenizer).encode(messages, [tool])
    assert ids.count(tokenizer.eos_token_id) == 1, "the one that ends the assistant's turn"
    assert tokenizer.decode(ids).count("<|eos|>") == 5


FORMS = [
    *(CallFormat.of(chat_with(each)) for each in (QWEN, LISTED, LLAMA)),
    CallFormat("<function=", ">", "</function>", "</function><function="),  # `>` is in the middle
]
TEXTS = st.text(st.sampled_from('<tool_cal>\n{}[]"\\, :aé'), max_size=12)
NAMES = ["f", "person", "a.b-c_d"]
CALLS = st.lists(
    st.tuples(
        st.sampled_from(NAMES),
        st.dictionaries(TEXTS, TEXTS | st.integers() | st.lists(TEXTS, max_size=2), max_size=2),
    ),
    min_size=1,
    max_size=3,
)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(FORMS), TEXTS, CALLS, st.booleans(), st.data())
def test_a_text_in_any_pieces_gives_the_calls_that_it_was_made_of(
    form: CallFormat, before: str, calls: list[tuple[str, Any]], json_or: bool, data: st.DataObject
) -> None:
    if form.middle is None:
        calls = calls[:1]
    written = [f"{name}{form.between}{json.dumps(arguments)}" for name, arguments in calls]
    before = "" if json_or else before
    text = before + form.begin + (form.middle or "").join(written) + form.end
    found = in_pieces(Calls(form, NAMES, or_json=json_or), text, data)
    assert [each.text for each in found if each.kind == "name"] == [name for name, _ in calls]
    for index, (_, arguments) in enumerate(calls):
        told = "".join(
            each.text for each in found if each.kind == "arguments" and each.call == index
        )
        assert json.loads(told) == arguments
    content = "".join(each.text for each in found if each.kind == "content")
    assert content == before.rstrip()


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=30, deadline=None)
@given(st.data())
def test_json_in_place_of_calls_is_text_whatever_is_in_it(
    form: CallFormat, data: st.DataObject
) -> None:
    """Also where calls begin as it does, and where a text in it is a call."""
    call = f"{form.begin}f{form.between}{{}}{form.end}"
    for value in ({"name": "Max", "age": 1}, {"name": "f", "age": 1}, {"b": call}, [call]):
        text = json.dumps(value)
        found = in_pieces(Calls(form, NAMES, or_json=True), text, data)
        assert {each.kind for each in found} == {"content"}
        assert "".join(each.text for each in found) == text


def test_what_may_become_a_call_is_held_back_and_no_more() -> None:
    for form in FORMS:
        section = Calls(form, NAMES, or_json=True)
        assert [*section.push(f"{form.begin}per")] == []
        assert [each.kind for each in section.push(f"son{form.between}")] == ["name"]
        section = Calls(form, NAMES, or_json=True)
        text = f"{form.begin}pers"
        assert [*section.push(text), *section.push("u")] == [Piece("content", f"{text}u")]


@settings(max_examples=100, deadline=None)
@given(TEXTS, TEXTS, st.booleans(), st.data())
def test_reasoning_ends_at_its_marker_in_any_pieces(
    thought: str, answer: str, opened: bool, data: st.DataObject
) -> None:
    end = "</t>"
    thought = thought.replace("</t", "").removeprefix("<t>")
    text = ("<t>" if opened else "") + thought + end + answer
    found = in_pieces(Reasoning(end, _Plain(), "<t>"), text, data)
    shown = thought.lstrip().removeprefix("<t>") if not opened else thought
    told = "".join(each.text for each in found if each.kind == "reasoning")
    assert told in (shown, thought)
    assert "".join(each.text for each in found if each.kind == "content") == answer


class _Plain:
    def push(self, text: str) -> Iterator[Piece]:
        if text:
            yield Piece("content", text)

    def finish(self) -> Iterator[Piece]:
        return iter(())


def in_pieces(section: Section, text: str, data: st.DataObject) -> list[Piece]:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    found: list[Piece] = []
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        found += section.push(text[start:end])
    return [*found, *section.finish()]


def test_a_form_with_one_call_per_turn_has_a_grammar_of_one_call() -> None:
    several = structural_tag(FORMS[0], [("f", None)], forced=True, several=True)
    assert several["format"]["content"]["elements"][1]["type"] == "star"
    one = structural_tag(FORMS[2], [("f", None)], forced=True, several=True)
    assert "star" not in json.dumps(one)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The embedded model with a template whose calls begin as its own answers do."""
    folder = tmp_path_factory.mktemp("llama")
    with_template(folder, LLAMA)
    changes = {"nodes.bitmask.compile_limit_s": None}
    with running(overrides=changes, model=folder, pipeline="async_grammar") as found:
        yield found


def with_template(folder: Path, template: str) -> None:
    for file in Path(resolve("embedded")).iterdir():
        (folder / file.name).symlink_to(file)
    settings = folder / "tokenizer_config.json"
    said = json.loads(settings.read_text()) | {"chat_template": template}
    settings.unlink()
    settings.write_text(json.dumps(said))


def asked(service: Running, **body: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The one choice of a whole answer, and those of the chunks of the same as a stream."""
    body = {"messages": MESSAGES, "temperature": 0, "max_tokens": 96, **body}
    with service.client() as client:
        whole = client.post(CHAT, json=body)
        assert whole.status_code == 200, whole.text
        streamed = client.post(CHAT, json=body | {"stream": True})
    parts = streamed.text.removesuffix("data: [DONE]\n\n").split("\n\n")[:-1]
    chunks = [json.loads(each.removeprefix("data: ")) for each in parts]
    return whole.json()["choices"][0], [each["choices"][0] for each in chunks]


def calls_of(choices: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The calls that a client puts together from deltas."""
    found: list[dict[str, Any]] = []
    for choice in choices:
        for delta in choice["delta"].get("tool_calls", ()):
            if "id" in delta:
                assert delta["index"] == len(found)
                found.append({key: delta[key] for key in ("id", "type", "function")})
            else:
                found[delta["index"]]["function"]["arguments"] += delta["function"]["arguments"]
    return found


MAX = {"name": "Max Tanaka", "age": 61, "job": "lawyer", "city": "Warsaw"}


@pytest.mark.parametrize(
    ("choice", "finish"),
    [
        ("required", "tool_calls"),
        ({"type": "function", "function": {"name": "person"}}, "stop"),
    ],
)
def test_a_call_that_must_be_comes_whole_and_streamed(
    service: Running, choice: Any, finish: str
) -> None:
    whole, streamed = asked(service, tools=[PERSON], tool_choice=choice, parallel_tool_calls=False)
    assert whole["finish_reason"] == finish
    assert whole["message"]["content"] is None
    [call] = whole["message"]["tool_calls"]
    assert call["function"]["name"] == "person"
    assert json.loads(call["function"]["arguments"]) == MAX
    [told] = calls_of(streamed)
    assert told["function"] == call["function"]
    assert streamed[-1]["finish_reason"] == finish
    pieces = [
        delta["function"]["arguments"]
        for each in streamed
        for delta in each["delta"].get("tool_calls", ())
    ]
    assert len([each for each in pieces if each]) > 3, "arguments come as they are settled"


def test_a_named_function_is_the_one_that_is_called(service: Running) -> None:
    named = {"type": "function", "function": {"name": "place"}}
    whole, _ = asked(service, tools=[PERSON, PLACE], tool_choice=named)
    [call] = whole["message"]["tool_calls"]
    assert call["function"]["name"] == "place"
    assert json.loads(call["function"]["arguments"]).keys() == {"city"}


def test_with_auto_the_model_calls_where_it_begins_a_call(llama: Running) -> None:
    whole, streamed = asked(llama, tools=[PERSON])
    [call] = whole["message"]["tool_calls"]
    assert call["function"]["name"] == "person"
    assert json.loads(call["function"]["arguments"]).keys() == MAX.keys()
    assert whole["finish_reason"] == "tool_calls"
    assert calls_of(streamed)[0]["function"] == call["function"]


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_with_a_response_format_the_answer_is_of_it_or_a_call(
    service: Running, choice: str
) -> None:
    schema = PLACE["function"]["parameters"]
    wanted = {"type": "json_schema", "json_schema": {"name": "place", "schema": schema}}
    whole, _ = asked(service, tools=[PERSON], response_format=wanted, tool_choice=choice)
    if choice == "auto":
        assert json.loads(whole["message"]["content"]).keys() == {"city"}
    else:
        assert whole["message"]["tool_calls"][0]["function"]["name"] == "person"


@pytest.mark.parametrize("asked_for", ["json_schema", "json_object"])
def test_a_response_format_whose_answers_begin_as_calls_do_is_answered(
    llama: Running, asked_for: str
) -> None:
    wanted: dict[str, Any] = {"type": asked_for}
    if asked_for == "json_schema":
        wanted["json_schema"] = {"name": "a", "schema": PERSON["function"]["parameters"]}
    whole, streamed = asked(llama, tools=[PLACE], response_format=wanted)
    assert "tool_calls" not in whole["message"]
    assert json.loads(whole["message"]["content"])["name"] == "Max Tanaka"
    text = "".join(each["delta"].get("content", "") for each in streamed)
    assert text == whole["message"]["content"]


@pytest.mark.parametrize("choice", ["auto", "none", None])
def test_a_model_that_does_not_call_answers_in_text(service: Running, choice: Any) -> None:
    whole, streamed = asked(service, tools=[PERSON], tool_choice=choice)
    assert "tool_calls" not in whole["message"]
    assert json.loads(whole["message"]["content"]).keys() == MAX.keys()
    assert whole["finish_reason"] == "stop"
    text = "".join(each["delta"].get("content", "") for each in streamed)
    assert text == whole["message"]["content"]


def test_a_call_and_its_result_go_on_as_a_conversation(service: Running) -> None:
    whole, _ = asked(service, tools=[PERSON], tool_choice="required", parallel_tool_calls=False)
    turn = whole["message"]
    result = {"role": "tool", "tool_call_id": turn["tool_calls"][0]["id"], "content": "done"}
    told = {key: turn[key] for key in ("role", "content", "tool_calls")}
    again, _ = asked(service, messages=[*MESSAGES, told, result], tools=[PERSON], max_tokens=8)
    assert again["message"]["content"]


def test_an_output_cut_within_a_call_says_so(service: Running) -> None:
    whole, streamed = asked(service, tools=[PERSON], tool_choice="required", max_tokens=30)
    assert whole["finish_reason"] == streamed[-1]["finish_reason"] == "length"
    [call] = whole["message"]["tool_calls"]
    assert json.dumps(MAX).startswith(call["function"]["arguments"])


def now_with(parameters: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "now", "parameters": parameters}}


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"anyOf": [{"type": "object"}, {"type": "null"}], "additionalProperties": False},
        {"type": ["object", "string"], "maxProperties": 0},
    ],
    ids=["any", "or null", "or a text"],
)
def test_arguments_are_an_object_whatever_else_the_schema_allows(
    service: Running, parameters: dict[str, Any]
) -> None:
    for seed in range(2):
        hot = {"temperature": 3.0, "seed": seed, "max_tokens": 48}
        whole, streamed = asked(
            service, tools=[now_with(parameters)], tool_choice="required", **hot
        )
        found = whole["message"]["tool_calls"]
        assert [each["function"] for each in calls_of(streamed)] == [
            each["function"] for each in found
        ]
        for index, each in enumerate(found):
            if index < len(found) - 1 or whole["finish_reason"] == "tool_calls":
                assert isinstance(json.loads(each["function"]["arguments"]), dict)
            assert each["function"]["arguments"][:1] in ("", "{")


def test_an_output_that_was_cut_before_its_call_shows_nothing_of_it(service: Running) -> None:
    whole, streamed = asked(service, tools=[PERSON], tool_choice="required", max_tokens=3)
    assert whole["finish_reason"] == "length"
    assert whole["message"]["content"] == ""
    assert "tool_calls" not in whole["message"]
    assert not any(each["delta"].get("content") for each in streamed)


def test_a_call_that_a_stop_string_cut_short_is_not_why_the_answer_ended(service: Running) -> None:
    cut = {"tool_choice": "required", "stop": ["Max"]}
    whole, streamed = asked(service, tools=[PERSON], **cut)
    [call] = whole["message"]["tool_calls"]
    assert call["function"]["arguments"] == '{"name": "'
    assert whole["finish_reason"] == streamed[-1]["finish_reason"] == "stop"


def test_what_cannot_be_enforced_is_told_with_the_function_that_has_it(service: Running) -> None:
    many = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
    wrong = now_with({"type": "object", "properties": {"a": many}})
    body = {"messages": MESSAGES, "tools": [PERSON, wrong], "tool_choice": "required"}
    with service.client() as client:
        error = client.post(CHAT, json=body).json()["error"]
    assert (error["code"], error["param"]) == ("invalid_grammar", "tools")
    place = "the parameters of 'now': at #/properties/a: 'uniqueItems'"
    assert error["message"].startswith(place)
    assert "in the pipeline" in error["message"], "who asks cannot do it"


def test_what_is_wrong_in_a_response_format_is_not_blamed_on_the_tools(service: Running) -> None:
    schema = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
    wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    body = {"messages": MESSAGES, "tools": [PERSON], "response_format": wanted}
    with service.client() as client:
        error = client.post(CHAT, json=body).json()["error"]
    assert (error["code"], error["param"]) == ("invalid_grammar", "response_format")
    assert error["message"].startswith("json: at #: 'uniqueItems'")


def test_the_model_is_not_told_that_a_tool_is_strict(service: Running) -> None:
    strict = {"type": "function", "function": {**PERSON["function"], "strict": True}}
    with service.client() as client:
        told = [
            client.post(CHAT, json={"messages": MESSAGES, "tools": [each], "max_tokens": 1}).json()
            for each in (PERSON, strict)
        ]
    assert told[0]["usage"]["prompt_tokens"] == told[1]["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"tools": [PERSON, PERSON]}, "same name"),
        (
            {"tools": [PERSON, now_with({"type": "array"})]},
            "the parameters of 'now': arguments are an object, but the type is \"array\"",
        ),
        (
            {"tools": [PERSON], "tool_choice": {"type": "function", "function": {"name": "no"}}},
            "none of the tools",
        ),
        ({"tools": [PERSON], "structured_outputs": {"regex": "a"}}, "different forms"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "web"}]}, "tools[0].type"),
        ({"tool_choice": "required"}, "tool_choice needs tools"),
    ],
)
def test_tools_that_cannot_be_are_refused(
    service: Running, body: dict[str, Any], said: str
) -> None:
    with service.client() as client:
        answer = client.post(CHAT, json={"messages": MESSAGES, **body})
    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]


def test_reasoning_comes_apart_from_the_answer() -> None:
    with running(overrides={"nodes.bitmask.reasoning_end": "upon"}) as service:
        story = [{"role": "user", "content": "Write a short story about a fox named Ida."}]
        whole, streamed = asked(service, messages=story, max_tokens=12)
        message = whole["message"]
        assert message["reasoning_content"] == "Once "
        assert message["content"].startswith(" a time")
        for key in ("reasoning_content", "content"):
            assert "".join(each["delta"].get(key, "") for each in streamed) == message[key]
        with service.client() as client:
            body = {"messages": story, "max_tokens": 12, "temperature": 0}
            usage = client.post(CHAT, json=body).json()["usage"]
        assert usage["completion_tokens_details"]["reasoning_tokens"] == 3, "`Once`, ` `, `upon`"
        hidden, streamed = asked(service, messages=story, max_tokens=12, include_reasoning=False)
        assert "reasoning_content" not in hidden["message"]
        assert not any("reasoning_content" in each["delta"] for each in streamed)
        assert hidden["message"]["content"] == message["content"]


def test_a_marker_of_reasoning_that_no_text_has_is_refused_at_once() -> None:
    said = "reasoning_end: '<|user|>' has a special token"
    with (
        pytest.raises(EngineError, match=re.escape(said)),
        running(overrides={"nodes.bitmask.reasoning_end": "<|user|>"}),
    ):
        pass
