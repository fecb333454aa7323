"""d2h_copy: bring sampled tokens and drafts to pinned host memory, beside the next forward."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..graph.node import Node, Op, OpContext, Read, Value
from ..policies.logprobs import Logprobs
from ..requests.request import MAX_LOGPROBS, TokenLogprob
from .kind import Built, NodeKind, NodeSpec, Shape
from .machine import Machine
from .sample import Sampled
from .tails import DraftTable


def _pinned(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.full(shape, -1, dtype=dtype, pin_memory=torch.cuda.is_available())


@dataclass(frozen=True, slots=True)
class HostLogprobs:
    """Log-probabilities of up to L tokens, pinned: see `policies.logprobs.Logprobs`."""

    logprob: Tensor
    rank: Tensor
    top_tokens: Tensor
    top_logprobs: Tensor

    @staticmethod
    def empty(lines: int) -> HostLogprobs:
        return HostLogprobs(
            _pinned(lines, dtype=torch.float32),
            _pinned(lines),
            _pinned(lines, MAX_LOGPROBS),
            _pinned(lines, MAX_LOGPROBS, dtype=torch.float32),
        )

    def copy(self, found: Logprobs) -> None:
        lines, top = found.top_tokens.shape
        self.logprob[:lines].copy_(found.logprob, non_blocking=True)
        self.rank[:lines].copy_(found.rank, non_blocking=True)
        self.top_tokens[:lines, :top].copy_(found.top_tokens, non_blocking=True)
        self.top_logprobs[:lines, :top].copy_(found.top_logprobs, non_blocking=True)

    def of(self, line: int, token: int, top: int) -> TokenLogprob:
        """What one line says of `token`, with `top` alternatives."""
        tokens, logprobs = self.top_tokens[line, :top], self.top_logprobs[line, :top]
        return TokenLogprob(
            token,
            float(self.logprob[line]),
            int(self.rank[line]),
            tuple(zip(tokens.tolist(), logprobs.tolist(), strict=True)),
        )


@dataclass(frozen=True, slots=True)
class HostSampled:
    """Sampled tokens on the host, pinned: `tokens[S, k + 1]`, `counts[S]`, `drafted[S]`.

    `logprobs`: of place j of row s in line s · W + j, W being the widest window of the step;
    `prompt`: of the prompt tokens, in the order of the batch. Filled where the batch asks for it.
    """

    tokens: Tensor
    counts: Tensor
    drafted: Tensor
    logprobs: HostLogprobs
    prompt: HostLogprobs

    @staticmethod
    def empty(shape: Shape) -> HostSampled:
        rows, width = shape.max_rows, shape.draft_tokens + 1
        return HostSampled(
            _pinned(rows, width),
            _pinned(rows),
            _pinned(rows),
            HostLogprobs.empty(rows * width),
            HostLogprobs.empty(shape.token_budget),
        )

    def copy(self, sampled: Sampled) -> None:
        rows, width = sampled.tokens.shape
        self.tokens[:rows, :width].copy_(sampled.tokens, non_blocking=True)
        self.counts[:rows].copy_(sampled.counts, non_blocking=True)
        self.drafted[:rows].copy_(sampled.drafted, non_blocking=True)
        if sampled.logprobs is not None:
            self.logprobs.copy(sampled.logprobs)
        if sampled.prompt is not None:
            self.prompt.copy(sampled.prompt)


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
                host.copy(sampled)
                ctx.write("host_sampled", host)
            if with_drafts:
                drafts: DraftTable = ctx.read("drafts")
                pinned: HostDrafts = ctx.buffer("host_drafts")
                pinned.tokens.copy_(drafts.tokens, non_blocking=True)
                pinned.tags.copy_(drafts.tags, non_blocking=True)
                ctx.write("host_drafts", pinned)

    reads = [Read("sampled")] + ([Read("drafts")] if with_drafts else [])
    writes = ["host_sampled"] + (["host_drafts"] if with_drafts else [])
    logprob_bytes = 12 * (MAX_LOGPROBS + 1)
    lines = shape.max_rows * (shape.draft_tokens + 1) + shape.token_budget
    values = [
        Value(
            "host_sampled",
            "pinned",
            "slots",
            nbytes=8 * shape.max_rows * (shape.draft_tokens + 3) + logprob_bytes * lines,
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
