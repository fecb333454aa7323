"""Masks of the first draft after what was sampled: filled on the host, heeded by drafters."""

from __future__ import annotations

import torch
from torch import Tensor

from ...backends.kernels import runs_on
from ...requests.batch import StepBatch
from ...structured import bitmask
from ...structured.grammar import MatcherFailure
from ..data import HostTokens
from .masks import MatcherTable
from .transfer import CPU, packed, pinned


def new_draft_mask(rows: int, vocab_size: int, device: torch.device = CPU) -> Tensor:
    """A pinned mask `[rows, V / 32]` int32, for the largest step."""
    return pinned(rows, bitmask.words(vocab_size), dtype=torch.int32, device=device)


def fill_next(
    batch: StepBatch, table: MatcherTable, host: HostTokens | None, buffer: Tensor
) -> Tensor | None:
    """What may follow the newest token of each sampling row, `[S, V / 32]` in `buffer[...]`.

    All ones for a row without a grammar, and for one whose grammar has failed. A dead end is no
    failure here: the request may end with this very step. Each matcher stands where it stood when
    this returns. None where no row has a grammar, or none may be offered drafts.
    """
    structured = any(row.request.structured for row in batch.sampling)  # one that resumes, too
    if host is None or not structured or not batch.draft_width:
        return None
    used = packed(buffer, batch.samples, buffer.shape[1])
    lines = used.numpy()
    lines[:] = bitmask.ALL_ALLOWED
    tokens = packed(host.tokens, batch.samples, batch.width).tolist()
    counts = host.counts[: batch.samples].tolist()
    for sample_index, row in enumerate(batch.sampling):
        uid = row.request.uid
        if not row.drafts or uid in table.failures:
            continue
        # A row that resumes has a token that its matcher has accepted before.
        newest = tokens[sample_index][: counts[sample_index]] if row.yields else []
        try:
            matcher = table.of(row)
            if matcher is None:
                continue
            taken = 0
            for token in newest:
                if not matcher.accept(token):
                    break  # the request has ended, and what it gets is discarded
                taken += 1
            else:
                matcher.fill_here(lines[sample_index])
            matcher.rollback(taken)
        except MatcherFailure as error:  # the boundary: one request's grammar, one request's error
            table.failures[uid] = str(error)
            lines[sample_index] = bitmask.ALL_ALLOWED
    return used


def permitted(logits: Tensor, allowed: Tensor | None, vocab_size: int) -> Tensor:
    """`logits[S, U]` of the V tokens that there are, `[S, V]`: −inf where `allowed[S, V / 32]`
    refuses one.

    A row whose drafter can say nothing that is allowed is left as it is: its drafts are refused
    later, and what they are drawn from must have a sum. None of `allowed`: nothing is refused.
    """
    logits = logits[:, :vocab_size]
    if allowed is None:
        return logits
    if runs_on(logits):
        from ...sampling.kernels.mask import apply_bitmask

        masked = apply_bitmask(logits, allowed)
    else:
        masked = bitmask.apply_bitmask(logits, allowed)
    nothing = masked.amax(dim=1, keepdim=True) == -torch.inf
    return torch.where(nothing, logits, masked)
