"""Drafts that a grammar forces: found on the host in the window, taken up on the device."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ...requests.batch import StepBatch
from ...sampling.trees import rooted
from ...sampling.windows import DEPTH
from ...structured.forced import ForcedTokens
from ..data import HostDrafts, Proposal, Sampled
from .masks import MatcherTable, drafts_of, failure_of, parents_of
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
                window, parents = drafts_of(row, table, drafts), parents_of(row, drafts)
                forced = tokens.in_window(matcher, window, parents or range(len(window)))
            else:  # it resumes, and has the token that its last window ended with
                forced = [tokens.before(matcher, row.forced)]
        except Exception as error:  # the boundary: one request's grammar, one request's error
            table.failures[uid] = failure_of(error)
            continue
        for place, each in enumerate(forced):
            lines[sample_index, place, : min(length, len(each))] = each[:length]
    return used


def with_forced(
    proposal: Proposal | None, forced: Tensor, sampled: Sampled, width: int, *, trees: bool = False
) -> Proposal:
    """The proposal, with what must come after the newest token in place of what it offers there.

    `forced[S, W, L]`: what must come after each window position, its first token that of the
    position itself; −1 behind it. Drafts after the forced ones stay where the proposal has these
    too. A forced draft was drawn from nothing else. `trees`: drafts are a tree.
    """
    last = (sampled.counts - 1)[:, None]
    newest = last if sampled.paths is None else sampled.paths.gather(1, last)
    chains = upload(forced, sampled.tokens.device)
    chain = chains.gather(1, newest[..., None].expand(-1, 1, chains.shape[2]))[:, 0].long()
    begins = chain[:, :1] == sampled.tokens.gather(1, last)
    chain = F.pad(chain[:, 1:], (0, max(0, width + 1 - chain.shape[1])), value=-1)[:, :width]
    is_forced = (begins & (chain >= 0)).to(torch.int64).cumprod(dim=1).bool()  # [S, k]
    count = is_forced.sum(dim=1)
    if proposal is None:
        alone = chain.masked_fill(~is_forced, -1)
        return Proposal(alone, count, branches=_line(chain) if trees else None)
    n = proposal.tokens.shape[1]
    theirs = F.pad(proposal.tokens, (0, width - n), value=-1)[:, :width]
    meant = count.new_full((len(count),), n) if proposal.valid is None else proposal.valid
    place = torch.arange(width, device=chain.device)
    branches = proposal.branches
    if branches is None:
        differs = is_forced & ((theirs != chain) | (place >= meant[:, None]))
        has_all, sure = ~differs.any(dim=1), is_forced
        tokens = torch.where(is_forced, chain, theirs)
    else:
        branches = F.pad(branches, (0, width - n))[:, :, : width + 1]
        there = theirs.masked_fill(place >= meant[:, None], -1)
        there, has_all = _after_forced(there, branches, chain, count)
        sure = torch.where(has_all[:, None], branches[:, DEPTH, 1:] <= count[:, None], is_forced)
        tokens = torch.where(has_all[:, None], there, chain)
        branches = torch.where(has_all[:, None, None], branches, _line(chain))
    log_probs = proposal.log_probs
    if log_probs is not None:
        drawn = F.pad(log_probs, (0, 0, 0, width - n), value=-torch.inf)[:, :width]
        one = torch.full_like(drawn, -torch.inf)
        one.scatter_(2, tokens.clamp(min=0)[..., None], 0.0)
        log_probs = torch.where(sure[..., None], one, drawn)
    return Proposal(tokens, torch.where(has_all, meant, count), log_probs, branches)


def _after_forced(
    drafts: Tensor, branches: Tensor, chain: Tensor, count: Tensor
) -> tuple[Tensor, Tensor]:
    """The `drafts[S, k]` of trees of which each way begins with the forced tokens, −1 the others.

    Also `[S]` whether there is such a way: then the tree has the `chain[S, k]`, of which `count[S]`
    are forced, as its trunk. `branches[S, 3, k + 1]`.
    """
    depth = branches[:, DEPTH, 1:]
    behind = depth > count[:, None]
    as_forced = drafts == chain.gather(1, (depth - 1).clamp(min=0))
    passes = F.pad((drafts >= 0) & (behind | as_forced), (1, 0), value=True)
    kept = rooted(passes, branches)
    ends = kept & (branches[:, DEPTH] == count[:, None])
    return drafts.masked_fill(~kept[:, 1:], -1), ends.any(dim=1)


def _line(drafts: Tensor) -> Tensor:
    """`[S, 3, k + 1]`: the branches of trees that are one path, of `drafts[S, k]`."""
    place = torch.arange(drafts.shape[1] + 1, device=drafts.device)
    own = torch.ones_like(place) << place
    lines = torch.stack([(place - 1).clamp(min=0), place, own.cumsum(dim=0)])
    return lines.expand(len(drafts), -1, -1)
