"""Bodies that nobody should send: each is refused by name, or served; none fails the service."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from stepweave.server.documents import BODIES
from stepweave.server.protocol.answers import ErrorAnswer
from stepweave.server.protocol.chat import ChatRequest
from stepweave.server.protocol.completions import CompletionRequest
from stepweave.server.protocol.responses import ResponsesRequest
from stepweave.server.protocol.tokens import DetokenizeRequest, TokenizeRequest
from tests.server.in_thread import Running

PATHS: dict[str, type[BaseModel]] = {
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
    "/v1/responses": ResponsesRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
}
assert {*PATHS.values()} == {*BODIES}
VALID: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2},
    "/v1/completions": {"prompt": "hello", "max_tokens": 2},
    "/v1/responses": {"input": "hello", "max_output_tokens": 2},
    "/tokenize": {"prompt": "hello"},
    "/detokenize": {"tokens": [5, 6]},
}
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.integers(-2, 40)
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["auto", "required", "json_object", "user", "tool", "function", "text"])
)
WORDS = ["role", "content", "type", "function", "name", "json", "regex", "choice", "arguments"]
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(WORDS) | st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.sampled_from(sorted(PATHS)), st.data())
def test_a_body_changed_at_random_is_served_or_refused_by_name(
    service: Running, path: str, data: st.DataObject
) -> None:
    body = dict(VALID[path])
    known = sorted(PATHS[path].model_fields)
    for _ in range(data.draw(st.integers(1, 3))):
        key = data.draw(st.sampled_from(known) | st.text(max_size=10))
        body[key] = data.draw(VALUES)
    with service.client() as client:
        text = json.dumps(body).encode()
        answer = client.post(path, content=text, headers={"content-type": "application/json"})
    if "text/event-stream" in answer.headers["content-type"]:
        last = answer.text.removesuffix("\n\n").rpartition("\n\n")[2]
        ending = "event: response." if path == "/v1/responses" else "data: [DONE]"
        assert last.startswith(ending)
    elif answer.status_code != 200:
        assert answer.status_code in (400, 404), answer.text
        error = ErrorAnswer.model_validate_json(answer.content).error
        assert error.message
    assert service.llm.service.alive


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.sampled_from(sorted(PATHS)), st.binary(max_size=60))
def test_bytes_that_are_no_body_are_refused(service: Running, path: str, body: bytes) -> None:
    with service.client() as client:
        answer = client.post(path, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400, answer.text
