"""Drafts that a grammar forces: found on the host in the window, taken up on the device."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from ...requests.batch import StepBatch
from ...structured.forced import ForcedTokens
from ...structured.grammar import MatcherFailure
from ..data import HostDrafts, Proposal, Sampled
from .masks import MatcherTable, drafts_of
from .transfer import packed, upload


def find_forced(
    batch: StepBatch,
    table: MatcherTable,
    drafts: HostDrafts | None,
    buffer: Tensor,
    tokens: ForcedTokens,
) -> Tensor | None:
    """What must come after each position of each window, `[S, W, L]` in `buffer[max_rows, L, L]`.

    None where no row has a grammar, or none may be offered drafts.
    """
    structured = any(row.request.structured for row in batch.sampling)  # one that resumes, too
    if not structured or not batch.draft_width:
        return None
    length = buffer.shape[2]
    used = packed(buffer, batch.samples, batch.width, length)
    lines = used.numpy()
    lines[:] = -1
    for sample_index, row in enumerate(batch.sampling):
        uid = row.request.uid
        if not row.drafts or uid in table.failures:
            continue
        try:
            matcher = table.of(row)
            if matcher is None:
                continue
            if row.yields:
                forced = tokens.in_window(matcher, drafts_of(row, table, drafts))
            else:  # it resumes, and has the token that its last window ended with
                forced = [tokens.before(matcher, row.forced)]
        except MatcherFailure as error:  # the boundary: one request's grammar, one request's error
            table.failures[uid] = str(error)
            continue
        for place, each in enumerate(forced):
            lines[sample_index, place, : min(length, len(each))] = each[:length]
    return used


def with_forced(
    proposal: Proposal | None, forced: Tensor, sampled: Sampled, width: int
) -> Proposal:
    """The proposal, with what must come after the newest token in place of what it offers there.

    `forced[S, W, L]`: what must come after each window position, its first token that of the
    position itself; −1 behind it. Drafts after the forced ones stay where the proposal has these
    too. A forced draft was drawn from nothing else.
    """
    newest = (sampled.counts - 1)[:, None]
    chains = upload(forced, sampled.tokens.device)
    chain = chains.gather(1, newest[..., None].expand(-1, 1, chains.shape[2]))[:, 0].long()
    begins = chain[:, :1] == sampled.tokens.gather(1, newest)
    chain = F.pad(chain[:, 1:], (0, max(0, width + 1 - chain.shape[1])), value=-1)[:, :width]
    is_forced = (begins & (chain >= 0)).to(torch.int64).cumprod(dim=1).bool()  # [S, k]
    count = is_forced.sum(dim=1)
    if proposal is None:
        return Proposal(chain.masked_fill(~is_forced, -1), count)
    n = proposal.tokens.shape[1]
    theirs = F.pad(proposal.tokens, (0, width - n), value=-1)[:, :width]
    meant = count.new_full((len(count),), n) if proposal.valid is None else proposal.valid
    place = torch.arange(width, device=chain.device)
    differs = is_forced & ((theirs != chain) | (place >= meant[:, None]))
    valid = torch.where(differs.any(dim=1), count, meant)
    tokens = torch.where(is_forced, chain, theirs)
    log_probs = proposal.log_probs
    if log_probs is not None:
        sure = F.pad(log_probs, (0, 0, 0, width - n), value=-torch.inf)[:, :width]
        one = torch.full_like(sure, -torch.inf).scatter_(2, chain.clamp(min=0)[..., None], 0.0)
        log_probs = torch.where(is_forced[..., None], one, sure)
    return replace(proposal, tokens=tokens, valid=valid, log_probs=log_probs)
