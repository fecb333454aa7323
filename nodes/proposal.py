"""What every drafter shares: a proposal with explicit validity, made and published on the device.

What a row is offered is a function of its own tokens alone, and no drafter asks the host anything.
A row that cannot be drafted for gets −1, an explicit none; a skipped step changes nobody's drafts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..backends.kernels import runs_on
from ..graph.node import OpContext
from ..models.attention import AttentionBatch
from ..models.paged_cache import PagedCache
from ..sampling.draw import draw, filtered_log_probs
from ..sampling.noise import Purpose
from .machine import Machine
from .prepare_inputs import Inputs, SampleRows, slots_of
from .sample import Sampled
from .tails import DraftTable
from .transfer import CPU


@dataclass(frozen=True, slots=True)
class Proposal:
    """Drafts `tokens[S, n]` of the sampling rows, of which the first `valid[S]` are meant.

    `log_probs[S, n, V]`: what they were drawn from; None for drafts that were not drawn.
    """

    tokens: Tensor
    valid: Tensor
    log_probs: Tensor | None = None


Propose = Callable[[OpContext, Inputs, Sampled | None], Proposal | None]
"""Offers drafts for a step's sampling rows. None if there are no such rows, or no drafts at all."""


def no_drafts(rows: int, k: int, device: torch.device | None) -> DraftTable:
    return DraftTable.empty(rows, k, device or CPU)


def run(propose: Propose, ctx: OpContext) -> None:
    """Publish what `propose` offers; rows that it is not asked for keep their drafts."""
    inputs: Inputs | None = ctx.read("inputs")
    sampled: Sampled | None = ctx.read("sampled")
    before: DraftTable = ctx.read("drafts")
    proposal = None
    if inputs is not None:
        with torch.inference_mode():
            proposal = propose(ctx, inputs, sampled)
            sample = inputs.sample
            if sample is not None:
                if proposal is not None and proposal.log_probs is not None:
                    drawn_from: Tensor = ctx.state("draft_probs")
                    n = proposal.tokens.shape[1]
                    drawn_from[:, :n].index_copy_(0, sample.rows, proposal.log_probs)
                before = publish(before, sample, proposal)
    ctx.write("drafts", before)


def publish(before: DraftTable, sample: SampleRows, proposal: Proposal | None) -> DraftTable:
    """The table with the rows of `sample` renewed: −1 where a draft is not valid or not wanted."""
    rows, k = len(sample.rows), before.tokens.shape[1]
    fresh = before.tokens.new_full((rows, k), -1)
    if proposal is not None:
        n = proposal.tokens.shape[1]
        places = torch.arange(n, device=fresh.device)
        meant = places < torch.minimum(proposal.valid, sample.draft_limit)[:, None]
        fresh[:, :n] = torch.where(meant, proposal.tokens, -1)
    tags = torch.stack([sample.generation, sample.step], dim=1)
    return DraftTable(
        tokens=before.tokens.index_copy(0, sample.rows, fresh),
        tags=before.tags.index_copy(0, sample.rows, tags),
    )


@dataclass(frozen=True, slots=True)
class FirstPass:
    """What a drafter computes before its first draft: L tokens of its rows, in order.

    `ids`, `positions`, `slots`: `[L]`; a position of −1 is masked. `last[S]`: the line of each
    sampling row whose logits give the first draft. `long[L]` as in `Inputs`.
    """

    ids: Tensor
    positions: Tensor
    slots: Tensor
    query_lens: tuple[int, ...]
    last: Tensor
    long: Tensor | None = None

    def without_padding(self, lines: Tensor, query_lens: tuple[int, ...]) -> FirstPass:
        """The same pass over `lines[L]` only, so many of each row: see `Kept`."""
        moved = torch.zeros_like(self.ids).index_copy_(
            0, lines, torch.arange(len(lines), device=lines.device)
        )
        return FirstPass(
            self.ids[lines],
            self.positions[lines],
            self.slots[lines],
            query_lens,
            moved[self.last],
            None if self.long is None else self.long[lines],
        )

    def batch(self, blocks: Tensor, cache: PagedCache) -> AttentionBatch:
        return AttentionBatch(
            query_lens=self.query_lens,
            block_tables=blocks,
            positions=self.positions,
            slots=self.slots,
            cache=cache,
            long=self.long,
        )


Next = Callable[[Tensor, AttentionBatch], Tensor]
"""One more pass of a drafter over one token `ids[S]` of each row: logits `[S, V]`."""


def chain(
    machine: Machine,
    inputs: Inputs,
    logits: Tensor,
    positions: Tensor,
    reach: int,
    cache: PagedCache,
    following: Next,
    *,
    input_is_ahead: int,
    draws: bool,
) -> Proposal:
    """Draft token by token, from the `logits[S, V]` of a first pass on.

    `positions[S]`: where that pass ended, by the drafter's own count; a drafter whose input at
    position p is the token at p + a says `input_is_ahead` = a. It has no position from `reach`
    on: rows that come there are offered no more.
    """
    sample, limits = inputs.sample, machine.limits
    assert sample is not None, "tokens were sampled for these rows"
    rows, width = len(sample.base), sample.draft_width
    blocks = inputs.blocks[sample.lines]
    lines = torch.arange(rows, device=positions.device)
    places = torch.arange(width, device=positions.device)
    every = positions[:, None] + places  # [S, n]
    alive = every < reach
    masked = torch.where(alive & (sample.draft_limit[:, None] > places), every, -1)
    slots = slots_of(blocks, lines[:, None], masked, limits.block_size)
    tokens: list[Tensor] = []
    log_probs: list[Tensor] = []
    batch: AttentionBatch | None = None
    for place in range(width):
        if place:
            at, slot = masked[:, place], slots[:, place]
            if batch is None:
                long = inputs.long_rows
                batch = AttentionBatch((1,) * rows, blocks, at, slot, cache, long)
            else:
                batch = batch.then(at, slot)
            logits = following(tokens[-1], batch)
        logits = logits[:, : machine.vocab_size]
        token, drawn_from = _choose(
            machine, sample, logits, every[:, place] + input_is_ahead + 1, draws=draws
        )
        tokens.append(token)
        if drawn_from is not None:
            log_probs.append(drawn_from)
    return Proposal(
        torch.stack(tokens, dim=1),
        alive.sum(dim=1),
        torch.stack(log_probs, dim=1) if log_probs else None,
    )


def _choose(
    machine: Machine, sample: SampleRows, logits: Tensor, positions: Tensor, *, draws: bool
) -> tuple[Tensor, Tensor | None]:
    """The drafter's token for each row at absolute `positions[S]`, and what it was drawn from.

    Where the acceptance rule couples target and drafter, the draft is drawn with the very noise
    that the target will use at that position, so that equal distributions agree always. Where it
    compares distributions, the draft is drawn with noise of its own.
    """
    if not (draws or machine.acceptance.couples) or (sample.greedy and not draws):
        return logits.argmax(dim=-1), None
    purpose = Purpose.DRAFT if draws else Purpose.TARGET
    at = positions - sample.prompt
    if not (draws or sample.ranked) and runs_on(logits):
        from ..sampling.kernels import choose

        token = choose.sample(logits, sample.temperature, sample.min_p, sample.seeds, at, purpose)
        return token, None
    log_probs = filtered_log_probs(
        logits,
        sample.temperature,
        sample.top_k,
        sample.top_p,
        min_p=sample.min_p,
        any_top_k=sample.ranked,
        any_top_p=sample.ranked,
        normalized=draws,
    )
    token = draw(log_probs, sample.seeds, at, sample.temperature <= 0, purpose)
    return token, log_probs if draws else None
