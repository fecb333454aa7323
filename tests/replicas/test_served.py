"""The API over replicas: answers in every form go on through the loss of a replica."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
import uvicorn

from stepweave import AsyncLLM
from stepweave.replicas.app import FIGURES, create_app
from stepweave.replicas.fleet import Routed
from stepweave.replicas.front import ManyEngines
from stepweave.replicas.hosted import about
from stepweave.server.run import configured, listening
from stepweave.server.settings import Settings
from tests.replicas.fleets import Cut, Local, after

STORY = [{"role": "user", "content": "Write a short story about a fox named Ida."}]
PERSON = [
    {
        "role": "user",
        "content": "Extract name, age, job and city as JSON: Max Tanaka is a 61-year-old lawyer "
        "from Warsaw.",
    }
]
TOOL = {
    "type": "function",
    "function": {
        "name": "person",
        "parameters": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
            "required": ["name", "age"],
            "additionalProperties": False,
        },
    },
}
SAME = {"seed": 3, "temperature": 0.8, "max_tokens": 24}
ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "reasoning": ("/v1/chat/completions", {"messages": STORY, **SAME}),
    "two completions": ("/v1/chat/completions", {"messages": STORY, "n": 2, **SAME}),
    "log-probabilities": (
        "/v1/chat/completions",
        {"messages": STORY, "logprobs": True, "top_logprobs": 2, **SAME},
    ),
    "a call": (
        "/v1/chat/completions",
        {"messages": PERSON, "tools": [TOOL], "tool_choice": "required", **SAME},
    ),
    "prompts": (
        "/v1/completions",
        {"prompt": ["One day", "A fox"], "return_token_ids": True, "stop": "and", **SAME},
    ),
    "a response": (
        "/v1/responses",
        {"input": STORY[0]["content"], "seed": 3, "temperature": 0.8, "max_output_tokens": 24},
    ),
}


@pytest.fixture(scope="module")
def llm(runner: asyncio.Runner) -> Iterator[AsyncLLM]:
    changes = {
        "nodes.bitmask.reasoning_end": "upon",
        "nodes.bitmask.compile_limit_s": None,  # no process that tries them: it takes seconds
        "graphs": False,
    }
    made = AsyncLLM(overrides=changes)
    yield made
    runner.run(made.close())


@asynccontextmanager
async def served(
    llm: AsyncLLM, *cuts: Cut
) -> AsyncGenerator[tuple[aiohttp.ClientSession, ManyEngines, list[Local]]]:
    """In the block a service answers, whose first replicas are lost at these cuts."""
    fleet = Routed()
    replicas = [Local(f"r{index}", llm, cut) for index, cut in enumerate(cuts)]
    replicas.append(Local("r9", llm))
    for each in replicas:
        fleet.add(each)
    front = ManyEngines(llm.config, fleet, about(llm))
    settings = Settings(models=("embedded",))
    config = configured(create_app(front, settings), settings.limits)
    config.load()
    bound = listening("127.0.0.1", 0)
    bound.listen()
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve(sockets=[bound]))
    url = f"http://127.0.0.1:{bound.getsockname()[1]}"
    try:
        async with aiohttp.ClientSession(url) as session:
            yield session, front, replicas
    finally:
        server.should_exit = True
        await task
        await front.close()


async def events(session: aiohttp.ClientSession, path: str, body: dict[str, Any]) -> list[Any]:
    """The events of a stream, each as an object."""
    found: list[Any] = []
    async with session.post(path, json={**body, "stream": True}) as response:
        assert response.status == 200, await response.text()
        async for line in response.content:
            if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
                found.append(json.loads(line[6:]))
    return found


OWN = {"id", "item_id", "call_id", "created", "created_at", "completed_at", "sequence_number"}
"""What differs from answer to answer, though they say the same."""

OF_THE_LAST = ("prediction_tokens", "cached_tokens")
"""Counts that a replica tells at the end: one that is lost never does."""


def joined(said: Any, into: dict[str, Any], path: str = "") -> dict[str, Any]:
    """Texts and lists of all events put together, by where they stand."""
    if isinstance(said, dict):
        own = f"{path}{said.get('type', '')}{said.get('index', '')}"
        for key, value in said.items():
            if key not in OWN:
                joined(value, into, f"{own}.{key}")
    elif isinstance(said, list) and not path.endswith((".choices", ".tool_calls", ".output")):
        into.setdefault(path, []).extend(said)
    elif isinstance(said, list):
        for each in said:
            joined(each, into, path)
    elif isinstance(said, str) and path.endswith(("delta", ".content", ".text", ".arguments")):
        into[path] = into.get(path, "") + said
    elif said is not None and not path.endswith(OF_THE_LAST):
        into[path] = said
    return into


def told(found: list[Any]) -> dict[str, Any]:
    into: dict[str, Any] = {}
    for each in found:
        joined(each, into)
    return into


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ASKED)
def test_a_stream_says_the_same_through_the_loss_of_replicas(
    llm: AsyncLLM, runner: asyncio.Runner, name: str
) -> None:
    path, body = ASKED[name]

    async def check() -> None:
        async with served(llm) as (session, _, _):
            expected = await events(session, path, body)
        async with served(llm, after(1), after(5)) as (session, front, replicas):
            found = await events(session, path, body)
            assert any(each.lost for each in replicas)
            assert front.moves >= 1
        ids = {each["id"] for each in found if "choices" in each}
        assert len(ids) <= 1, "an answer has one id, wherever it is made"
        assert _plain(told(found)) == _plain(told(expected))
        assert len(told(found)) > 4

    runner.run(check())


def _plain(said: Any) -> Any:
    """Log-probabilities to the last digits: they were computed in other batches."""
    if isinstance(said, dict):
        return {key: _plain(value) for key, value in said.items() if key not in OWN}
    if isinstance(said, list):
        return [_plain(each) for each in said]
    if isinstance(said, float):
        return round(said, 3)
    return said


def test_an_answer_in_one_piece_says_the_same_too(llm: AsyncLLM, runner: asyncio.Runner) -> None:
    path, body = ASKED["log-probabilities"]

    async def whole(*cuts: Cut) -> Any:
        async with served(llm, *cuts) as (session, _, _), session.post(path, json=body) as answer:
            assert answer.status == 200
            return await answer.json()

    async def check() -> None:
        expected, found = await whole(), await whole(after(4))
        assert _plain(found["choices"]) == _plain(expected["choices"])
        assert found["usage"]["completion_tokens"] == expected["usage"]["completion_tokens"]

    runner.run(check())


def test_what_cannot_be_served_has_the_status_that_one_engine_gives(
    llm: AsyncLLM, runner: asyncio.Runner
) -> None:
    async def check() -> None:
        async with served(llm) as (session, front, _):
            for path, body, status in (
                ("/v1/completions", {"prompt": [5] * 5000}, 400),
                ("/v1/completions", {"prompt": "a", "structured_outputs": {"regex": "("}}, 400),
                ("/v1/completions", {"prompt": "a", "settled_token_ids": [5]}, 400),
                ("/v1/chat/completions", {"messages": STORY, "model": "other"}, 404),
            ):
                async with session.post(path, json=body) as answer:
                    assert answer.status == status, await answer.text()
            assert await front.drain(10)
            async with session.post("/v1/completions", json={"prompt": "a"}) as answer:
                assert answer.status == 503
            async with session.get("/health") as answer:
                assert answer.status == 200

    runner.run(check())


def test_without_a_replica_it_is_not_healthy_and_its_figures_say_how_many_there_are(
    llm: AsyncLLM, runner: asyncio.Runner
) -> None:
    async def figures(session: aiohttp.ClientSession) -> dict[str, float]:
        async with session.get("/metrics") as answer:
            lines = (await answer.text()).splitlines()
        names = {each.name for each in FIGURES}
        parted = [each.partition("{") for each in lines]
        return {name: float(rest.split()[-1]) for name, _, rest in parted if name in names}

    async def check() -> None:
        async with served(llm, after(2)) as (session, front, _):
            assert (await figures(session))["stepweave:replicas"] == 2
            await events(session, *ASKED["a response"])
            found = await figures(session)
            assert found.keys() == {each.name for each in FIGURES}
            assert found["stepweave:replicas"] == 1
            assert found["stepweave:moved_requests_total"] >= 1
            assert found["stepweave:up"] == 1
            front.fleet.drop("r9")  # type: ignore[attr-defined]
            assert (await figures(session))["stepweave:up"] == 0
            async with session.get("/health") as answer:
                assert answer.status == 503

    runner.run(check())
