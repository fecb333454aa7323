"""One load on one endpoint, from the first request to the figures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from math import inf
from time import perf_counter
from typing import Any

from .arrivals import Arrivals
from .ask import Ask
from .client import Client, Target, connected, first_answer
from .reading import Reading
from .runner import Clock, Ran, Runner, Seen, Source
from .speculation import Counts
from .summary import PERCENTILES, Summary
from .words import WordCost, words
from .workload import Workload

_WARM_UP_SEED = 1 << 40  # added to the seed: prompts that the load itself does not have
_PROBES = (32, 96)  # words
_UNCOUNTED = (
    "the server does not count tokens: input tokens are unknown, a word of a prompt is taken for "
    "a token, and a chunk for an output token"
)


@dataclass(frozen=True)
class Load:
    """What is asked, how often, and when. `warm_up` requests come before, and are not counted."""

    workload: Workload
    count: int
    arrivals: Arrivals = field(default_factory=Arrivals)
    limit: int | None = None
    warm_up: int = 0
    seed: int = 0
    percentiles: tuple[float, ...] = PERCENTILES

    def asks(self, cost: WordCost) -> list[Ask]:
        return self.workload.asks(self.count, self.seed, cost)

    def warm_up_asks(self, cost: WordCost) -> list[Ask]:
        return self.workload.asks(self.warm_up, self.seed + _WARM_UP_SEED, cost)

    def offsets(self, asks: list[Ask]) -> list[float]:
        """When each is due: by its trace, or by the arrivals."""
        due = [ask.at_s for ask in asks if ask.at_s is not None]
        return due if len(due) == len(asks) else self.arrivals.offsets(len(asks), self.seed)

    def to_json(self) -> dict[str, Any]:
        rate = self.arrivals.rate
        return {
            "num_prompts": self.count,
            "request_rate": "inf" if rate == inf else rate,
            "burstiness": self.arrivals.burstiness,
            "burst": self.arrivals.burst,
            "max_concurrency": self.limit,
            "num_warmups": self.warm_up,
            "seed": self.seed,
        }


@dataclass(frozen=True)
class Result:
    """What a load came to. `about` says what was loaded, in the words of the JSON result."""

    load: Load
    ran: Ran
    about: Mapping[str, Any]
    speculation: Counts | None = None
    notes: tuple[str, ...] = ()
    date: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    @property
    def summary(self) -> Summary:
        return Summary.of(self.ran, self.load.percentiles)

    def to_json(self, *, requests: bool) -> dict[str, Any]:
        """All figures; with `requests` what became of each as well."""
        found = {
            "date": self.date,
            "stepweave": version("stepweave"),
            **self.about,
            **self.load.to_json(),
            **self.summary.to_json(),
            **(self.speculation.to_json() if self.speculation else {}),
            "interrupted": self.ran.interrupted,
            "notes": list(self.notes),
        }
        if requests:
            zero_s = self.ran.began_s
            found["requests"] = [each.to_json(zero_s) for each in self.ran.outcomes]
        return found


class Interruptible:
    """Something that runs loads one after another, and can be told to stop by a signal."""

    def __init__(
        self, clock: Clock = perf_counter, on_progress: Callable[[Seen], None] | None = None
    ) -> None:
        self._clock = clock
        self._on_progress = on_progress or (lambda seen: None)
        self._runner: Runner | None = None
        self._task: asyncio.Task[Any] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def stop(self) -> None:
        """From a signal handler or another thread: end the load that runs, or what comes before.

        What comes before ends with `asyncio.CancelledError`.
        """
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        if self._runner is not None:
            self._runner.stop()
        elif self._task is not None:
            self._task.cancel()

    def _begin(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()

    async def _warm_up(self, source: Source, load: Load, cost: WordCost) -> None:
        """Requests that are not counted."""
        asks = load.warm_up_asks(cost)
        runner = Runner(source, limit=load.limit, clock=self._clock)
        await runner.run(asks, [0.0] * len(asks))

    async def _load(self, source: Source, load: Load, cost: WordCost) -> Ran:
        """Run the load."""
        asks = load.asks(cost)
        self._runner = Runner(
            source, limit=load.limit, clock=self._clock, on_progress=self._on_progress
        )
        try:
            return await self._runner.run(asks, load.offsets(asks))
        finally:
            self._runner = None


class ServeBench(Interruptible):
    """Loads an endpoint over HTTP."""

    async def run(self, target: Target, model: str | None, load: Load) -> Result:
        """Find the model, learn how the server counts, warm up, and run the load.

        Raises `ConfigError` where the endpoint does not answer a first request.
        """
        self._begin()
        async with connected(target, self._clock) as client:
            await client.choose_model(model)
            cost, notes = await self._word_cost(client)
            await self._warm_up(client.answer, load, cost)
            before = Counts.read(await client.metrics())
            ran = await self._load(client.answer, load, cost)
            after = Counts.read(await client.metrics())
            about = {
                "backend": "openai",
                "base_url": target.root,
                "endpoint": target.endpoint.path,
                "model_id": client.model,
                "usage": sorted(client.usage),
            }
        counted = after.since(before) if after and before else None
        return Result(load, ran, about, counted, notes)

    async def _word_cost(self, client: Client) -> tuple[WordCost, tuple[str, ...]]:
        """Two requests for one token each say how long prompts are."""
        sizes: list[tuple[int, int]] = []
        for number, count in enumerate(_PROBES):
            ask = Ask(f"first-{number}", words(count, number), max_tokens=1)
            if number == 0:
                reading = await first_answer(client, ask, self._clock)
            else:
                now_s = self._clock()
                reading = Reading(ask.name, now_s, now_s)
                await client.answer(ask, reading)
            outcome = reading.outcome()
            if outcome.prompt_tokens:
                sizes.append((count, outcome.prompt_tokens))
        if len(sizes) < 2:
            return WordCost(), (_UNCOUNTED,)
        return WordCost.between(sizes[0], sizes[1]), ()
