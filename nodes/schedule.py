"""schedule: choose the rows of a step, and grant rows and KV blocks, before the step begins."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ..graph.declare import op
from ..graph.node import OpContext
from ..graph.parameters import context, given, update
from ..requests.buckets import rounded_up
from ..requests.limits import Limits
from .kind import NodeKind
from .sizes import Sizes
from .values import BATCH, BUCKETS, LIMITS, REQUESTS, SIZES

if TYPE_CHECKING:
    from ..requests.batch import StepBatch
    from ..requests.table import RequestTable


@op(writes=BATCH, decides="the rows of the step")
def schedule(
    requests: RequestTable = update(REQUESTS),
    buckets: tuple[int, ...] = given(BUCKETS),
    limits: Limits = given(LIMITS),
    sizes: Sizes = given(SIZES),
    ctx: OpContext = context(),
) -> StepBatch:
    """The batch; when nothing runs, waits or is in flight, this step is the last."""
    requests.pace()
    batch = requests.schedule(ctx.step, sizes.draft_tokens)
    if not batch and requests.over:
        ctx.stop()
    return rounded(batch, buckets, limits.token_budget)


def rounded(batch: StepBatch, buckets: tuple[int, ...], token_budget: int) -> StepBatch:
    """A step of nothing but drafting rows, rounded up to a size that comes up again and again."""
    if not buckets or not batch or not all(r.decodes and r.forced < 0 for r in batch.rows):
        return batch
    size = rounded_up(len(batch.rows), buckets)
    if size is None or size * batch.width > token_budget:
        return batch
    return replace(batch, padding=size - len(batch.rows))


KIND = NodeKind(
    "schedule",
    "choose the rows of a step; grant request slots and KV blocks, or preempt",
    host=(schedule,),
    runs_ahead=True,
    stages="all",
)
