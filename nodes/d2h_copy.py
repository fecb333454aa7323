"""d2h_copy: bring sampled tokens and drafts to pinned host memory, beside the next forward."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..graph.node import Node, Op, OpContext, Read, Value
from .kind import Built, NodeKind, NodeSpec, Shape
from .machine import Machine
from .sample import Sampled
from .tails import DraftTable


def _pinned(*shape: int) -> Tensor:
    return torch.full(shape, -1, dtype=torch.int64, pin_memory=torch.cuda.is_available())


@dataclass(frozen=True, slots=True)
class HostSampled:
    """Sampled tokens on the host: `tokens[S, k + 1]`, `counts[S]`, `drafted[S]`, pinned."""

    tokens: Tensor
    counts: Tensor
    drafted: Tensor

    @staticmethod
    def empty(shape: Shape) -> HostSampled:
        rows = shape.max_rows
        return HostSampled(_pinned(rows, shape.draft_tokens + 1), _pinned(rows), _pinned(rows))


@dataclass(frozen=True, slots=True)
class HostDrafts:
    """The draft table on the host, pinned: see `DraftTable`."""

    tokens: Tensor
    tags: Tensor

    @staticmethod
    def empty(shape: Shape) -> HostDrafts:
        return HostDrafts(_pinned(shape.max_rows, shape.draft_tokens), _pinned(shape.max_rows, 2))


def build(spec: NodeSpec, machine: Machine) -> Built:
    shape = spec.shape
    # Drafts are wanted on the host only to be checked against grammars.
    with_drafts = shape.draft_tokens > 0 and shape.structured

    def run(ctx: OpContext) -> None:
        sampled: Sampled | None = ctx.read("sampled")
        with torch.inference_mode():
            if sampled is not None:
                host: HostSampled = ctx.buffer("host_sampled")
                count = len(sampled.counts)
                host.tokens[:count].copy_(sampled.tokens, non_blocking=True)
                host.counts[:count].copy_(sampled.counts, non_blocking=True)
                host.drafted[:count].copy_(sampled.drafted, non_blocking=True)
                ctx.write("host_sampled", host)
            if with_drafts:
                drafts: DraftTable = ctx.read("drafts")
                pinned: HostDrafts = ctx.buffer("host_drafts")
                pinned.tokens.copy_(drafts.tokens, non_blocking=True)
                pinned.tags.copy_(drafts.tags, non_blocking=True)
                ctx.write("host_drafts", pinned)

    reads = [Read("sampled")] + ([Read("drafts")] if with_drafts else [])
    writes = ["host_sampled"] + (["host_drafts"] if with_drafts else [])
    values = [
        Value(
            "host_sampled",
            "pinned",
            "slots",
            nbytes=8 * shape.max_rows * (shape.draft_tokens + 3),
            allocate=lambda: HostSampled.empty(shape),
        )
    ]
    if with_drafts:
        values.append(
            Value(
                "host_drafts",
                "pinned",
                "slots",
                nbytes=8 * shape.max_rows * (shape.draft_tokens + 2),
                initial=HostDrafts.empty(shape),
                allocate=lambda: HostDrafts.empty(shape),
            )
        )
    return Built(
        Node(
            spec.name,
            host=(Op(),),
            device=(Op(reads=tuple(reads), writes=tuple(writes), run=run),),
            stream="copy",
        ),
        values=tuple(values),
    )


KIND = NodeKind("d2h_copy", "copy sampled tokens and drafts to pinned host memory", build)
