"""The items of a response come to the same in any pieces, and every stream ends in order."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepweave.models.call_format import CallFormat
from stepweave.requests.increment import Increment
from stepweave.requests.request import FinishReason, RequestOutput
from stepweave.server.errors import ApiError
from stepweave.server.response_form import ResponseForm
from stepweave.server.sections import Content, Reasoning, Section
from stepweave.server.tools import Calls
from stepweave.server.usage import Usage

CALLS = CallFormat('<call>{"name": "', '", "arguments": ', "}</call>", '}, {"name": "')
ONE = '<call>{"name": "add", "arguments": {"a": 1}'
TWO = ONE + '}, {"name": "neg", "arguments": {}}</call>'
TEXTS = (
    *("", "yes", "so </think>yes", "only reasoning", "</think>", f"so </think> then {TWO}"),
    *(f"</think>{ONE}", "so </think>text <cal", "so </think>\ndata: of an event\n\ndata: x"),
)


def sections() -> Section:
    return Reasoning("</think>", Calls(CALLS, ["add", "neg"]), "<think>")


def form(make: Any = sections) -> ResponseForm:
    texts: Any = None  # no log-probabilities are asked for
    return ResponseForm({"id": "resp_1"}, Usage(3), texts, make, None)


def output(text: str, reason: FinishReason = "stop") -> RequestOutput:
    return RequestOutput("r", "", text, (), reason)


def streamed(text: str, cuts: list[int], reason: FinishReason = "stop") -> list[dict[str, Any]]:
    """The events of a text that comes in pieces."""
    told, start = form(), 0
    said = b""
    for end in [*sorted(cuts), len(text)]:
        said += told.events(0, Increment("r", 0, text[start:end], (1,)))
        start = end
    said += told.events(0, Increment("r", 0, output=output(text, reason))) + told.ending()
    return read(said)


def read(said: bytes) -> list[dict[str, Any]]:
    parts = said.decode().removesuffix("\n\n").split("\n\n")
    return [json.loads(part.partition("\ndata: ")[2]) for part in parts]


def bare(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in items]


@given(st.sampled_from(TEXTS), st.data())
def test_any_pieces_give_the_items_of_the_whole_and_deltas_add_up_to_them(
    text: str, data: st.DataObject
) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=6))
    events = streamed(text, cuts)
    final = events[-1]["response"]
    whole = json.loads(form().whole([output(text)]))
    assert bare(final["output"]) == bare(whole["output"])
    assert [event["sequence_number"] for event in events] == [*range(len(events))]
    deltas = [""] * len(final["output"])
    done: list[dict[str, Any]] = []
    for event in events:
        if event["type"].endswith(".delta"):
            deltas[event["output_index"]] += event["delta"]
        elif event["type"] == "response.output_item.done":
            assert event["output_index"] == len(done), "one item ends before the next begins"
            done.append(event["item"])
    assert done == final["output"]
    for written, item in zip(deltas, done, strict=True):
        called = item["type"] == "function_call"
        assert written == (item["arguments"] if called else item["content"][0]["text"])


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("so </think>yes", ["reasoning", "message"]),
        ("only reasoning", ["reasoning", "message"]),
        ("", ["message"]),
        (f"so </think> then {TWO}", ["reasoning", "message", "function_call", "function_call"]),
        (f"</think>{TWO}", ["function_call", "function_call"]),
    ],
)
def test_reasoning_text_and_calls_are_items_of_their_own(text: str, kinds: list[str]) -> None:
    said = json.loads(form().whole([output(text)]))
    assert [item["type"] for item in said["output"]] == kinds
    assert {item["status"] for item in said["output"]} == {"completed"}
    calls = [item for item in said["output"] if item["type"] == "function_call"]
    expected = [("add", '{"a": 1}'), ("neg", "{}")][: len(calls)]
    assert [(call["name"], call["arguments"]) for call in calls] == expected
    assert len({item["id"] for item in said["output"]}) == len(kinds)


def test_an_output_that_was_cut_short_says_so_of_itself_and_of_its_last_item() -> None:
    events = streamed(f"so </think>{ONE}", [4, 12], "length")
    assert events[-1]["type"] == "response.incomplete"
    response = events[-1]["response"]
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [item["status"] for item in response["output"]] == ["completed", "incomplete"]


def test_an_output_that_was_cut_within_its_reasoning_has_no_reasoning_that_is_complete() -> None:
    output_of = streamed("so", [1], "length")[-1]["response"]["output"]
    assert [(each["type"], each["status"]) for each in output_of] == [
        ("reasoning", "incomplete"),
        ("message", "incomplete"),
    ]


def test_a_call_that_a_stop_string_cut_short_is_not_complete() -> None:
    response = streamed('</think><call>{"name": "add", "arguments": {"a"', [20])[-1]["response"]
    assert response["status"] == "completed"
    [call] = response["output"]
    assert (call["type"], call["status"], call["arguments"]) == (
        *("function_call", "incomplete", '{"a"'),
    )


@pytest.mark.parametrize(("status", "code"), [(500, "server_error"), (400, "invalid_prompt")])
def test_a_failure_ends_the_stream_with_what_there_is(status: int, code: str) -> None:
    told = form(lambda: Content())
    said = told.events(0, Increment("r", 0, "half", (1,)))
    events = read(said + told.failed(ApiError(status, "broken")))
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds[-3:] == ["content_part.done", "output_item.done", "failed"]
    response = events[-1]["response"]
    assert response["error"] == {"code": code, "message": "broken"}
    assert (response["status"], response["output"][0]["status"]) == ("failed", "incomplete")
    before = read(form().failed(ApiError(status, "broken")))  # after a sign of life alone
    assert [event["type"] for event in before] == [
        *("response.created", "response.in_progress", "response.failed")
    ]


def test_what_the_end_of_the_service_cuts_short_has_failed() -> None:
    [*_, last] = streamed("</think>half", [], "cancelled")
    assert last["type"] == "response.failed"
    assert last["response"]["error"]["code"] == "server_error"
