"""Where loads run one after another, until they are done or a signal comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter
from typing import Any

from .lateness import Lateness
from .load import Load
from .runner import Clock, Ran, Runner, Seen, Source
from .words import WordCost


class Session:
    """Runs the loads of one program, in one task. `on_progress` is told how far a load is."""

    def __init__(
        self, clock: Clock = perf_counter, on_progress: Callable[[Seen], None] | None = None
    ) -> None:
        self.clock = clock
        self._on_progress = on_progress or (lambda seen: None)
        self._runner: Runner | None = None
        self._task: asyncio.Task[Any] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def begin(self) -> None:
        """From here on `stop` stops the task that calls this."""
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()

    def stop(self) -> None:
        """From a signal handler or another thread: end the load that runs, with its figures.

        Where none runs, the task ends with `asyncio.CancelledError`.
        """
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        if self._runner is not None:
            self._runner.stop()
        elif self._task is not None:
            self._task.cancel()

    async def warm_up(self, source: Source, load: Load, cost: WordCost) -> None:
        """Requests that are not counted, all of them as soon as there is room."""
        asks = load.warm_up_asks(cost)
        runner = Runner(source, limit=load.limit, clock=self.clock)
        await runner.run(asks, [0.0] * len(asks))

    async def run(self, source: Source, load: Load, cost: WordCost) -> Ran:
        """The load itself."""
        asks = load.asks(cost)
        self._runner = Runner(
            source, limit=load.limit, clock=self.clock, on_progress=self._on_progress
        )
        lateness = Lateness()
        try:
            with lateness.sampled(self.clock):
                ran = await self._runner.run(asks, load.offsets(asks))
        finally:
            self._runner = None
        return replace(ran, late_ms=lateness.p99_ms)
