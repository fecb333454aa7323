"""schedule: choose the rows of a step, and grant rows and KV blocks, before the step begins."""

from __future__ import annotations

from dataclasses import replace

from ..graph.node import OpContext
from ..requests.batch import StepBatch
from ..requests.buckets import rounded_up
from ..requests.table import RequestTable
from .machine import Machine


def in_bucket(batch: StepBatch, machine: Machine) -> StepBatch:
    """A step of nothing but drafting rows, rounded up to a size that comes up again and again."""
    if not batch or not all(row.decodes and row.forced < 0 for row in batch.rows):
        return batch
    size = rounded_up(len(batch.rows), machine.buckets)
    if size is None or size * batch.width > machine.limits.token_budget:
        return batch
    return replace(batch, padding=size - len(batch.rows))


def schedule(machine: Machine, ctx: OpContext) -> None:
    """Publish the batch; when nothing runs, waits or is in flight, let this be the last."""
    table: RequestTable = ctx.state("requests")
    table.pace()
    batch = table.schedule(ctx.step)
    if not batch and table.idle:
        ctx.stop()
    ctx.write("batch", in_bucket(batch, machine) if machine.buckets else batch)
