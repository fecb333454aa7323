"""From a staged batch to model inputs, on the device."""

from __future__ import annotations

import torch
from torch import Tensor

from ...models.paged_cache import SCRATCH_BLOCK
from ...requests.limits import Limits
from ..data import DraftTable, Inputs, Progress, PromptTargets, SampleRows, StagedStep
from .edits import edits_of
from .history import History
from .staging import (
    DECODES,
    LIMIT,
    P_ID,
    P_POSITION,
    P_REQUEST_SLOT,
    REQUEST_SLOT,
    SAMPLE,
)
from .transfer import packed, upload


def cache_slots_of(
    blocks: Tensor, batch_index: Tensor, positions: Tensor, block_size: int
) -> Tensor:
    """Cache slots `[...]` of `positions[...]` in the block tables `blocks[N, B]`.

    `batch_index[...]`, of a shape that broadcasts, says of which row. A position of −1 gets a slot
    of the scratch block. Raises nothing of its own.
    """
    masked = positions < 0
    safe = positions.clamp_min(0)
    block_index = (safe // block_size).clamp_max(blocks.shape[1] - 1)
    block = torch.where(masked, SCRATCH_BLOCK, blocks[batch_index, block_index])
    return block * block_size + safe % block_size


@torch.inference_mode()
def prepare(
    staged: StagedStep,
    progress: Progress,
    drafts: DraftTable | None,
    history: History,
    limits: Limits,
    vocab_size: int,
) -> Inputs:
    """The device part: copy the staged buffers, then fill in what only the device knows.

    A draft outside the vocabulary counts as none: it must never be an index.
    """
    staging, device = staged.staging, progress.last_token.device
    batch_size = len(staged.query_lens)
    tokens = upload(staging.tokens[: staged.tokens], device)
    rows = upload(staging.rows[:batch_size], device)
    blocks = upload(packed(staging.blocks, batch_size, staged.blocks), device)

    request_slot = rows[:, REQUEST_SLOT]
    last = progress.last_token[request_slot]
    pending = (
        drafts.tokens[request_slot] if drafts is not None else last.new_empty(len(request_slot), 0)
    )
    pending = torch.where((pending >= 0) & (pending < vocab_size), pending, -1)
    window = torch.cat([last[:, None], pending], dim=1)  # [N, k + 1]

    given, start, batch_index, window_position, following = tokens.unbind(dim=1)
    slot_of_token = request_slot[batch_index]
    decodes = rows[batch_index, DECODES].bool()
    ids = torch.where(decodes, window[batch_index, window_position], given)
    positions = torch.where(decodes, progress.computed[slot_of_token] + window_position, start)
    # The token after the last input must still fit: its position is at most context − 1.
    row_limit: Tensor | int = limits.context_length
    limit: Tensor | int = limits.context_length
    long: Tensor | None = None
    if limits.rope_switch is not None:
        row_limit = rows[:, LIMIT]
        limit = row_limit[batch_index]
        long = limit > limits.rope_switch + 1
    masked = (ids < 0) | (positions > limit - 2)
    positions = torch.where(masked, -1, positions)
    ids = ids.clamp_min(0)
    history.write(slot_of_token, positions, ids)
    if staged.prefix:
        prefix = upload(staging.prefix[: staged.prefix], device)
        history.write(prefix[:, P_REQUEST_SLOT], prefix[:, P_POSITION], prefix[:, P_ID])

    return Inputs(
        ids=ids,
        positions=positions,
        cache_slots=cache_slots_of(blocks, batch_index, positions, limits.block_size),
        blocks=blocks,
        following=following,
        window_position=window_position,
        sample_index=rows[batch_index, SAMPLE],
        query_lens=staged.query_lens,
        decodes=staged.decodes,
        sample=_sample_rows(staged, rows, progress, ids, pending, row_limit)
        if staged.samples
        else None,
        prompt=_prompt_targets(staged, device) if staged.prompt else None,
        long=long,
    )


def _sample_rows(
    staged: StagedStep,
    rows: Tensor,
    progress: Progress,
    ids: Tensor,
    pending: Tensor,
    row_limit: Tensor | int,
) -> SampleRows:
    staging, device = staged.staging, rows.device
    fields = upload(staging.samples[: staged.samples], device)
    logit_index = upload(packed(staging.logit_index, staged.samples, staged.width), device)
    warp = upload(staging.warp[: staged.samples], device)
    batch_index, start, forced, seeds, prompt, top_k, generation, limit, step = fields.unbind(dim=1)
    temperature, top_p, min_p, *_ = warp.unbind(dim=1)
    request_slot = rows[batch_index, REQUEST_SLOT]
    decodes = rows[batch_index, DECODES].bool()
    window_start = torch.where(decodes, progress.computed[request_slot], start)
    drafts = torch.where(decodes[:, None], pending[batch_index, : staged.width - 1], -1)
    ahead = window_start[:, None] + torch.arange(1, drafts.shape[1] + 1, device=window_start.device)
    most = row_limit if isinstance(row_limit, int) else row_limit[batch_index, None]
    usable = (drafts >= 0) & (ahead <= most - 2)
    return SampleRows(
        batch_index=batch_index,
        request_slot=request_slot,
        window_start=window_start,
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
        any_top_k=staged.any_top_k,
        any_top_p=staged.any_top_p,
        structured=staged.structured,
        logprobs=staged.logprobs,
    )


def _prompt_targets(staged: StagedStep, device: torch.device) -> PromptTargets:
    asked = upload(staged.staging.prompt[: staged.prompt], device)
    return PromptTargets(asked[:, 0], asked[:, 1], staged.prompt_logprobs)
