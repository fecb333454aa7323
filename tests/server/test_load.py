"""Many clients at once: each gets the tokens of the synchronous loop, whoever else is served.

Garbage among them is refused, and nothing but it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import httpx
import pytest

from stepweave import LLM, SamplingParams
from stepweave.requests.request import RequestOutput
from tests.server.in_thread import Running, running

HERE = {"nodes.bitmask.compile_limit_s": None}
"""Grammars are tried in this process: one of its own for it takes longer than all of this."""
SYNCHRONOUS = {
    **HERE,
    "depth": 1,
    "executor": "serial",
    "graphs": False,
    "nodes.draft": None,
    "scheduler.max_rows": 1,
}
CROWDED = {
    **HERE,
    "scheduler.max_rows": 3,
    "scheduler.num_blocks": 12,
    "scheduler.token_budget": 48,
}
"""Few rows and blocks: requests wait, and are preempted."""

PROMPTS = [
    "Write a short story about a fox named Ida.",
    "Extract name and age as JSON: Max Tanaka is a 61-year-old lawyer from Warsaw.",
    "Is this review positive or negative? What a wonderful lamp!",
    "Write the date as YYYY-MM-DD: 14 March 2019",
]
KINDS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.9, "top_k": 40, "top_p": 0.95},
    {"temperature": 0.7, "presence_penalty": 0.5, "frequency_penalty": 0.2, "min_p": 0.02},
    {"repetition_penalty": 1.2, "bad_words": ["fox"], "logit_bias": {"40": 2}},
    {"structured_outputs": {"json_object": True}},
    {"structured_outputs": {"choice": ["positive", "negative"]}},
    {"structured_outputs": {"regex": "[0-9]{4}-[0-9]{2}-[0-9]{2}"}, "temperature": 1.0},
    {"stop": [" was"], "draft_tokens": 1},
    {"ignore_eos": True, "min_tokens": 12, "priority": -1},
]


def asked(random: Random, count: int, tokens: int) -> list[dict[str, Any]]:
    """Bodies of text completions, drawn from a seed."""
    return [
        {
            "prompt": random.choice(PROMPTS),
            "max_tokens": random.randint(12, tokens),
            "temperature": 0,
            "seed": random.randint(0, 9),
            "n": random.choice([1, 1, 1, 2]),
            "return_token_ids": True,
            **random.choice(KINDS),
        }
        for _ in range(count)
    ]


def expected(llm: LLM, bodies: Sequence[Mapping[str, Any]]) -> list[list[tuple[int, ...]]]:
    """The tokens of each choice, one request after the other."""
    found = []
    for body in bodies:
        said = {key: body[key] for key in body.keys() - {"prompt", "return_token_ids"}}
        if "logit_bias" in said:
            said["logit_bias"] = {int(key): value for key, value in said["logit_bias"].items()}
        output: RequestOutput = llm.generate([body["prompt"]], SamplingParams.of(said))[0]
        assert not output.failed, output
        found.append([each.token_ids for each in output.choices or (output,)])
    return found


async def tokens_of(client: httpx.AsyncClient, body: dict[str, Any]) -> list[tuple[int, ...]]:
    answer = await client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return [tuple(each["token_ids"]) for each in answer.json()["choices"]]


async def streamed_of(client: httpx.AsyncClient, body: dict[str, Any]) -> list[tuple[int, ...]]:
    found: list[list[int]] = [[] for _ in range(body["n"])]
    async with client.stream("POST", "/v1/completions", json=body | {"stream": True}) as stream:
        async for line in stream.aiter_lines():
            if line.startswith("data: {"):
                for choice in json.loads(line.removeprefix("data: "))["choices"]:
                    found[choice["index"]] += choice.get("token_ids") or []
    return [tuple(each) for each in found]


async def leaving(client: httpx.AsyncClient, body: dict[str, Any]) -> None:
    """A client that goes when the first tokens have come."""
    long = body | {"stream": True, "ignore_eos": True, "max_tokens": 200, "stop": []}
    long.pop("structured_outputs", None)
    async with client.stream("POST", "/v1/completions", json=long) as stream:
        async for _ in stream.aiter_raw():
            return


def served_together(service: Running, bodies: Sequence[dict[str, Any]]) -> list[Any]:
    """All at once, every other streamed, and between them clients that leave."""

    async def ask_all() -> list[Any]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(
            base_url=service.url, timeout=300, limits=limits, trust_env=False
        ) as client:
            calls: list[Any] = []
            for index, body in enumerate(bodies):
                calls.append((streamed_of if index % 2 else tokens_of)(client, body))
                if index % 4 == 3:
                    calls.append(leaving(client, body))
            found = await asyncio.gather(*calls)
        return [each for each in found if each is not None]

    return asyncio.run(ask_all())


def check(depth: int, seed: int, count: int, tokens: int) -> int:
    """How often a request was preempted meanwhile."""
    bodies = asked(Random(seed), count, tokens)
    with LLM(overrides=SYNCHRONOUS) as llm:
        wanted = expected(llm, bodies)
    with running(overrides={**CROWDED, "depth": depth}) as service:
        assert served_together(service, bodies) == wanted
        assert service.llm.service.unended == 0
        return service.llm.service.totals.preemptions


@pytest.mark.sampled(1)
@pytest.mark.parametrize("depth", [1, 3])
def test_tokens_under_load_are_those_of_the_synchronous_loop(depth: int) -> None:
    check(depth, seed=depth, count=10, tokens=24)


@pytest.mark.nightly
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("seed", range(10))
def test_tokens_under_much_load_are_those_of_the_synchronous_loop(depth: int, seed: int) -> None:
    assert check(depth, seed=100 + seed, count=80, tokens=60) > 0, "it was not crowded"
