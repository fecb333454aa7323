"""The real service under the real client: in this process, and as a server that is started."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from stepweave.cli import bench_compare
from stepweave.cli.main import app
from tests.server.in_process import command_of
from tests.server.in_thread import Running, running

SMALL = ["--num-prompts", "3", "--input-len", "40", "--output-len", "6", "--json"]


@pytest.fixture(scope="module")
def service() -> Iterator[Running]:
    with running() as found:
        yield found


def bench(*arguments: str) -> Any:
    done = CliRunner().invoke(app, ["bench", *arguments])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_the_service_counts_every_token_that_the_load_asks_for(
    service: Running, endpoint: str
) -> None:
    options = ["--ignore-eos", "--warmup", "1", "--endpoint", endpoint]
    found = bench("serve", "--base-url", service.url, *SMALL, *options)
    assert (found["completed"], found["total_output_tokens"]) == (3, 18)
    assert found["usage"] == ["continuous_usage_stats", "include_usage"]
    assert found["total_input_tokens"] == pytest.approx(3 * 40, rel=0.2)


def test_prompts_of_a_run_and_schemas_are_served(service: Running, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(
        '{"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "top_k": 3}\n'
        '{"prompt": "Hi", "structured_outputs": {"choice": ["yes", "no"]}, "max_tokens": 30}\n'
        '{"prompt": "Hi", "logprobs": 2, "max_tokens": 3, "stop": "zz", "draft_tokens": 1}\n'
    )
    found = bench("serve", "--base-url", service.url, "--prompts", str(prompts), "--json")
    assert found["completed"] == 3
    (tmp_path / "s.json").write_text('{"enum": ["yes"]}')
    options = ["--schemas", str(tmp_path), "--num-prompts", "2", "--output-len", "100", "--json"]
    found = bench("serve", "--base-url", service.url, *options)
    assert found["completed"] == 2
    assert found["total_output_tokens"] < 40


@asynccontextmanager
async def in_this_process(
    command: Sequence[str], name: str, env: Mapping[str, str]
) -> AsyncIterator[str]:
    """In place of the process that is started: the command is one that `in_process` starts."""
    assert [*command] == command_of(name)
    with running(pipeline=name) as found:
        yield found.url


@pytest.mark.parametrize("process", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_an_endpoint_is_compared_with_a_server_that_is_started(
    service: Running, process: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By day it is in this process, where that takes a tenth of the time."""
    if not process:
        monkeypatch.setattr(bench_compare, "started", in_this_process)
    found = bench("compare", service.url, "quickstart", "--rounds", "1", *SMALL)
    [[a, b]] = found["rounds"]
    assert (a["completed"], b["completed"]) == (3, 3)
    assert a["total_input_tokens"] == b["total_input_tokens"]
    assert a["base_url"] == service.url != b["base_url"]
    assert 0 < b["spec_decode_accepted_tokens"] <= b["spec_decode_draft_tokens"]
