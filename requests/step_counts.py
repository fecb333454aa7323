"""What each step had to do with: rows, blocks of the cache, tokens, drafts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .batch import ScheduledRow


class StepCount(NamedTuple):
    """One step. The first numbers are of when it was scheduled, the others of its commit.

    `mode`: what kind of step it is, see `step_mode`. `blocks`: KV blocks that requests hold, of
    `blocks_in_all`. `idle_s`: its schedule waited so long for somebody to arrive. `drafted`,
    `accepted`: drafts verified in the step. A step without a row settles nothing.
    """

    step: int
    rows: int
    waiting: int  # requests that had no row
    blocks: int
    blocks_in_all: int
    mode: str = ""
    idle_s: float = 0.0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0


def step_mode(rows: Sequence[ScheduledRow]) -> str:
    """What a step with at least one row does, as far as costs depend on it.

    `decode`, `prefill` or `mixed`, then `drafts` if some window has any, and `grammar` if some row
    that yields tokens has one.
    """
    decoding = sum(row.decodes for row in rows)
    kind = "decode" if decoding == len(rows) else "mixed" if decoding else "prefill"
    drafts = any(row.decodes and row.window > 1 for row in rows)
    grammar = any(row.yields and row.request.structured for row in rows)
    return ", ".join([kind, *["drafts"] * drafts, *["grammar"] * grammar])


class StepCounts:
    """Collects the counts of one run. A run that begins again, from step 0, begins anew here.

    `steps`: of so many of the last steps; None: of all. One thread adds, any may read.
    """

    def __init__(self, steps: int | None = None) -> None:
        self._most = steps
        self._steps: dict[int, StepCount] = {}

    def scheduled(self, count: StepCount) -> None:
        """A step has been scheduled."""
        if self._steps and count.step <= next(reversed(self._steps)):
            self._steps = {}
        self._steps[count.step] = count
        if self._most is not None and len(self._steps) > self._most:
            del self._steps[next(iter(self._steps))]

    def settled(self, step: int, tokens: int, drafted: int, accepted: int) -> None:
        """Called in order of steps, and only after `scheduled` of the same step."""
        if (count := self._steps.get(step)) is not None:
            self._steps[step] = count._replace(tokens=tokens, drafted=drafted, accepted=accepted)

    def all(self) -> tuple[StepCount, ...]:
        """Every step that had a row, in order."""
        return tuple(count for count in list(self._steps.values()) if count.rows)
