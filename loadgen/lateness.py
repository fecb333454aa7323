"""How late the client itself is: what it measures cannot be more exact than that."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from .runner import Clock

EVERY_S = 1 / 64
TOLD_FROM_MS = 5.0


class Lateness:
    """How late the event loop comes to things that are due, sampled while a load runs."""

    def __init__(self) -> None:
        self._late_s: list[float] = []

    @contextmanager
    def sampled(self, clock: Clock) -> Iterator[None]:
        """Sample in the block, in the loop that runs."""
        sampling = asyncio.create_task(self._sample(clock))
        try:
            yield
        finally:
            sampling.cancel()

    async def _sample(self, clock: Clock) -> None:
        while True:
            due_s = clock() + EVERY_S
            await asyncio.sleep(EVERY_S)
            self._late_s.append(max(0.0, clock() - due_s))

    @property
    def p99_ms(self) -> float:
        """The 99th percentile; 0 for a load too short to tell."""
        late = sorted(self._late_s)
        return late[min(len(late) - 1, int(len(late) * 0.99))] * 1e3 if late else 0.0


def lateness_note(p99_ms: float) -> str | None:
    """What to tell where it matters."""
    if p99_ms < TOLD_FROM_MS:
        return None
    return (
        f"what reads the answers was late by up to {p99_ms:.0f} ms (99th percentile), and "
        "latencies include that: the machine is busy, or the load too much for one process"
    )
