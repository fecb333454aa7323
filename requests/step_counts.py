"""What each step of a traced run had to do with: rows, blocks of the cache, tokens, drafts."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class StepCount:
    """One step. The first numbers are of when it was scheduled, the others of its commit.

    `blocks`: KV blocks that requests hold, of `blocks_in_all`. `drafted`, `accepted`: drafts
    verified in the step. A step without a row settles nothing.
    """

    step: int
    rows: int
    waiting: int  # requests that had no row
    blocks: int
    blocks_in_all: int
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0


class StepCounts:
    """Collects the counts of one run. A run that begins again, from step 0, begins anew here."""

    def __init__(self) -> None:
        self._steps: dict[int, StepCount] = {}

    def scheduled(self, count: StepCount) -> None:
        if self._steps and count.step <= next(reversed(self._steps)):
            self._steps.clear()
        self._steps[count.step] = count

    def settled(self, step: int, tokens: int, drafted: int, accepted: int) -> None:
        """Called in order of steps, and only after `scheduled` of the same step."""
        if (count := self._steps.get(step)) is not None:
            self._steps[step] = replace(count, tokens=tokens, drafted=drafted, accepted=accepted)

    def all(self) -> tuple[StepCount, ...]:
        """Every step that had a row, in order."""
        return tuple(count for count in self._steps.values() if count.rows)
