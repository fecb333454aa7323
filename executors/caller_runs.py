"""Whether streams of a CPU work on threads of their own, found by trial.

Handing work to another thread and waiting for it takes 10 to 50 µs each way, most on virtual
machines, and two threads of Python take turns at the interpreter. Where steps are short that can
cost more than what runs at the same time saves. Then the thread that launches an op had better do
it. On a stream, work is done in the order of its launches either way. But a launch is then as long
as its work, so ops of older steps go ahead of it (`graph/answers/older_first.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from statistics import median
from time import perf_counter

from ..graph.planner.events import Actors

BEGIN = 64
"""Steps before the first trial: models warm up in them, and recordings are made."""

TRIAL = 12
"""Steps of one turn of a trial; each way has two."""

SOON = 64
"""Steps between two trials at first, and whenever one finds another way than the one before."""

KEEP = 1024
"""The most: each trial that finds what the last one found doubles the steps to the next. Batches
change all the time, and a trial runs half of its steps the slower way."""

WORTH = 0.95
"""How much shorter threads must make steps, in both turns of a trial. Batches change while it is
tried, so a smaller difference, or one turn, may be chance; and callers tell tokens earlier, with
one core less."""


class CallerRuns:
    """Asked by all streams of a run in each step. Raises nothing.

    `orders`: those of host threads while callers do the work, where they differ from the plan's.
    """

    def __init__(self, orders: Actors | None = None) -> None:
        self.orders = orders or {}
        self._lock = threading.Lock()
        self._plan = self._turns()
        self._spent: list[float] = []  # seconds from step to step of this turn
        self.now, self._left = next(self._plan)
        self.begin()

    def begin(self) -> None:
        """A run begins, with step 0."""
        self._step, self._at = -1, 0.0

    def at(self, step: int) -> bool:
        """Whether from this step on, or a later one that has begun, callers do the work."""
        if step > self._step:
            with self._lock:
                if step > self._step:
                    self._begins(step, perf_counter())
        return self.now

    def _begins(self, step: int, now: float) -> None:
        if self._step >= 0:
            self._spent.append(now - self._at)
            self._left -= 1
        self._step, self._at = step, now
        if self._left == 0:
            self.now, self._left = next(self._plan)
            self._spent.clear()

    def _turns(self) -> Iterator[tuple[bool, int]]:
        """Who does the work, and in how many steps."""
        yield False, BEGIN
        before, keep = None, SOON
        while True:
            shorter = []
            for _ in range(2):
                usual = {}
                for caller in (False, True):
                    yield caller, TRIAL
                    usual[caller] = median(self._spent[2:])  # the first may be of what was begun
                shorter.append(usual[False] <= WORTH * usual[True])
            best = not all(shorter)
            keep = min(2 * keep, KEEP) if best == before else SOON
            yield best, keep
            before = best
