"""d2h_counts: how many tokens each row got, on the host, before the drafter is launched.

Only a drafter whose batches are not padded needs it: its shapes depend on that number, so its
launch waits for the device. The plan shows what that costs; `speculation.padded` says which it is.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..graph.node import Node, Op, OpContext, Read, Value
from .kind import Built, NodeKind, NodeSpec
from .machine import Machine
from .sample import Sampled
from .transfer import download, pinned


def build(spec: NodeSpec, machine: Machine) -> Built:
    rows = spec.shape.max_rows

    def run(ctx: OpContext) -> None:
        sampled: Sampled | None = ctx.read("sampled")
        if sampled is None:
            return
        counts: Tensor = ctx.buffer("host_counts")
        with torch.inference_mode():
            download(sampled.counts, counts[: len(sampled.counts)])
        ctx.write("host_counts", counts)

    return Built(
        Node(
            spec.name,
            host=(Op(),),
            device=(Op(reads=(Read("sampled"),), writes=("host_counts",), run=run),),
            stream="copy",
        ),
        values=(
            Value(
                "host_counts",
                "pinned",
                "slots",
                nbytes=8 * rows,
                allocate=lambda: pinned(rows, device=machine.device),
            ),
        ),
    )


KIND = NodeKind(
    "d2h_counts", "copy the number of sampled tokens to the host, for the drafter", build
)
