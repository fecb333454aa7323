"""Copies of what a step sampled, in pinned host memory."""

from __future__ import annotations

import torch
from torch import Tensor

from ...requests.limits import MAX_LOGPROBS
from ...requests.request import TokenLogprob
from ...sampling.logprobs import Logprobs
from ..data import DraftTable, HostDrafts, HostLogprobs, HostSampled, HostTokens, Sampled
from ..sizes import Sizes
from .transfer import CPU, download, packed, pinned


def _new_logprobs(count: int, device: torch.device) -> HostLogprobs:
    return HostLogprobs(
        pinned(count, dtype=torch.float32, device=device),
        pinned(count, device=device),
        pinned(count, MAX_LOGPROBS, device=device),
        pinned(count, MAX_LOGPROBS, dtype=torch.float32, device=device),
    )


def new_sampled(sizes: Sizes, device: torch.device = CPU) -> HostSampled:
    """Buffers for the largest step."""
    rows, width = sizes.max_rows, sizes.window
    return HostSampled(
        pinned(rows, width, fill=-1, device=device),
        pinned(rows, device=device),
        pinned(rows, device=device),
        _new_logprobs(rows * width, device),
        _new_logprobs(sizes.token_budget, device),
        pinned(rows, width, device=device) if sizes.tree_depth else None,
    )


def new_drafts(sizes: Sizes, device: torch.device = CPU) -> HostDrafts:
    """A draft table without drafts."""
    return HostDrafts(
        pinned(sizes.request_slots, sizes.draft_tokens, fill=-1, device=device),
        pinned(sizes.request_slots, 2, fill=-1, device=device),
        pinned(sizes.request_slots, 3, sizes.window, device=device) if sizes.tree_depth else None,
    )


def new_tokens(sizes: Sizes, device: torch.device = CPU) -> HostTokens:
    """Buffers for the largest step."""
    return HostTokens(
        pinned(sizes.max_rows, sizes.window, fill=-1, device=device),
        pinned(sizes.max_rows, device=device),
    )


@torch.inference_mode()
def copy_sampled(sampled: Sampled, host: HostSampled) -> None:
    """Fill `host` when the stream comes to it."""
    _copy_tokens(sampled, host)
    download(sampled.drafted, host.drafted[: len(sampled.drafted)])
    if sampled.paths is not None and host.paths is not None:
        download(sampled.paths, packed(host.paths, *sampled.paths.shape))
    for found, there in ((sampled.logprobs, host.logprobs), (sampled.prompt, host.prompt)):
        if found is not None:
            _copy_logprobs(found, there)


def _copy_tokens(sampled: Sampled, host: HostSampled | HostTokens) -> None:
    rows, width = sampled.tokens.shape
    download(sampled.tokens, packed(host.tokens, rows, width))
    download(sampled.counts, host.counts[:rows])


def _copy_logprobs(found: Logprobs, host: HostLogprobs) -> None:
    count, top = found.top_tokens.shape
    download(found.logprob, host.logprob[:count])
    download(found.rank, host.rank[:count])
    download(found.top_tokens, packed(host.top_tokens, count, top))
    download(found.top_logprobs, packed(host.top_logprobs, count, top))


@torch.inference_mode()
def copy_drafts(drafts: DraftTable, host: HostDrafts) -> None:
    """Fill `host` when the stream comes to it."""
    download(drafts.tokens, host.tokens)
    download(drafts.tags, host.tags)
    if drafts.branches is not None and host.branches is not None:
        download(drafts.branches, host.branches)


@torch.inference_mode()
def copy_tokens(sampled: Sampled, host: HostTokens) -> HostTokens:
    """Fill the first lines of `host` when the stream comes to it; it returns `host`."""
    _copy_tokens(sampled, host)
    return host


@torch.inference_mode()
def copy_counts(sampled: Sampled, host: Tensor) -> Tensor:
    """Fill the first S of `host[max_rows]` when the stream comes to it; it returns `[max_rows]`."""
    download(sampled.counts, host[: len(sampled.counts)])
    return host


def logprob_of(host: HostLogprobs, index: int, token: int, top: int, computed: int) -> TokenLogprob:
    """What entry `index` says of `token`, with `top` of the `computed` alternatives."""
    at = index * computed
    tokens = host.top_tokens.view(-1)[at : at + top]
    logprobs = host.top_logprobs.view(-1)[at : at + top]
    return TokenLogprob(
        token,
        float(host.logprob[index]),
        int(host.rank[index]),
        tuple(zip(tokens.tolist(), logprobs.tolist(), strict=True)),
    )
