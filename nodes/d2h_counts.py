"""d2h_counts: how many tokens each row got, on the host, before the drafter is launched.

Only a drafter whose batches are not padded needs it: its shapes depend on that number, so its
launch waits for the device. The plan shows what that costs; a drafter pads where no node counts.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..graph.node import OpContext
from .machine import Machine
from .sample import Sampled
from .transfer import download, pinned


def new_counts(machine: Machine, rows: int) -> Tensor:
    return pinned(rows, device=machine.device)


def run(ctx: OpContext) -> None:
    sampled: Sampled | None = ctx.read("sampled")
    if sampled is None:
        return
    counts: Tensor = ctx.buffer("host_counts")
    with torch.inference_mode():
        download(sampled.counts, counts[: len(sampled.counts)])
    ctx.write("host_counts", counts)
