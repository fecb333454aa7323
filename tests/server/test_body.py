"""Bodies that are wrong throughout: few entries are looked at, and fewer told of."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from stepweave.requests.complaints import complaint
from stepweave.server import body
from stepweave.server.errors import ApiError
from stepweave.server.protocol.base import Body
from stepweave.server.protocol.chat import ChatRequest
from stepweave.server.protocol.completions import CompletionRequest
from stepweave.server.protocol.responses import ResponsesRequest

MANY = 5000
WRONG: dict[str, Any] = {f"key{number}": [] for number in range(MANY)}
CALLS = [{"role": "assistant", "tool_calls": [{}] * MANY}]
REASONING = [{"type": "reasoning", "content": [{}] * MANY}]
THROUGHOUT: list[tuple[type[Body], dict[str, Any]]] = [
    (CompletionRequest, {"prompt": "a", "stop_token_ids": [""] * MANY}),
    (CompletionRequest, {"prompt": "a", "stop": [""] * MANY}),
    (CompletionRequest, {"prompt": "a", "bad_words": [""] * MANY}),
    (CompletionRequest, {"prompt": "a", "dry_sequence_breakers": [""] * MANY}),
    (CompletionRequest, {"prompt": "a", "logit_bias": WRONG}),
    (CompletionRequest, {"prompt": "a", "node_settings": WRONG}),
    (CompletionRequest, {"prompt": "a", "structured_outputs": WRONG}),
    (CompletionRequest, {"prompt": "a", "structured_outputs": {"choice": [1] * MANY}}),
    (ChatRequest, {"messages": CALLS}),
    (ResponsesRequest, {"input": "a", "metadata": WRONG}),
    (ResponsesRequest, {"input": "a", "include": [""] * MANY}),
    (ResponsesRequest, {"input": REASONING}),
]


@pytest.mark.parametrize(("model", "asked"), THROUGHOUT, ids=range(len(THROUGHOUT)))
def test_of_entries_that_are_all_wrong_few_are_looked_at(
    model: type[Body], asked: dict[str, Any]
) -> None:
    """20,000 of them, in 60 KB, kept all streams waiting for 7 s."""
    with pytest.raises(ValidationError) as caught:
        model.model_validate_json(json.dumps(asked), strict=True)
    assert caught.value.error_count() <= 3


def test_a_key_of_megabytes_is_not_sent_back() -> None:
    long = "k" * 1_000_000
    for asked in (
        {"input": "a", long: 1},
        {"input": [{"role": "user", "content": [{"type": "text", "text": "a", long: 1}]}]},
        {"input": [{"role": "user", "content": [{"type": long}]}]},
        {"input": "a", "metadata": {long: 1}},
    ):
        with pytest.raises(ApiError) as caught:
            body.parsed(json.dumps(asked).encode(), ResponsesRequest)
        assert len(caught.value.body()) < 1000


def test_no_more_complaints_are_worded_than_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    worded: list[str] = []

    def noted(*given: Any, **named: Any) -> str:
        worded.append(complaint(*given, **named))
        return worded[-1]

    monkeypatch.setattr("stepweave.server.body.complaint", noted)
    asked = {"prompt": "a", **{f"key{number}": 1 for number in range(40)}}
    with pytest.raises(ApiError) as caught:
        body.parsed(json.dumps(asked).encode(), CompletionRequest)
    assert caught.value.message == "; ".join(worded)
    assert len(worded) == body.MAX_COMPLAINTS


def test_a_key_of_any_object_may_be_null_where_it_may_be_left_out() -> None:
    call = {"id": "a", "type": None, "function": {"name": "f", "arguments": "{}"}}
    chat = body.parsed(
        json.dumps(
            {
                "messages": [{"role": "assistant", "tool_calls": [call], "name": None}],
                "stream": True,
                "stream_options": {"include_usage": None, "continuous_usage_stats": None},
            }
        ).encode(),
        ChatRequest,
    )
    assert (chat.streams.include_usage, chat.streams.continuous_usage_stats) == (False, False)
    items = [{"type": None, "role": "user", "content": "a"}, {"type": "reasoning", "summary": None}]
    for reasoning in ({"effort": None}, {"summary": None}, {"effort": None, "summary": None}):
        asked = {"input": items, "reasoning": reasoning}
        found = body.parsed(json.dumps(asked).encode(), ResponsesRequest)
        assert len(found.input) == 2
    with pytest.raises(ApiError, match="messages must be a list"):
        body.parsed(b'{"messages": null}', ChatRequest)


def test_the_document_says_what_may_be_null() -> None:
    """As tests of conformance take it: what is not in the document has to be refused."""
    document = ChatRequest.model_json_schema()
    for named in ("StreamOptions", "ToolCall"):
        told = document["$defs"][named]
        for name, each in told["properties"].items():
            null = {"type": "null"} in each.get("anyOf", ())
            assert null == (name not in told["required"] if "required" in told else True), name
    usage = document["$defs"]["StreamOptions"]["properties"]["include_usage"]
    assert usage["description"].startswith("Send one more chunk")
