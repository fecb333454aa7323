"""Which lines of a drafter's first pass are real, where its batches are not padded.

A padded first pass has the shape of the target's windows and masks what was refused; nothing waits
for the host to learn how much that is. An unpadded one leaves those lines out. The host picks them
when it knows the counts, in an op that the plan makes wait for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..graph.node import OpContext
from ..requests.batch import StepBatch
from .transfer import CPU, pinned


@dataclass(frozen=True, slots=True)
class Kept:
    """`lines[L]`, pinned: the real lines of the padded pass; `query_lens`: how many of each row."""

    lines: Tensor
    query_lens: tuple[int, ...]

    @staticmethod
    def of(spans: Sequence[tuple[int, int]], buffer: Tensor) -> Kept:
        """Keep lines first … first + count − 1 of each row's span (first, count)."""
        lines = [line for first, count in spans for line in range(first, first + count)]
        buffer.numpy()[: len(lines)] = lines
        return Kept(buffer[: len(lines)], tuple(count for _, count in spans))


Spans = Callable[[StepBatch, Sequence[int]], list[tuple[int, int]]]
"""The spans to keep, given the tokens that each sampling row got."""


def new_lines(most: int, device: torch.device | None) -> Tensor:
    return pinned(most, device=device or CPU)


def run(spans: Spans, ctx: OpContext) -> None:
    batch: StepBatch = ctx.read("batch")
    counts: Tensor | None = ctx.read("host_counts")
    if not batch:
        return
    buffer: Tensor = ctx.buffer("kept")
    known = [] if counts is None else counts.numpy()[: len(batch.sampling)].tolist()
    ctx.write("kept", Kept.of(spans(batch, known), buffer))
