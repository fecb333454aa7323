"""The scheduled batch of one step: immutable, and every row with its identity."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from .request import Request


@dataclass(frozen=True, slots=True)
class ScheduledRow:
    """One row of a step, named by (step, row, generation).

    A decode row has no `tokens`: they are on the device. A prefill row computes `tokens` from
    position `start` on. `samples`: a window of logits is wanted. `forced` ≥ 0 is the token that
    a resumed row already has; it is handed to the drafter and yields no output.
    """

    request: Request
    row: int
    generation: int
    blocks: tuple[int, ...]
    start: int = -1
    tokens: tuple[int, ...] = ()
    samples: bool = True
    forced: int = -1

    @property
    def decodes(self) -> bool:
        return self.start < 0

    @property
    def yields(self) -> bool:
        """Whether `commit` gets tokens of this row."""
        return self.samples and self.forced < 0


@dataclass(frozen=True)
class StepBatch:
    """The rows of one step in the order in which their tokens lie in the model's input."""

    step: int
    rows: tuple[ScheduledRow, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.rows)

    @cached_property
    def sampling(self) -> tuple[ScheduledRow, ...]:
        """Rows with a window of logits, in the order of `sampled`, `mask` and the copies."""
        return tuple(row for row in self.rows if row.samples)

    @cached_property
    def all_greedy(self) -> bool:
        return all(row.request.params.temperature == 0 for row in self.sampling)

    @cached_property
    def structured(self) -> bool:
        """Whether any row that yields tokens has a grammar."""
        return any(row.yields and row.request.grammar is not None for row in self.sampling)
