"""How many blocks each row reaches is told of each step anew."""

from __future__ import annotations

from dataclasses import replace

from stepweave.nodes.ops.staging import Staging
from stepweave.requests.batch import RequestSpec, ScheduledRow, StepBatch
from stepweave.requests.params import SamplingParams
from tests.nodes import steps

LIMITS = replace(steps.LIMITS, num_blocks=200, context_length=256, draft_tokens=3)


def row(uid: int, most: int, blocks: int, window: int) -> ScheduledRow:
    """Offered one draft fewer than its request may have."""
    first = 1 + 50 * uid
    return ScheduledRow(
        request=RequestSpec(uid, f"{uid}", SamplingParams(), 10, window=window),
        request_slot=uid,
        generation=1,
        blocks=tuple(range(first, first + blocks)),
        most=most,
        known=blocks,
        limit=256,
        narrowed=1,
        withheld=1,
    )


def step(number: int, *most: int) -> StepBatch:
    longest, *others = most
    rows = [row(0, longest, 30, window=4)]
    rows += [row(uid, each, 6, window=3) for uid, each in enumerate(others, start=1)]
    return StepBatch(number, tuple(rows))


def test_rows_that_reach_further_than_in_the_step_before_read_all_of_it() -> None:
    """The longest row is as long as before, since fewer drafts are in flight."""
    staging = Staging(LIMITS)
    assert staging.fill(step(0, 101, 15, 11)).row_blocks == (26, 4, 3)
    again = staging.fill(step(1, 101, 16, 12)).row_blocks
    assert again == Staging(LIMITS).fill(step(1, 101, 16, 12)).row_blocks == (26, 5, 4)
