"""Sends the requests of a load when they are due, and gathers what becomes of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from time import perf_counter

from .ask import Ask
from .outcome import Outcome
from .reading import Reading

Source = Callable[[Ask, Reading], Awaitable[None]]  # answers an ask into its reading
Clock = Callable[[], float]
CANCELLED = "cancelled"


@dataclass(frozen=True)
class Ran:
    """The outcomes in the order of the asks; requests that were never sent have none."""

    outcomes: tuple[Outcome, ...]
    began_s: float
    ended_s: float
    interrupted: bool = False
    late_ms: float = 0.0  # how late the client itself was, at the 99th percentile

    @property
    def seconds(self) -> float:
        return self.ended_s - self.began_s


@dataclass(frozen=True)
class Seen:
    """How far a run is, each time a request begins or ends."""

    ended: int
    running: int
    failed: int
    tokens: int


class Runner:
    """One load on one source. `limit`: how many requests may be under way at once; None: all."""

    def __init__(
        self,
        source: Source,
        *,
        limit: int | None = None,
        clock: Clock = perf_counter,
        on_progress: Callable[[Seen], None] = lambda seen: None,
    ) -> None:
        self._source, self._clock, self._on_progress = source, clock, on_progress
        self._room = asyncio.Semaphore(limit) if limit is not None else None
        self._found: dict[int, Outcome] = {}
        self._running = self._failed = self._tokens = 0
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        """End the run now: requests that are under way fail as cancelled, others are not sent."""
        self._stopped.set()

    async def run(self, asks: Sequence[Ask], offsets: Sequence[float]) -> Ran:
        """Send each ask at its offset in seconds from now, or as soon as there is room."""
        began_s = self._clock()
        sending = asyncio.create_task(self._send_all(asks, offsets, began_s))
        stopped = asyncio.create_task(self._stopped.wait())
        await asyncio.wait((sending, stopped), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if interrupted := not sending.done():
            sending.cancel()
        await asyncio.gather(sending, stopped, return_exceptions=True)
        if not interrupted:
            sending.result()
        outcomes = tuple(outcome for _, outcome in sorted(self._found.items()))
        return Ran(outcomes, began_s, self._clock(), interrupted)

    async def _send_all(
        self, asks: Sequence[Ask], offsets: Sequence[float], began_s: float
    ) -> None:
        async with asyncio.TaskGroup() as tasks:
            for index, (ask, offset) in enumerate(zip(asks, offsets, strict=True)):
                due_s = began_s + offset
                if (wait_s := due_s - self._clock()) > 0:
                    await asyncio.sleep(wait_s)
                tasks.create_task(self._answer(index, ask, due_s))

    async def _answer(self, index: int, ask: Ask, due_s: float) -> None:
        async with AsyncExitStack() as room:
            if self._room is not None:
                await room.enter_async_context(self._room)
            reading = Reading(ask.name, due_s, self._clock())
            self._running += 1
            self._report()
            try:
                await self._source(ask, reading)
            except asyncio.CancelledError:
                reading.fail(CANCELLED, self._clock())
                raise
            finally:
                self._note(index, reading.outcome())

    def _note(self, index: int, outcome: Outcome) -> None:
        self._found[index] = outcome
        self._running -= 1
        self._failed += outcome.error is not None
        self._tokens += outcome.tokens
        self._report()

    def _report(self) -> None:
        self._on_progress(Seen(len(self._found), self._running, self._failed, self._tokens))
