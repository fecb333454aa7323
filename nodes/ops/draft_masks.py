"""Masks of the first draft after what was sampled: filled on the host, heeded by drafters."""

from __future__ import annotations

import torch
from torch import Tensor

from ...backends.kernels import runs_on
from ...requests.batch import StepBatch
from ...structured import bitmask
from ..data import DraftMask, HostTokens
from .lines import number
from .masks import MatcherTable, failure_of, held, looked_up
from .transfer import CPU, packed, pinned, upload


class DraftMaskBuffer:
    """Pinned masks `bits`, a line of `[V / 32]` int32 to a row that has a grammar, and whose each
    is, `lines`; for the largest step.
    """

    fixed = True
    """Its tensors never move: captured graphs know it by identity."""

    def __init__(self, rows: int, vocab_size: int, device: torch.device = CPU) -> None:
        words = bitmask.words(vocab_size)
        self.bits = pinned(rows, words, dtype=torch.int32, device=device)
        self.lines = pinned(rows, device=device)


def fill_next(
    batch: StepBatch, table: MatcherTable, host: HostTokens | None, buffer: DraftMaskBuffer
) -> DraftMask | None:
    """What may follow the newest token of each row that has a grammar.

    All ones for one whose grammar has failed. A dead end is no failure here: the request may end
    with this very step. Each matcher stands where it stood when this returns. None where no row has
    a grammar, or none may be offered drafts.
    """
    # One that resumes, too.
    asked = [index for index, row in enumerate(batch.sampling) if row.request.structured]
    if host is None or not asked or not batch.draft_width:
        return None
    used = packed(buffer.bits, held(len(asked), batch), buffer.bits.shape[1])
    lines = used.numpy()
    lines[: len(asked)] = bitmask.ALL_ALLOWED
    tokens = packed(host.tokens, batch.samples, batch.width).tolist()
    counts = host.counts[: batch.samples].tolist()
    for place, sample_index in enumerate(asked):
        row = batch.sampling[sample_index]
        uid = row.request.uid
        if not row.drafts or uid in table.failures:
            continue
        # A row that resumes has a token that its matcher has accepted before.
        newest = tokens[sample_index][: counts[sample_index]] if row.yields else []
        try:
            matcher = table.of(row)
            assert matcher is not None
            taken = 0
            for token in newest:
                if not matcher.accept(token):
                    break  # the request has ended, and what it gets is discarded
                taken += 1
            else:
                matcher.fill_here(lines[place])
            matcher.rollback(taken)
        except Exception as error:  # the boundary: one request's grammar, one request's error
            table.failures[uid] = failure_of(error)
            lines[place] = bitmask.ALL_ALLOWED
    if not looked_up(len(asked), batch):
        return DraftMask(used, None)
    whose = buffer.lines[: batch.samples]
    number(asked, whose.numpy()[:, None])
    return DraftMask(used, whose)


@torch.inference_mode()
def uploaded(filled: DraftMask, device: torch.device) -> DraftMask:
    """The masks, on `device`."""
    lines = None if filled.lines is None else upload(filled.lines, device)
    return DraftMask(upload(filled.bits, device), lines)


def permitted(logits: Tensor, allowed: DraftMask | None, vocab_size: int) -> Tensor:
    """`logits[S, U]` of the V tokens that there are, `[S, V]`: −inf where `allowed` refuses one.

    A row whose drafter can say nothing that is allowed is left as it is: its drafts are refused
    later, and what they are drawn from must have a sum. None of `allowed`: nothing is refused.
    """
    logits = logits[:, :vocab_size]
    if allowed is None:
        return logits
    if runs_on(logits):
        from ...sampling.kernels.mask import apply_bitmask

        masked = apply_bitmask(logits, allowed.bits, allowed.lines)
    else:
        masked = bitmask.apply_bitmask(logits, allowed.bits, allowed.lines)
    nothing = masked.amax(dim=1, keepdim=True) == -torch.inf
    return torch.where(nothing, logits, masked)
