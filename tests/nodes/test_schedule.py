"""schedule: the batch of a step, its size rounded up, and when a run ends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepweave.nodes.schedule import rounded, schedule
from stepweave.nodes.sizes import Sizes
from stepweave.requests.batch import StepBatch
from stepweave.requests.params import SamplingParams
from stepweave.requests.table import Limits, RequestTable
from stepweave.testing.engines import tiny_request
from tests.nodes.steps import LIMITS, Context, chunk, decoding, some


def scheduled(
    table: RequestTable, ctx: Context, buckets: tuple[int, ...] = (), limits: Limits = LIMITS
) -> StepBatch:
    sizes = Sizes(draft_tokens=limits.draft_tokens)
    return some(schedule(requests=table, buckets=buckets, limits=limits, sizes=sizes, ctx=ctx))


def table_with(*prompts: list[int], max_tokens: int = 3) -> RequestTable:
    table = RequestTable(LIMITS)
    for uid, prompt in enumerate(prompts):
        table.submit(tiny_request(uid, prompt, SamplingParams(max_tokens=max_tokens), context=32))
    return table


def test_requests_that_wait_are_rows_of_the_step_with_their_prompts() -> None:
    ctx = Context(step=0)
    batch = scheduled(table_with([5, 6, 7], [8]), ctx)
    assert [(row.request.uid, row.tokens, row.start) for row in batch.rows] == [
        (0, (5, 6, 7), 0),
        (1, (8,), 0),
    ]
    assert all(row.samples for row in batch.rows)
    assert len({row.request_slot for row in batch.rows}) == 2
    assert not set(batch.rows[0].blocks) & set(batch.rows[1].blocks)
    assert (batch.step, batch.padding, ctx.stopped) == (0, None, False)


def test_with_nobody_left_the_step_is_empty_and_the_last() -> None:
    ctx = Context()
    batch = scheduled(RequestTable(LIMITS), ctx)
    assert (batch.rows, ctx.stopped) == ((), True)


def test_an_empty_step_is_not_the_last_while_a_request_is_in_flight() -> None:
    table = table_with([5, 6, 7], max_tokens=1)
    first, second = Context(0), Context(1)
    assert scheduled(table, first)
    batch = scheduled(table, second)
    assert (batch.rows, second.stopped) == ((), False), "its only token is on its way"


def test_prompts_beyond_the_token_budget_are_cut_into_chunks() -> None:
    limits = replace(LIMITS, token_budget=4)
    table = RequestTable(limits)
    params = SamplingParams(max_tokens=3)
    table.submit(tiny_request(0, [5, 6, 7, 8, 9, 10], params, context=32))
    [first] = scheduled(table, Context(0), (), limits).rows
    [second] = scheduled(table, Context(1), (), limits).rows
    assert (first.tokens, first.following, first.samples) == ((5, 6, 7, 8), 9, False)
    assert (second.tokens, second.start, second.samples) == ((9, 10), 4, True)


THREE = (decoding(0), decoding(1), decoding(2))


@pytest.mark.parametrize(
    ("rows", "buckets", "budget", "padding"),
    [
        (THREE, (1, 2, 4), 64, 1),
        (THREE[:2], (1, 2, 4), 64, 0),
        (THREE[:2], (4,), 64, 2),
        (THREE, (), 64, None),  # nothing is rounded
        (THREE, (1, 2), 64, None),  # no bucket holds them
        (THREE, (1, 2, 4), 11, None),  # four rows of three tokens are more than the budget
        (THREE, (1, 2, 4), 12, 1),
        ((), (1, 2, 4), 64, None),
        ((*THREE, chunk(3, [5, 6])), (4, 8), 64, None),  # a prompt is among them
        ((chunk(0, [5], forced=9), *THREE[1:]), (4,), 64, None),  # a resumed row is
    ],
)
def test_a_step_of_drafting_rows_alone_is_rounded_up_where_a_bucket_and_the_budget_allow(
    rows: tuple[object, ...], buckets: tuple[int, ...], budget: int, padding: int | None
) -> None:
    batch = StepBatch(7, rows)  # type: ignore[arg-type]
    found = rounded(batch, buckets, budget)
    assert found == replace(batch, padding=padding)


def test_the_rounding_is_part_of_the_node() -> None:
    table = RequestTable(LIMITS)
    for uid in range(3):
        params = SamplingParams(max_tokens=9, ignore_eos=True)
        table.submit(tiny_request(uid, [5, 6, 7], params, context=32))
    prompts = scheduled(table, Context(0), (1, 2, 4), LIMITS)
    decodes = scheduled(table, Context(1), (1, 2, 4), LIMITS)
    assert (prompts.padding, decodes.padding, decodes.padded_size) == (None, 1, 4)
