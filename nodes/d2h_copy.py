"""d2h_copy: bring sampled tokens and drafts to pinned host memory, beside the next forward."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..graph.node import OpContext
from ..requests.limits import MAX_LOGPROBS
from ..requests.request import TokenLogprob
from ..sampling.logprobs import Logprobs
from .kind import Shape
from .machine import Machine
from .sample import Sampled
from .tails import DraftTable
from .transfer import CPU, download, packed, pinned


@dataclass(frozen=True, slots=True)
class HostLogprobs:
    """Log-probabilities of up to L tokens, pinned: see `sampling.logprobs.Logprobs`.

    Alternatives are packed in lines of as many as the step computes.
    """

    logprob: Tensor
    rank: Tensor
    top_tokens: Tensor
    top_logprobs: Tensor

    @staticmethod
    def empty(lines: int, device: torch.device = CPU) -> HostLogprobs:
        return HostLogprobs(
            pinned(lines, dtype=torch.float32, device=device),
            pinned(lines, device=device),
            pinned(lines, MAX_LOGPROBS, device=device),
            pinned(lines, MAX_LOGPROBS, dtype=torch.float32, device=device),
        )

    def copy(self, found: Logprobs) -> None:
        lines, top = found.top_tokens.shape
        download(found.logprob, self.logprob[:lines])
        download(found.rank, self.rank[:lines])
        download(found.top_tokens, packed(self.top_tokens, lines, top))
        download(found.top_logprobs, packed(self.top_logprobs, lines, top))

    def of(self, line: int, token: int, top: int, computed: int) -> TokenLogprob:
        """What one line says of `token`, with `top` of the `computed` alternatives."""
        at = line * computed
        tokens = self.top_tokens.view(-1)[at : at + top]
        logprobs = self.top_logprobs.view(-1)[at : at + top]
        return TokenLogprob(
            token,
            float(self.logprob[line]),
            int(self.rank[line]),
            tuple(zip(tokens.tolist(), logprobs.tolist(), strict=True)),
        )


@dataclass(frozen=True, slots=True)
class HostSampled:
    """Sampled tokens on the host, pinned: `tokens`, `counts[S]`, `drafted[S]`.

    `tokens`, a buffer for `[S, k + 1]`, is packed in lines of the widest window W of the step.
    `logprobs`: of place j of row s in line s · W + j; `prompt`: of the prompt tokens, in the order
    of the batch. Filled where the batch asks for it.
    """

    tokens: Tensor
    counts: Tensor
    drafted: Tensor
    logprobs: HostLogprobs
    prompt: HostLogprobs

    @staticmethod
    def empty(shape: Shape, device: torch.device = CPU) -> HostSampled:
        rows, width = shape.max_rows, shape.draft_tokens + 1
        return HostSampled(
            pinned(rows, width, fill=-1, device=device),
            pinned(rows, device=device),
            pinned(rows, device=device),
            HostLogprobs.empty(rows * width, device),
            HostLogprobs.empty(shape.token_budget, device),
        )

    def copy(self, sampled: Sampled) -> None:
        rows, width = sampled.tokens.shape
        download(sampled.tokens, packed(self.tokens, rows, width))
        download(sampled.counts, self.counts[:rows])
        download(sampled.drafted, self.drafted[:rows])
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
    def empty(shape: Shape, device: torch.device = CPU) -> HostDrafts:
        return HostDrafts(
            pinned(shape.table_rows, shape.draft_tokens, fill=-1, device=device),
            pinned(shape.table_rows, 2, fill=-1, device=device),
        )


def new_sampled(machine: Machine, shape: Shape) -> HostSampled:
    return HostSampled.empty(shape, machine.device)


def new_drafts(machine: Machine, shape: Shape) -> HostDrafts:
    return HostDrafts.empty(shape, machine.device)


def run(with_drafts: bool, ctx: OpContext) -> None:
    sampled: Sampled | None = ctx.read("sampled")
    with torch.inference_mode():
        if sampled is not None:
            host: HostSampled = ctx.buffer("host_sampled")
            host.copy(sampled)
            ctx.write("host_sampled", host)
        if with_drafts:
            drafts: DraftTable = ctx.read("drafts")
            on_host: HostDrafts = ctx.buffer("host_drafts")
            download(drafts.tokens, on_host.tokens)
            download(drafts.tags, on_host.tags)
            ctx.write("host_drafts", on_host)
