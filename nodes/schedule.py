"""schedule: choose the rows of a step, and grant rows and KV blocks, before the step begins."""

from __future__ import annotations

from ..graph.node import Node, Op, OpContext, Read, Value
from ..requests.table import RequestTable
from .kind import Built, NodeKind, NodeSpec
from .machine import Machine


def schedule(ctx: OpContext) -> None:
    """Publish the batch; when nothing runs, waits or is in flight, let this step be the last."""
    table: RequestTable = ctx.state("requests")
    table.pace()
    batch = table.schedule(ctx.step)
    if not batch and table.idle:
        ctx.stop()
    ctx.write("batch", batch)


def build(spec: NodeSpec, machine: Machine) -> Built:
    op = Op(reads=(Read("requests"),), writes=("requests", "batch"), run=schedule)
    return Built(Node(spec.name, host=(op,)), values=(Value("batch"),), states=("requests",))


KIND = NodeKind(
    "schedule", "choose the rows of a step; grant device rows and KV blocks, or preempt", build
)
