"""A service under faults for as long as is wanted: clients of every kind, and a fault in between.

Rounds follow each other. In each some clients ask for something, leave or talk nonsense, and one
thing goes wrong: an op fails, memory is refused, the compiling process is killed, a matcher fails.
Every request must have an answer; those who were not concerned must have the tokens that they have
alone; and what the process holds must not grow. One number says how long: rounds, not seconds, so
that a slow machine does the same.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import httpx

from stepweave.graph.node import OpContext, Run
from stepweave.serving.async_llm import AsyncLLM
from stepweave.structured.auto_backend import AutoBackend
from stepweave.testing.faults import InjectedFault, with_faults
from tests.memory import resident, settle
from tests.server.in_thread import Running
from tests.server.leftovers import Held, nothing_left_in, until

TEXT = "/v1/completions"
ASKED: tuple[dict[str, Any], ...] = (
    {"prompt": "Write a story.", "max_tokens": 20},
    {"prompt": "A list:", "max_tokens": 30, "temperature": 0.8, "seed": 4, "n": 2},
    {"prompt": "Extract:", "max_tokens": 12, "structured_outputs": {"regex": "[a-z]{3,9} [0-9]+"}},
    {"prompt": "x", "max_tokens": 25, "frequency_penalty": 0.5, "logprobs": 1},
    {"prompt": [5] * 200, "max_tokens": 5},
)


@dataclass
class Chance:
    """Faults of a plan, by chance: none, until `next` is set to how many ops go well before one."""

    next: int | None = None
    hits: int = 0

    def prepare(self, llm: AsyncLLM) -> None:
        llm.engine.plan = with_faults(llm.engine.plan, self.around, self.allocating)

    def around(self, name: str, ctx: OpContext, run: Run) -> None:
        if self.next is not None:
            self.next -= 1
            if self.next < 0:
                self.next = None
                self.hits += 1
                raise InjectedFault("on purpose")
        run(ctx)

    def allocating(self, name: str) -> None:
        if self.next == 0:
            self.next = None
            self.hits += 1
            raise MemoryError("on purpose")


@dataclass
class Soak:
    """What became of all requests so far, and what the process held after each round."""

    service: Running
    chance: Chance
    seed: int
    rounds: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    megabytes: list[float] = field(default_factory=list)
    _alone: list[list[str]] = field(default_factory=list)
    _held: Held | None = None

    def run(self, rounds: int) -> None:
        """Raises `AssertionError` where a promise is broken."""
        settle()  # what other tests have left would be gone through in every round
        self._alone = [_texts(each) for each in asyncio.run(self._ask(ASKED))]
        draw = random.Random(self.seed)
        for _ in range(rounds):
            self._round(draw)
            self.rounds += 1

    def _round(self, draw: random.Random) -> None:
        fault = draw.choice(["op", "op", "memory", "compiler", "none"])
        bodies = [draw.randrange(len(ASKED)) for _ in range(draw.randrange(2, 7))]
        leaving = draw.randrange(4)
        self._arm(fault, draw)
        found = asyncio.run(self._all(bodies, leaving, draw))
        self.chance.next = None
        for which, answer in zip(bodies, found, strict=True):
            self._judge(which, answer)
        nothing_left_in(self.service.llm.service)
        with self.service.client() as client:
            until(lambda: client.get("/health").status_code == 200, "it is well again")
        gc.collect()
        held = Held.now()
        self.megabytes.append(resident() / 1e6)
        if self._held is None:
            self._held = held
        until(lambda: not Held.now().exceeds(self._held or held, files=8), "nothing grows")

    def _arm(self, fault: str, draw: random.Random) -> None:
        service = self.service.llm.service
        if fault == "op":
            self.chance.next = draw.randrange(5, 200)
        elif fault == "memory":
            self.chance.next = 0
            service.table.leave()  # the next run asks for it
        elif fault == "compiler":
            for process in _compilers(service.intake._grammars):
                with suppress(ProcessLookupError):
                    os.killpg(process, signal.SIGKILL)

    def _judge(self, which: int, answer: httpx.Response) -> None:
        self.ended[f"{answer.status_code}"] += 1
        if answer.status_code == 200:
            assert _texts(answer) == self._alone[which]
            return
        assert answer.status_code == 500, answer.text
        assert "on purpose" in answer.json()["error"]["message"], answer.text

    async def _all(
        self, bodies: list[int], leaving: int, draw: random.Random
    ) -> list[httpx.Response]:
        asked = asyncio.create_task(self._ask([ASKED[each] for each in bodies]))
        leavers = [self._leave(draw.choice(ASKED), draw.randrange(3)) for _ in range(leaving)]
        nonsense = [self._nonsense(draw.randbytes(draw.randrange(1, 300))) for _ in range(2)]
        await asyncio.gather(*leavers, *nonsense)
        return await asked

    async def _ask(self, bodies: Any) -> list[httpx.Response]:
        async with self._client() as client:
            posts = [client.post(TEXT, json=_greedy(body)) for body in bodies]
            return list(await asyncio.gather(*posts))

    async def _leave(self, body: dict[str, Any], after: int) -> None:
        """Read a few lines of a stream, and go."""
        async with (
            self._client() as client,
            client.stream("POST", TEXT, json={**_greedy(body), "stream": True}) as answer,
        ):
            async for _ in answer.aiter_lines():
                after -= 1
                if after < 0:
                    self.ended["left"] += 1
                    return

    async def _nonsense(self, data: bytes) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.service.port)
        writer.write(data)
        writer.write_eof()
        with suppress(ConnectionError):
            await reader.read()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        self.ended["nonsense"] += 1

    def _client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.service.url, timeout=600, trust_env=False)

    def growth_mb(self) -> float:
        """By how much more the last third of the rounds held than the third before."""
        third = len(self.megabytes) // 3
        return median(self.megabytes[-third:]) - median(self.megabytes[-2 * third : -third])


def _greedy(body: dict[str, Any]) -> dict[str, Any]:
    return {"temperature": 0, "ignore_eos": "structured_outputs" not in body, **body}


def _texts(answer: httpx.Response) -> list[str]:
    return [each["text"] for each in answer.json()["choices"]]


def _compilers(grammars: Any) -> Iterator[int]:
    backend = grammars._backend
    assert isinstance(backend, AutoBackend)
    for each in backend._backends.values():
        assert each._processes is not None
        for process in each._processes._all:
            if process._process is not None:
                yield process._process.pid
