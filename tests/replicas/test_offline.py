"""Prompts that are all there, on several engines: the outputs of `LLM.generate`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import pytest

from stepweave import LLM, AsyncLLM, SamplingParams
from stepweave.configs.prompts import prompt_of
from stepweave.replicas import completion, offline
from stepweave.replicas.errors import RayUnavailable
from stepweave.replicas.fleet import Routed
from stepweave.replicas.hosted import about
from stepweave.replicas.offline import Batch, Replicated, completions, to_its_end
from stepweave.serving.engine import EngineError
from stepweave.serving.prompts import Prompt
from tests.replicas.fleets import Local, after

PLAIN = {"graphs": False}
PROMPTS = [f"Write a short story about fox {index}." for index in range(8)]


@pytest.fixture(scope="module")
def llm() -> Iterator[AsyncLLM]:
    made = AsyncLLM(overrides=PLAIN)
    yield made
    asyncio.run(made.close())


def batch(llm: AsyncLLM, cut: int, replicas: int = 2) -> tuple[Batch, list[Local]]:
    fleet = Routed()
    found = [Local("a", llm, after(cut)), Local("b", llm)]
    for each in found:
        fleet.add(each)
    return Batch(llm.config, fleet, about(llm), replicas), found


def test_outputs_are_those_of_one_engine_in_the_order_of_the_prompts(llm: AsyncLLM) -> None:
    asked = [SamplingParams(max_tokens=10, temperature=0.8, seed=n, n=1 + n % 2) for n in range(8)]
    with LLM(overrides=PLAIN) as one:
        expected = one.generate(PROMPTS, asked)
    work, replicas = batch(llm, 20)
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


def test_where_queues_are_full_prompts_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is one engine in place of the ten that it is told of: most work finds no place."""
    monkeypatch.setattr(completion, "_LONGEST_PAUSE_S", 0.05)
    short = AsyncLLM(overrides={**PLAIN, "scheduler.max_queue": 2, "scheduler.max_rows": 2})
    try:
        work, _ = batch(short, 10**6, replicas=10)
        found = work.generate(PROMPTS, SamplingParams(max_tokens=3, temperature=0.8, n=3))
    finally:
        asyncio.run(short.close())
    assert [each.error for each in found] == [None] * len(PROMPTS)
    assert {len(each.choices) for each in found} == {3}


def test_the_completions_of_prompts_count_and_not_the_prompts(
    llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, _ = batch(llm, 10**6)
    monkeypatch.setattr(work, "_under_way", 4)
    under_way, most, one = 0, 0, work._one

    async def counted(*given: Any) -> Any:
        nonlocal under_way, most
        under_way += completions(*given[1:])
        most = max(most, under_way)
        output = await one(*given)
        under_way -= completions(*given[1:])
        return output

    monkeypatch.setattr(work, "_one", counted)
    found = work.generate(PROMPTS, SamplingParams(max_tokens=3, temperature=0.8, n=2))
    assert [each.error for each in found] == [None] * len(PROMPTS)
    assert most == 4
    [more] = work.generate("a", SamplingParams(max_tokens=2, n=5, temperature=1.0))
    assert len(more.choices) == 5, "what needs more than all places is served alone"


@pytest.mark.parametrize(
    ("prompt", "params", "number"),
    [
        ("a", None, 1),
        ([5, 6], SamplingParams(n=3, temperature=1.0), 3),
        ({"prompt": "a", "n": 4}, SamplingParams(n=3, temperature=1.0), 4),
        (prompt_of({"prompt": "a", "n": 2, "temperature": 1.0}), None, 2),
        ({"prompt": "a", "n": "many"}, None, 1),
    ],
)
def test_a_line_says_itself_how_many_completions_it_has(
    prompt: Prompt, params: SamplingParams | None, number: int
) -> None:
    assert completions(prompt, params) == number


def test_prompts_are_served_where_a_loop_runs(llm: AsyncLLM) -> None:
    async def notebook() -> list[str]:
        work, _ = batch(llm, 10**6)
        return [each.text for each in work.generate(PROMPTS[:2], {"max_tokens": 3})]

    work, _ = batch(llm, 10**6)
    expected = [each.text for each in work.generate(PROMPTS[:2], {"max_tokens": 3})]
    assert asyncio.run(notebook()) == expected


def test_who_is_interrupted_where_a_loop_runs_does_not_wait_for_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended = []

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append(True)
            raise

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    class Interrupted(ThreadPoolExecutor):
        def submit(self, work: Any, /, *given: Any, **more: Any) -> Any:
            done: Any = super().submit(work, *given, **more)
            done.result = interrupted
            return done

    monkeypatch.setattr(offline, "ThreadPoolExecutor", Interrupted)

    async def notebook(work: Coroutine[Any, Any, None]) -> None:
        to_its_end(work)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(notebook(endless()))
    assert ended == [True]


@pytest.mark.parametrize("replicas", [0, -1, 2.5, "2", None, True])
def test_a_number_of_replicas_that_is_none_is_refused_before_ray_is_asked(replicas: Any) -> None:
    with pytest.raises(EngineError, match="replicas must be a whole number of at least 1, not"):
        Replicated(replicas=replicas)


def test_replicas_that_do_not_answer_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []

    class Fleet:
        def __init__(self, *_: object) -> None: ...

        def about(self) -> None:
            raise RayUnavailable("no replica answers")

        def close(self) -> None:
            closed.append(True)

    ray: Any = ModuleType("stepweave.replicas.on_ray")
    ray.RayFleet = Fleet
    monkeypatch.setitem(sys.modules, "stepweave.replicas.on_ray", ray)
    with pytest.raises(RayUnavailable, match="no replica answers"):
        Replicated(replicas=2)
    assert closed == [True]
