"""What the last steps say of the plan that runs: computed when somebody asks, and not too often."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from ..graph.errors import StepweaveError
from ..views.traced import Trace

if TYPE_CHECKING:
    from ..serving.async_llm import AsyncLLM
    from ..serving.llm import LLM

STEPS = 48
"""Of so many of the last steps the figures are: computing them takes some 10 ms of a processor."""

FRESH_S = 2.0
"""So long figures are good: whoever asks again gets the same."""


@dataclass(frozen=True)
class Seen:
    """The figures of some of the last steps. `first`: the number of the first of them.

    `plan`: the name of the plan that ran them. `ended_s`: when the last of them ended, by
    `time.perf_counter`.
    """

    plan: str
    trace: Trace
    first: int
    ended_s: float


class Insight:
    """The figures of an engine's last steps; safe to ask from several threads.

    What asks waits for who is computing already, and the engine for nobody. Whoever looks on from
    an event loop does so in `turn`: so all of them together take one thread of those that also
    take requests in.
    """

    def __init__(self, llm: AsyncLLM | LLM) -> None:
        self.turn = asyncio.Lock()
        self.llm = llm
        self._lock = threading.Lock()
        self._seen: Seen | None = None
        self._until = 0.0

    def latest(self) -> Seen | None:
        """None where nothing is recorded, or too few steps in a row to judge by."""
        with self._lock:
            if monotonic() >= self._until:
                self._seen = self._look()
                self._until = monotonic() + FRESH_S * (self._seen is not None)
            return self._seen

    def _look(self) -> Seen | None:
        flight, plans = self.llm.service.flight, self.llm.plans
        found = None if flight is None else flight.stretch(plans, STEPS)
        if found is None:
            return None
        ended_s = found.report.ended_s
        if self._seen is not None and self._seen.ended_s == ended_s:
            return self._seen
        try:
            trace = Trace.of(
                plans[found.plan],
                found.report,
                counts=found.counts,
                executor=self.llm.config.executor,
            )
        except StepweaveError:
            return None
        return Seen(found.plan, trace, found.first, ended_s)
