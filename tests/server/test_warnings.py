"""What of a grammar is not enforced is said in the answer."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.server.in_thread import running

SCHEMA = {"type": "array", "contains": {"type": "integer"}, "maxItems": 2}
ASKED: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "a", "structured_outputs": {"json": SCHEMA}},
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": "a"}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}},
    },
    "/v1/responses": {
        "input": "a",
        "text": {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}},
    },
}


@pytest.fixture(scope="module")
def client() -> Any:
    lenient = {"nodes.bitmask.compile_limit_s": None, "nodes.bitmask.strict": "false"}
    with (
        running(overrides=lenient) as service,
        httpx.Client(base_url=service.url, trust_env=False, timeout=60) as found,
    ):
        yield found


@pytest.mark.parametrize("path", ASKED)
def test_a_part_of_a_schema_that_is_left_out_is_named(path: str, client: httpx.Client) -> None:
    most = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    answer = client.post(path, json={"model": "embedded", most: 8, **ASKED[path]})
    assert answer.status_code == 200, answer.text
    [warning] = answer.json()["usage"]["warnings"]
    assert "contains" in warning


def test_without_any_there_is_no_such_key(client: httpx.Client) -> None:
    answer = client.post("/v1/completions", json={"model": "embedded", "prompt": "a"})
    assert "warnings" not in answer.json()["usage"]
