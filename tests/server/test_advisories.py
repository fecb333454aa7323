"""Advisories on servers of this field, each as an attack on ours, which fails.

A row of docs/threat-model.md names the test that belongs to it.
"""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from stepweave.configs.load import load_config
from stepweave.graph.errors import StepweaveError
from stepweave.requests.params import SamplingParams
from stepweave.server.protocol.answers import ErrorAnswer
from stepweave.server.settings import Limits, Settings
from stepweave.structured.auto_backend import AutoBackend
from stepweave.structured.compiler_process import CompilerProcess
from tests.installed import ROOT
from tests.server.in_process import serving
from tests.server.in_thread import Running, running
from tests.server.leftovers import nothing_left_in, until

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "hello"}]
STORY = {"prompt": "Write a short story.", "max_tokens": 24, "temperature": 0, "ignore_eos": True}
FIRST, SECOND = {"authorization": "Bearer first"}, {"authorization": "Bearer second"}
CACHE_BYTES = 300_000


@pytest.fixture(scope="module")
def service() -> Iterator[Running]:
    settings = Settings(
        models=("embedded",),
        api_keys=("first", "second"),
        limits=Limits(body_bytes=12 << 20, connections=40),
    )
    changes = {
        "nodes.bitmask.cache_bytes": CACHE_BYTES,
        "nodes.bitmask.compile_limit_s": 2,
        "scheduler.prefix_cache": True,
    }
    with running(settings, changes) as found:
        yield found


@pytest.fixture(scope="module")
def client(service: Running) -> Iterator[httpx.Client]:
    with service.client(headers=FIRST) as found:
        yield found


@pytest.fixture
def bystander(service: Running) -> Iterator[None]:
    """Beside the attack somebody else is served, and gets what he gets without it."""
    with service.client(headers=SECOND) as other:
        alone = other.post(TEXT, json=STORY).json()["choices"][0]["text"]
        found: list[str] = []

        def ask() -> None:
            found.append(other.post(TEXT, json=STORY).json()["choices"][0]["text"])

        asking = threading.Thread(target=ask)
        asking.start()
        yield
        asking.join()
        assert found == [alone]
        assert other.get("/health").status_code == 200
    nothing_left_in(service.llm.service)


def refused(answer: httpx.Response, status: int = 400) -> str:
    assert answer.status_code == status, answer.text
    return ErrorAnswer.model_validate_json(answer.content, strict=True).error.message


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def function(parameters: Any) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    return {"tools": tools, "tool_choice": "required"}


BROKEN: list[dict[str, Any]] = [
    {"structured_outputs": {"json": {"type": "nonsense"}}},
    {"structured_outputs": {"json": {"$ref": "#/nowhere"}}},
    {"structured_outputs": {"json": {"$ref": "https://example.org/schema"}}},
    {"structured_outputs": {"json": {"type": "string", "pattern": "(?<=a)b("}}},
    {"structured_outputs": {"regex": "(?P<x>a)(?P=x)"}},
    {"structured_outputs": {"regex": "[z-a]"}},
    {"structured_outputs": {"grammar": "root ::= missing"}},
    {"structured_outputs": {"grammar": "\x00"}},
    {"structured_outputs": {"structural_tag": {"type": "structural_tag", "format": {}}}},
    {"structured_outputs": {"choice": []}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": 3}}},
    function({"type": "object", "properties": {"a": {"type": "q"}}}),
    function({"type": "array", "items": {"$ref": "#/nowhere"}}),
]


@pytest.mark.usefixtures("bystander")
def test_an_error_of_a_grammar_ends_its_request_alone(client: httpx.Client) -> None:
    """CVE-2026-105757, GHSA-6qc9-v4r8-22xg, CVE-2025-48944: the error killed the engine."""
    for body in BROKEN:
        stream = BROKEN.index(body) % 2 == 1
        asked = {"messages": HELLO, "max_tokens": 4, "stream": stream, **body}
        refused(client.post(CHAT, json=asked))


@pytest.mark.sampled(3)
@pytest.mark.usefixtures("bystander")
@pytest.mark.parametrize("token", [-1, 1024, 2**31 - 1, 2**63 - 1, 10**30])
def test_a_token_out_of_range_reaches_no_row(client: httpx.Client, token: int) -> None:
    """PYSEC-2026-4000: an index out of range changed the logits of other requests."""
    for body in (
        {"prompt": [5, token]},
        {"prompt": [[5], [token]]},
        {"prompt": "a", "stop_token_ids": [token]},
        {"prompt": "a", "logit_bias": {str(token): 5}},
        {"prompt": "a", "logit_bias": {"5": 1, str(token): float("1e3")}},
    ):
        refused(client.post(TEXT, json={"max_tokens": 4, **body}))


@pytest.mark.usefixtures("bystander")
def test_words_that_are_forbidden_touch_no_other_request(client: httpx.Client) -> None:
    """The other half of PYSEC-2026-4000: all that a tokenizer can make of a word is in range."""
    for words in (["\x00"], ["\ud7ff", "🙂"], ["<|eos|>", "<|pad|>"], ["a"] * 128, [" "]):
        answer = client.post(TEXT, json={"prompt": "a", "max_tokens": 4, "bad_words": words})
        assert answer.status_code == 200, answer.text
    refused(client.post(TEXT, json={"prompt": "a", "bad_words": ["a"] * 129}))


def test_compiled_grammars_take_a_bounded_memory(service: Running, client: httpx.Client) -> None:
    """CVE-2025-32381, CVE-2025-29770: grammars were kept without end, in memory and on disk."""
    grammars = service.llm.service.intake._grammars
    assert grammars is not None
    backend = grammars._backend
    assert isinstance(backend, AutoBackend)
    for number in range(8):
        body = {"prompt": "a", "max_tokens": 1, "structured_outputs": {"regex": f"{number}[a-z]*"}}
        assert client.post(TEXT, json=body).status_code == 200
    assert 0 < backend._cache.nbytes <= CACHE_BYTES
    assert len(backend._cache) < 8


BLOWN_UP: list[dict[str, Any]] = [
    {"json": {"enum": [f"value {each}" for each in range(100_000)]}},
    {"json": nested(400 // 8)},
    {"json": {"$ref": "#"}},
    {
        "json": {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}]}}}
        | {"$ref": "#/$defs/a"}
    },
    {"regex": "(" * 3000 + "a" + ")" * 3000},
    {"regex": "((a{1,5000}){1,5000}){1,5000}(?=b)"},
    {"grammar": "root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000},
    {"grammar": "root ::= a\n" + "\n".join(f"a{'a' * each} ::= b" for each in range(3))},
    {"choice": ["a"] * 5000},
]


@pytest.mark.usefixtures("bystander")
def test_a_grammar_that_blows_up_is_ended_and_told(client: httpx.Client) -> None:
    """CVE-2025-58446, CVE-2026-25048, GHSA-5cmr-4px5-23pc, GHSA-rwxx-mrjm-wc2m."""
    for grammar in BLOWN_UP:
        body = {"messages": HELLO, "max_tokens": 4, "structured_outputs": grammar}
        refused(client.post(CHAT, json=body))


@pytest.mark.usefixtures("bystander")
def test_a_grammar_that_takes_too_long_is_ended(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compilation is in a process that is killed; no grammar of this size is slow any more, so
    the trial is made to say what it says when its time is over.
    """
    monkeypatch.setattr(CompilerProcess, "_exchange", lambda *_: {"ended": "time"})
    body = {"prompt": "a", "max_tokens": 4, "structured_outputs": {"regex": "never[ ]seen"}}
    assert "2 s of processor time" in refused(client.post(TEXT, json=body))


UNBOUNDED: list[tuple[str, dict[str, Any]]] = [
    (TEXT, {"prompt": "a", "n": 10**9}),
    (TEXT, {"prompt": ["a"] * 128, "n": 128}),
    (TEXT, {"prompt": ["a"] * 100_000}),
    (TEXT, {"prompt": [[5]] * 100_000}),
    (TEXT, {"prompt": "a", "stop": ["a"] * 500_000}),
    (TEXT, {"prompt": "a", "stop": "a" * 500_000}),
    (TEXT, {"prompt": "a", "stop_token_ids": [5] * 500_000}),
    (TEXT, {"prompt": "a", "logprobs": 10**6}),
    (TEXT, {"prompt": "a", "logit_bias": {str(each): 1 for each in range(1000)}}),
    (TEXT, {"prompt": "a", "max_tokens": 10**30}),
    (TEXT, {"prompt": "a", "seed": 10**300}),
    (TEXT, {f"key{each}": 1 for each in range(100_000)}),
    (CHAT, {"messages": HELLO * 100_000}),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 50_000}]}),
    (CHAT, {"messages": HELLO, "tools": function({})["tools"] * 10_000}),
    (CHAT, {"messages": HELLO, "user": "a" * 10**6}),
    ("/detokenize", {"tokens": [5] * 1_000_000}),
]


@pytest.mark.parametrize(("path", "body"), UNBOUNDED, ids=range(len(UNBOUNDED)))
def test_every_count_has_a_limit_before_anything_is_made_of_it(
    service: Running,
    client: httpx.Client,
    path: str,
    body: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """CVE-2026-34756, CVE-2026-73559, PYSEC-2026-4350, and 500,000 stop strings that took 54 s."""

    def never(*_: object, **__: object) -> None:
        raise AssertionError("something was made of it")

    monkeypatch.setattr(service.llm.service, "submit", never)
    monkeypatch.setattr(type(service.llm.tokenizer), "__call__", never)
    monkeypatch.setattr(type(service.llm.tokenizer), "decode", never)
    refused(client.post(path, json=body))


def test_a_text_that_cannot_fit_is_not_encoded(
    service: Running, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four million characters took 12 s of the tokenizer, and as many special tokens hours."""

    def never(*_: object, **__: object) -> None:
        raise AssertionError("it was encoded")

    monkeypatch.setattr(type(service.llm.tokenizer), "__call__", never)
    for text in ("ab " * 200_000, "<|user|>" * 50_000):
        for path, body in (
            (TEXT, {"prompt": text}),
            (TEXT, {"prompt": ["a", text]}),
            (CHAT, {"messages": [{"role": "user", "content": text}]}),
            ("/tokenize", {"prompt": text}),
            ("/tokenize", {"messages": [{"role": "user", "content": text}]}),
        ):
            if body.get("prompt") != ["a", text]:
                assert "characters" in refused(client.post(path, json=body)), path


DEEP = '{"a": ' * 400 + "1" + "}" * 400


@pytest.mark.parametrize(
    "arguments", [DEEP, "[" * 100_000, '{"a": "\\ud800"}', '{"a": NaN}', '{"a": ' + "9" * 5000]
)
def test_arguments_of_an_earlier_call_are_checked_as_a_body_is(
    client: httpx.Client, arguments: str
) -> None:
    """They are JSON in JSON: the depth and the characters of the body say nothing of theirs."""
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [*HELLO, {"role": "assistant", "tool_calls": [call]}]
    assert "must be the text of a JSON object" in refused(
        client.post(CHAT, json={"messages": messages})
    )


def test_more_connections_than_the_limit_are_refused_and_the_others_served(
    service: Running,
) -> None:
    """CVE-2025-48956, its other half: headers are in test_refusals.py."""
    wires = [socket.create_connection(("127.0.0.1", service.port), 60) for _ in range(60)]
    try:
        told = b""
        for wire in wires:
            wire.setblocking(False)
        for wire in wires[45:]:
            wire.setblocking(True)
            told = wire.recv(4096)
            assert told.startswith(b"HTTP/1.1 503 ")
        ErrorAnswer.model_validate_json(told.partition(b"\r\n\r\n")[2], strict=True)
    finally:
        for wire in wires:
            wire.close()
    with service.client() as client:
        # The service has yet to see that they are gone.
        until(lambda: client.get("/health").status_code == 200, "others are served")


@pytest.mark.parametrize("key", ["prompt_embeds", "prompt_logprobs", "logits_processors"])
def test_what_would_be_unpickled_or_called_is_not_offered(client: httpx.Client, key: str) -> None:
    """CVE-2025-62164 and its two successors: tensors of a request were read with `torch.load`."""
    body = {"prompt": "a", key: "gASVEAAAAAAAAACMBXBvc2l4lIwGc3lzdGVtlJOUjAR0cnVllIWUUpQu"}
    assert f"{key} is not supported" in refused(client.post(TEXT, json=body))
    assert key == "prompt_logprobs" or not hasattr(SamplingParams(), key)


def test_a_request_brings_no_template_and_no_arguments_for_one(client: httpx.Client) -> None:
    """CVE-2025-62426, PYSEC-2026-4344, PYSEC-2026-4349."""
    endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    for key, value in (
        ("chat_template", endless),
        ("chat_template_kwargs", {"chat_template": endless, "tokenize": True}),
        ("add_generation_prompt", False),
        ("continue_final_message", True),
        ("documents", [{"text": endless}]),
    ):
        for path in (CHAT, "/tokenize"):
            answer = client.post(path, json={"messages": HELLO, key: value})
            assert key in refused(answer)
    said = "{{ 7 * 7 }}{% for a in range(99999) %}{% endfor %}{{ ''.__class__ }}"
    asked = {"messages": [{"role": "user", "content": said}]}
    tokens = client.post("/tokenize", json=asked).json()["tokens"]
    text = client.post("/detokenize", json={"tokens": tokens}).json()["prompt"]
    assert said in text, "a message is text, and no template"


def test_what_is_cached_for_one_key_is_not_told_to_another(service: Running) -> None:
    """CVE-2025-46570, GHSA-rm76-4mrf-v9r8: the time of an answer told what others had asked."""
    secret = {"prompt": "The password of the vault is 81649. " * 6, "max_tokens": 1}

    def cached(key: dict[str, str]) -> int:
        with service.client(headers=key) as client:
            usage = client.post(TEXT, json=secret).json()["usage"]
        found = usage["prompt_tokens_details"]["cached_tokens"]
        assert isinstance(found, int)
        return found

    assert cached(FIRST) == 0
    assert cached(FIRST) > 0
    assert cached(SECOND) == 0
    assert cached(SECOND) > 0


@pytest.mark.parametrize(
    "given",
    ["http://169.254.169.254/latest", "../../etc/passwd", "${jndi:ldap://a}", "a\tb", "a" * 200],
)
def test_a_request_id_is_a_name_and_is_never_looked_up(
    service: Running, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CVE-2026-116176: a request id was fetched as a URL."""
    with service.client(headers=FIRST) as client:
        told = client.get("/version", headers={"x-request-id": given}).headers["x-request-id"]
    assert re.fullmatch("[0-9a-f]{24}", told)


def test_nothing_that_a_request_names_is_fetched(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CVE-2026-24779, CVE-2026-25960: a URL of an image reached the internal network."""
    asked: list[object] = []
    real = socket.getaddrinfo

    def looked_up(host: Any, *more: Any, **options: Any) -> Any:
        if host != "127.0.0.1":
            asked.append(host)
        return real(host, *more, **options)

    monkeypatch.setattr(socket, "getaddrinfo", looked_up)
    url = {"url": "http://metadata.example/secret"}
    for part in (
        {"type": "image_url", "image_url": url},
        {"type": "input_audio", "input_audio": url},
        {"type": "video_url", "video_url": url},
        {"type": "file", "file": url},
    ):
        refused(client.post(CHAT, json={"messages": [{"role": "user", "content": [part]}]}))
    schema = {"$ref": "http://metadata.example/schema.json"}
    body = {"messages": HELLO, "structured_outputs": {"json": schema}, "max_tokens": 2}
    refused(client.post(CHAT, json=body))
    assert not asked


def test_the_log_of_a_request_has_no_key_and_no_line_of_the_client(
    service: Running, caplog: pytest.LogCaptureFixture
) -> None:
    """What a client writes is a value of a JSON line, and cannot begin one."""
    from stepweave.server.logs import JsonFormatter

    forged = '/nothing%0a{"level": "info", "message": "forged"}'
    with caplog.at_level("INFO", "stepweave.access"), service.client(headers=FIRST) as client:
        client.get(forged)
        client.get("/v1/models")
    ours = [each for each in caplog.records if each.name == "stepweave.access"]
    lines = [JsonFormatter().format(each) for each in ours]
    assert lines
    for line in lines:
        assert "\n" not in line
        assert json.loads(line)["message"] == "request"
        assert "Bearer" not in line
        assert "first" not in line


def test_no_text_of_a_client_becomes_a_label(service: Running) -> None:
    """PYSEC-2026-4325: each new method was a new line of the metrics, without end."""
    with service.client(headers=FIRST) as client:
        client.get("/metrics")
        for number in range(5):
            client.request(
                "PURGE", f"/forged/{number}", headers={"x-request-id": f"forged-{number}"}
            )
            client.post(TEXT, json={"prompt": "a", "model": "forged", "user": "forged"})
            client.post(TEXT, json={"prompt": "a", "max_tokens": 1, "user": "forged"})
        told = client.get("/metrics").text
    assert "forged" not in told
    assert "PURGE" not in told


def test_a_pipeline_file_names_no_code(tmp_path: Path) -> None:
    """CVE-2026-68508, CVE-2026-106439: `_target_` in YAML was imported and called."""
    mark = tmp_path / "it ran"
    (tmp_path / "evil.py").write_text(f"open({str(mark)!r}, 'w')")
    call = f"os.system('touch {mark}')"
    for text in (
        "version: 2\nextends: async.yaml\n_target_: os.system\n",
        "version: 2\nextends: async.yaml\npolicies: {acceptance: {_target_: os.system}}\n",
        "version: 2\nextends: async.yaml\npolicies: {acceptance: evil.Evil}\n",
        "version: 2\nextends: async.yaml\nnodes: {evil: {kind: evil.run, after: sample}}\n",
        "version: 2\nextends: async.yaml\nnodes: {evil: {kind: 'evil:run', after: sample}}\n",
        "version: 2\nextends: async.yaml\nmodel: !!python/object/apply:os.system [ls]\n",
        f'version: 2\nextends: async.yaml\nmodel: {{name: "${{{call}}}"}}\nunknown: 1\n',
        "version: 2\nextends: ../../../../etc/passwd\n",
        "version: 2\n" + "a: &a [*a, *a]\n",
        "version: 2\nnodes: " + "[" * 5000,
    ):
        file = tmp_path / "pipeline.yaml"
        file.write_text(text)
        with pytest.raises(StepweaveError):
            load_config(file)
    assert not mark.exists()


@pytest.mark.nightly
def test_the_limits_hold_where_assertions_are_taken_out(tmp_path: Path) -> None:
    """`python -O`: an assertion that kept somebody out would not."""
    with (
        serving(tmp_path, "quickstart", "--api-key", "first", PYTHONOPTIMIZE="1") as process,
        httpx.Client(base_url=process.url, timeout=120, trust_env=False) as client,
    ):
        refused(client.post(TEXT, json={"prompt": "a"}), 401)
        client.headers.update(FIRST)
        for path, body in UNBOUNDED:
            refused(client.post(path, json=body))
        for grammar in BLOWN_UP:
            refused(client.post(TEXT, json={"prompt": "a", "structured_outputs": grammar}))
        refused(client.post(TEXT, json={"prompt": [5, 10**9]}))
        assert client.post(TEXT, json={"prompt": "a", "max_tokens": 2}).status_code == 200


def test_every_row_of_the_threat_model_names_tests_that_there_are() -> None:
    page = (ROOT / "docs" / "threat-model.md").read_text(encoding="utf-8")
    sources = "".join(file.read_text() for file in (ROOT / "tests").rglob("test_*.py"))
    rows = [line for line in page.splitlines() if line.startswith(("| CVE", "| PYSEC", "| GHSA"))]
    assert len(rows) == 15
    for row in rows:
        named = re.findall(r"`(test_\w+)`", row)
        assert named, row
        assert [each for each in named if f"def {each}(" not in sources] == []
