"""The engine in this process under load: the same figures, without HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from stepweave.configs.prompts import prompt_of
from stepweave.loadgen.choices import Endpoint
from stepweave.loadgen.load import Load, Result
from stepweave.loadgen.offline import offline_bench
from stepweave.loadgen.session import Session
from stepweave.loadgen.workload import GivenPrompts, RandomPrompts, UnderSchemas, Workload
from stepweave.serving.async_llm import AsyncLLM

SCHEMA = ("flag", {"enum": ["yes", "no"]})


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as running:
        yield running


@pytest.fixture(scope="module")
def llm(runner: asyncio.Runner) -> Iterator[AsyncLLM]:
    async def opened() -> AsyncLLM:
        made = AsyncLLM(pipeline="quickstart")
        made.start()
        return made

    made = runner.run(opened())
    yield made
    runner.run(made.close())


def bench(
    runner: asyncio.Runner, llm: AsyncLLM, workload: Workload, count: int, warm_up: int = 0
) -> Result:
    load = Load(workload, count, limit=3, warm_up=warm_up)
    made = offline_bench(Session(), llm, load, Endpoint.CHAT, {"ignore_eos": True}, "quickstart")
    return runner.run(made)


def test_every_token_is_counted_and_so_is_every_draft(
    runner: asyncio.Runner, llm: AsyncLLM
) -> None:
    result = bench(runner, llm, RandomPrompts(60, 9), 5, warm_up=2)
    assert (result.summary.completed, result.summary.failed) == (5, 0)
    assert result.summary.output_tokens == 5 * 9
    assert result.summary.input_tokens == pytest.approx(5 * 60, rel=0.15)
    assert result.summary.peak_concurrency == 3
    assert all(each.finish_reason == "length" for each in result.ran.outcomes)
    assert all(1 <= len(each.arrivals) <= 9 for each in result.ran.outcomes)
    assert result.speculation is not None
    assert 0 < result.speculation.accepted <= result.speculation.drafted
    assert sum(result.speculation.by_position) == result.speculation.accepted


def test_a_request_that_cannot_be_served_fails_alone(runner: asyncio.Runner, llm: AsyncLLM) -> None:
    long = "word " * 5000  # more than the model's context
    lines = [prompt_of({"prompt": prompt, "max_tokens": 2}) for prompt in ("Hi", long)]
    result = bench(runner, llm, GivenPrompts(lines), 2)
    assert [each.tokens for each in result.ran.outcomes] == [2, 0]
    assert result.ran.outcomes[0].error is None
    assert "context" in (result.ran.outcomes[1].error or "")


def test_token_ids_are_asked_as_they_are(runner: asyncio.Runner, llm: AsyncLLM) -> None:
    load = Load(GivenPrompts([prompt_of({"prompt_token_ids": [3, 0, 5], "max_tokens": 2})]), 1)
    result = runner.run(offline_bench(Session(), llm, load, Endpoint.COMPLETIONS, {}, "quickstart"))
    [outcome] = result.ran.outcomes
    assert (outcome.error, outcome.tokens) == (None, 2)
    assert result.summary.input_tokens == 3


def test_answers_follow_the_schemas(runner: asyncio.Runner, llm: AsyncLLM) -> None:
    """An answer is one of two short words, so it ends long before its largest length."""
    load = Load(UnderSchemas(RandomPrompts(40, 100), [SCHEMA]), 2)
    result = runner.run(offline_bench(Session(), llm, load, Endpoint.COMPLETIONS, {}, "quickstart"))
    assert [each.finish_reason for each in result.ran.outcomes] == ["stop", "stop"]
    assert all(each.tokens < 20 for each in result.ran.outcomes)
