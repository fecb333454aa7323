"""From a staged batch to model inputs, on the device."""

from __future__ import annotations

import torch
from torch import Tensor

from ...models.paged_cache import SCRATCH_BLOCK
from ...requests.limits import Limits
from ..data import DraftTable, Inputs, PromptLines, SampleRows, StagedStep, Tails
from .edits import edits_of
from .history import History
from .staging import (
    DECODES,
    LIMIT,
    P_ID,
    P_POSITION,
    P_ROW,
    ROW,
    SAMPLE,
)
from .transfer import packed, upload


def slots_of(blocks: Tensor, lines: Tensor, positions: Tensor, block_size: int) -> Tensor:
    """Cache slots of `positions` (−1: a slot of the scratch block) in the rows' block tables."""
    masked = positions < 0
    safe = positions.clamp_min(0)
    column = (safe // block_size).clamp_max(blocks.shape[1] - 1)
    block = torch.where(masked, SCRATCH_BLOCK, blocks[lines, column])
    return block * block_size + safe % block_size


@torch.inference_mode()
def prepare(
    staged: StagedStep,
    tails: Tails,
    drafts: DraftTable | None,
    history: History,
    limits: Limits,
    vocab_size: int,
) -> Inputs:
    """The device part: copy the staged buffers, then fill in what only the device knows.

    A draft outside the vocabulary counts as none: it must never be an index.
    """
    staging, device = staged.staging, tails.last.device
    lines_in_batch = len(staged.query_lens)
    tokens = upload(staging.tokens[: staged.tokens], device)
    rows = upload(staging.rows[:lines_in_batch], device)
    blocks = upload(packed(staging.blocks, lines_in_batch, staged.blocks), device)

    row = rows[:, ROW]
    last = tails.last[row]
    pending = drafts.tokens[row] if drafts is not None else last.new_empty(len(row), 0)
    pending = torch.where((pending >= 0) & (pending < vocab_size), pending, -1)
    window = torch.cat([last[:, None], pending], dim=1)  # [N, k + 1]

    given, place, line, column, following = tokens.unbind(dim=1)
    row_of = row[line]
    decodes = rows[line, DECODES].bool()
    ids = torch.where(decodes, window[line, column], given)
    positions = torch.where(decodes, tails.computed[row_of] + column, place)
    # The token after the last input must still fit: its position is at most context − 1.
    row_limit: Tensor | int = limits.context_length
    limit: Tensor | int = limits.context_length
    long: Tensor | None = None
    if limits.rope_switch is not None:
        row_limit = rows[:, LIMIT]
        limit = row_limit[line]
        long = limit > limits.rope_switch + 1
    masked = (ids < 0) | (positions > limit - 2)
    positions = torch.where(masked, -1, positions)
    ids = ids.clamp_min(0)
    history.write(row_of, positions, ids)
    if staged.prefix:
        prefix = upload(staging.prefix[: staged.prefix], device)
        history.write(prefix[:, P_ROW], prefix[:, P_POSITION], prefix[:, P_ID])

    return Inputs(
        ids=ids,
        positions=positions,
        slots=slots_of(blocks, line, positions, limits.block_size),
        blocks=blocks,
        following=following,
        column=column,
        sample_line=rows[line, SAMPLE],
        query_lens=staged.query_lens,
        decodes=staged.decodes,
        sample=_sample_rows(staged, rows, tails, ids, pending, row_limit)
        if staged.samples
        else None,
        prompt=_prompt_lines(staged, device) if staged.prompt else None,
        long=long,
    )


def _sample_rows(
    staged: StagedStep,
    rows: Tensor,
    tails: Tails,
    ids: Tensor,
    pending: Tensor,
    row_limit: Tensor | int,
) -> SampleRows:
    staging, device = staged.staging, rows.device
    fields = upload(staging.samples[: staged.samples], device)
    logit_index = upload(packed(staging.logit_index, staged.samples, staged.width), device)
    warp = upload(staging.warp[: staged.samples], device)
    line, start, forced, seeds, prompt, top_k, generation, limit, step = fields.unbind(dim=1)
    temperature, top_p, min_p, *_ = warp.unbind(dim=1)
    row = rows[line, ROW]
    decodes = rows[line, DECODES].bool()
    base = torch.where(decodes, tails.computed[row], start)
    drafts = torch.where(decodes[:, None], pending[line, : staged.width - 1], -1)
    ahead = base[:, None] + torch.arange(1, drafts.shape[1] + 1, device=base.device)
    most = row_limit if isinstance(row_limit, int) else row_limit[line, None]
    usable = (drafts >= 0) & (ahead <= most - 2)
    return SampleRows(
        lines=line,
        rows=row,
        base=base,
        first=ids[logit_index[:, 0]],
        drafts=drafts,
        valid=usable.long().cumprod(dim=1).sum(dim=1),
        forced=forced if staged.forced else None,
        draft_limit=limit,
        logit_index=logit_index,
        seeds=seeds,
        prompt=prompt,
        top_k=top_k,
        temperature=temperature,
        top_p=top_p,
        min_p=min_p,
        generation=generation,
        step=step,
        edits=edits_of(staged, warp),
        draft_width=staged.draft_width,
        longest=staged.longest,
        greedy=staged.greedy,
        ranked=staged.ranked,
        structured=staged.structured,
        logprobs=staged.logprobs,
    )


def _prompt_lines(staged: StagedStep, device: torch.device) -> PromptLines:
    asked = upload(staged.staging.prompt[: staged.prompt], device)
    return PromptLines(asked[:, 0], asked[:, 1], staged.prompt_logprobs)
