"""Prompts that are all there, on several engines: the outputs of `LLM.generate`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from stepweave import LLM, AsyncLLM, SamplingParams
from stepweave.replicas.fleet import Routed
from stepweave.replicas.hosted import about
from stepweave.replicas.offline import Batch
from stepweave.serving.prompts import Prompt
from tests.replicas.fleets import Local, after

PLAIN = {"graphs": False}
PROMPTS = [f"Write a short story about fox {index}." for index in range(12)]


@pytest.fixture(scope="module")
def llm() -> Iterator[AsyncLLM]:
    made = AsyncLLM(overrides=PLAIN)
    yield made
    asyncio.run(made.close())


def batch(llm: AsyncLLM, cut: int) -> tuple[Batch, list[Local]]:
    fleet = Routed()
    found = [Local("a", llm, after(cut)), Local("b", llm)]
    for each in found:
        fleet.add(each)
    return Batch(llm.config, fleet, about(llm), 2), found


def test_outputs_are_those_of_one_engine_in_the_order_of_the_prompts(llm: AsyncLLM) -> None:
    asked = [SamplingParams(max_tokens=10, temperature=0.8, seed=n, n=1 + n % 2) for n in range(12)]
    with LLM(overrides=PLAIN) as one:
        expected = one.generate(PROMPTS, asked)
    work, replicas = batch(llm, 25)
    found = work.generate(PROMPTS, asked)
    assert replicas[0].lost
    for output, other in zip(found, expected, strict=True):
        assert (output.id, output.prompt) == (other.id, other.prompt)
        assert (output.token_ids, output.text) == (other.token_ids, other.text)
        assert [each.text for each in output.choices] == [each.text for each in other.choices]


def test_a_prompt_that_cannot_be_served_has_an_error_and_the_others_go_on(llm: AsyncLLM) -> None:
    work, _ = batch(llm, 10**6)
    prompts: list[Prompt] = ["a", [5] * 5000, {"prompt": "b", "messages": []}]
    found = work.generate(prompts, {"max_tokens": 2})
    assert [each.error is None for each in found] == [True, False, False]
    assert [each.id for each in found] == ["0", "1", "2"]
    assert work.generate([]) == []
