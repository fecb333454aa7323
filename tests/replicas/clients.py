"""Clients of a service with replicas, and the processes of its replicas."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.server.in_process import Process, serving

STREAMS = 16
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}


@contextmanager
def replicated(folder: Path, *arguments: str) -> Iterator[Process]:
    """In the block `stepweave serve` with these arguments runs, on a cluster of its own."""
    if importlib.util.find_spec("ray") is None:
        if os.environ.get("STEPWEAVE_REQUIRE_RAY") == "1":
            pytest.fail("ray is not installed: pip install 'stepweave[ray]'", pytrace=False)
        pytest.skip("ray is not installed")
    with serving(folder, *arguments, RAY_ADDRESS="") as found:
        yield found
        found.signal(signal.SIGTERM)
        assert found.ended() == 0


def asked(index: int, tokens: int) -> dict[str, Any]:
    """A request that lasts: drawn or greedy, with penalties, a grammar, n, or log-probabilities."""
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": f"Write a short story about fox {index}."}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
        "seed": index,
        "temperature": 0.9 if index % 2 else 0.0,
    }
    if index % 4 == 1:
        body["frequency_penalty"] = 0.5
    if index % 4 == 2:
        text = f"Extract name and age as JSON: Max Tanaka is {40 + index} years old."
        body["messages"][0]["content"] = text
        body["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "person", "schema": SCHEMA},
        }
    if index % 8 == 3:
        body["n"] = 2
    if index % 8 in (2, 5):
        body |= {"logprobs": True, "top_logprobs": 2}
    return body


@dataclass
class Answer:
    """What a client made of a stream."""

    texts: dict[int, str] = field(default_factory=dict)
    ends: dict[int, str] = field(default_factory=dict)
    logprobs: dict[int, list[Any]] = field(default_factory=dict)  # token and value, by choice
    ids: set[str] = field(default_factory=set)
    errors: list[Any] = field(default_factory=list)
    done: bool = False


async def stream(
    session: aiohttp.ClientSession,
    body: dict[str, Any],
    began: Callable[[], None] = lambda: None,
) -> Answer:
    """The whole of a stream. `began` is called when it has its first text."""
    found = Answer()
    async with session.post("/v1/chat/completions", json=body) as response:
        assert response.status == 200, await response.text()
        async for line in response.content:
            if not line.startswith(b"data: "):
                continue
            if line.strip() == b"data: [DONE]":
                found.done = True
                continue
            said = json.loads(line[6:])
            if "error" in said:
                found.errors.append(said)
                continue
            found.ids.add(said["id"])
            for choice in said["choices"]:
                index, text = choice["index"], choice["delta"].get("content") or ""
                found.texts[index] = found.texts.get(index, "") + text
                for each in (choice.get("logprobs") or {}).get("content") or ():
                    found.logprobs.setdefault(index, []).append((each["token"], each["logprob"]))
                if choice["finish_reason"] is not None:
                    found.ends[index] = choice["finish_reason"]
                if text:
                    began()
    return found


async def together(
    session: aiohttp.ClientSession, tokens: int, when_all_began: Callable[[], None] | None = None
) -> Sequence[Answer]:
    """All streams at the same time; something happens when each of them has its first text."""
    begun: set[int] = set()

    def began(index: int) -> None:
        begun.add(index)
        if len(begun) == STREAMS and when_all_began is not None:
            begun.add(-1)  # once
            when_all_began()

    return await asyncio.gather(
        *(
            stream(session, asked(index, tokens), lambda index=index: began(index))  # type: ignore[misc]
            for index in range(STREAMS)
        )
    )


def equal(found: Sequence[Answer], expected: Sequence[Answer]) -> None:
    for answer, other in zip(found, expected, strict=True):
        assert (answer.errors, answer.done) == ([], True)
        assert (answer.texts, answer.ends) == (other.texts, other.ends)
        assert answer.logprobs.keys() == other.logprobs.keys()
        for index, told in answer.logprobs.items():
            assert [token for token, _ in told] == [token for token, _ in other.logprobs[index]]
            values = [value for _, value in other.logprobs[index]]
            assert [value for _, value in told] == pytest.approx(values, abs=1e-3)
        assert len(answer.ids) == 1


def replicas(service: Process) -> set[int]:
    """The processes of its replicas: below its own, by the name that Ray gives them."""
    return _below(service.child.pid, "ray::ServeReplica:stepweave")


def followers(replica: int) -> set[int]:
    """The processes of the ranks that a replica leads."""
    return _below(replica, "stepweave.replicas.follower")


def lives(pid: int) -> bool:
    """Whether there is such a process, that has not ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def _below(root: int, said: str) -> set[int]:
    """The processes below another that have this in their command line."""
    parents: dict[int, int] = {}
    names: dict[int, str] = {}
    for each in Path("/proc").iterdir():
        if each.name.isdecimal():
            try:
                state = (each / "stat").read_text()
                names[int(each.name)] = (each / "cmdline").read_text()
            except OSError:  # it has ended
                continue
            parents[int(each.name)] = int(state.rpartition(")")[2].split()[1])

    def below(pid: int) -> bool:
        return parents.get(pid) == root or (pid in parents and below(parents[pid]))

    return {pid for pid, name in names.items() if said in name and below(pid)}


async def figure(session: aiohttp.ClientSession, name: str) -> float:
    async with session.get("/metrics") as response:
        lines = (await response.text()).splitlines()
    [line] = [each for each in lines if each.startswith(f"{name}{{")]
    return float(line.split()[-1])


async def whole_without(
    lost: int, service: Process, session: aiohttp.ClientSession, count: int = 2
) -> None:
    """Wait until there are as many replicas as there were, and the one that was lost is none."""
    while True:
        there = replicas(service)
        if await figure(session, "stepweave:replicas") == len(there) == count and lost not in there:
            return
        await asyncio.sleep(0.2)


def session_of(service: Process) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(service.url, timeout=aiohttp.ClientTimeout(total=None))
