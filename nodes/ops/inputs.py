"""From a staged batch to model inputs, on the device.

The host has computed where each token and position comes from, so here is little more than a
look-up.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ...requests.limits import Limits
from ...sampling.windows import BITS, DEPTH
from ..data import (
    DraftTable,
    Inputs,
    Progress,
    PromptTargets,
    SampleRows,
    StagedStep,
    TreePlaces,
)
from .block_tables import BlockTables
from .edits import edits_of
from .history import History
from .sections import (
    S_GENERATION,
    S_NO_DRAFTS,
    S_STEP,
    W_MIN_P,
    W_TEMPERATURE,
    W_TOP_P,
    Uploaded,
    on_device,
    used,
)
from .transfer import upload


@torch.inference_mode()
def prepare(
    staged: StagedStep,
    progress: Progress,
    drafts: DraftTable | None,
    history: History,
    tables: BlockTables,
    limits: Limits,
    vocab_size: int,
) -> Inputs:
    """The device part: copy the staged buffer, then fill in what only the device knows.

    A draft outside the vocabulary counts as none: it must never be an index.
    """
    device = progress.last_token.device
    parts = on_device(staged, upload(staged.flat[: used(staged)], device))
    slots, next_index = parts["tokens"].unbind()
    prompt = None
    if staged.prompt:
        predicting, targets = parts["prompt"].unbind()
        prompt = PromptTargets(predicting, targets, staged.prompt_logprobs)
    tables.update(parts["clears"], parts["change_at"], parts["change_to"])
    if staged.known:
        history.add(parts["history_at"], parts["history_ids"])
    found = looked_up(staged, parts, progress, drafts, vocab_size)
    if staged.ends:  # a row that has ended is in flight still, and its place may be an index
        within = found.window_start.clamp(max=limits.context_length - 1)
        found = found._replace(window_start=within)
    positions, tree = found.positions, None
    if drafts is not None and drafts.branches is not None and staged.width > 1:
        positions, tree = _in_trees(staged, found.positions, slots, parts, drafts.branches)
    branches = None if tree is None or drafts is None else drafts.branches
    return Inputs(
        ids=found.ids,
        positions=positions,
        cache_slots=tables.cache_slots(slots, found.positions, limits.block_size),
        blocks=tables.of(parts["request_slots"], staged.blocks),
        following=parts["following"],
        next_index=next_index,
        query_lens=staged.query_lens,
        request_slots=parts["request_slots"],
        decodes=staged.decodes,
        sample=_sample_rows(staged, parts, found, branches) if staged.samples else None,
        prompt=prompt,
        adapters=parts["adapters"] if staged.adapters else None,
        long=parts["long"] if staged.long else None,
        tree=tree,
        axes=parts["axes"] if staged.axes else None,
        encoded=parts["encoded"] if staged.encoded else None,
        row_blocks=staged.row_blocks,
    )


def _in_trees(
    staged: StagedStep, places: Tensor, slots: Tensor, parts: Uploaded, branches: Tensor
) -> tuple[Tensor, TreePlaces]:
    """Positions of the tokens at `places[T]` of request `slots[T]`, and where they stand.

    `branches[R, 3, k + 1]` of the pending drafts.
    """
    at = parts["offsets"][: staged.tokens]
    masked = places < 0
    line = slots * branches.stride(0) + at
    depth, bits = (
        branches.view(-1).index_select(0, line + field * branches.stride(1))
        for field in (DEPTH, BITS)
    )
    starts = (places - at).clamp(min=0)
    tree = TreePlaces(
        places, starts, bits.masked_fill(masked, 1), width=staged.width, rows=staged.decodes
    )
    return (starts + depth).masked_fill(masked, -1), tree


class Found(NamedTuple):
    """The entries of a step, as `sections.py` lists them."""

    ids: Tensor  # [T]
    positions: Tensor  # [T], −1 for a masked token
    drafts: Tensor  # [S, W − 1], −1 where there is none
    valid: Tensor  # [S] drafts before the first that may not be considered
    first: Tensor  # [S] the first token of each window
    window_start: Tensor  # [S] and its position, never masked


def looked_up(
    staged: StagedStep,
    parts: Uploaded,
    progress: Progress,
    drafts: DraftTable | None,
    vocab_size: int,
) -> Found:
    """What the entries of the staging buffer's `parts` stand for.

    An entry is masked where its token is outside the vocabulary, or behind the last position that
    its row may have. Without drafts all tokens are known to be inside.
    """
    tokens, masked, samples, width = staged.tokens, staged.masked, staged.samples, staged.width
    pending = () if drafts is None else (drafts.tokens.view(-1),)
    known = torch.cat([progress.last_token, progress.computed, parts["given"], *pending])
    found = known.index_select(0, parts["sources"].view(-1)).view(2, masked + samples)
    ids, positions = safe, _ = found.unbind()
    out: Tensor | None = None
    if width > 1:
        positions += parts["offsets"]
        safe = ids.clamp(0, vocab_size - 1)
        out = safe[:masked] != ids[:masked]
    if staged.ends:
        late = positions[:masked] > parts["ends"]
        out = late if out is None else out.logical_or_(late)
    if out is not None:
        found[:, :masked].masked_fill_(out, -1)
    if width > 1 and out is not None:
        drafted = ids[tokens:masked].view(samples, width)[:, :-1]
        # The place behind the last draft is out too, so there always is a first.
        valid = out.view(torch.uint8)[tokens:].view(samples, width).argmax(dim=1)
    else:
        drafted, valid = parts["logit_index"][:, :0], parts["samples"][S_NO_DRAFTS]
    return Found(
        safe[:tokens], positions[:tokens], drafted, valid, safe[masked:], positions[masked:]
    )


def _sample_rows(
    staged: StagedStep, parts: Uploaded, found: Found, branches: Tensor | None
) -> SampleRows:
    samples = parts["samples"]
    batch_index, request_slot, forced, seeds, prompt, top_k, limit, *_ = samples.unbind()
    warp = parts["warp"]
    return SampleRows(
        batch_index=batch_index,
        request_slot=request_slot,
        window_start=found.window_start,
        first=found.first,
        drafts=found.drafts,
        branches=None
        if branches is None
        else branches.index_select(0, request_slot)[:, :, : staged.width],
        valid=found.valid,
        forced=forced if staged.forced else None,
        draft_limit=limit,
        logit_index=parts["logit_index"],
        seeds=seeds,
        prompt=prompt,
        top_k=top_k,
        temperature=warp[W_TEMPERATURE],
        top_p=warp[W_TOP_P],
        min_p=warp[W_MIN_P],
        tags=samples[S_GENERATION : S_STEP + 1].T,
        edits=edits_of(staged, parts),
        draft_width=staged.draft_width,
        whole=staged.whole,
        longest=staged.longest,
        greedy=staged.greedy,
        any_top_k=staged.any_top_k,
        any_top_p=staged.any_top_p,
        structured=staged.structured,
        logprobs=staged.logprobs,
        xtc=parts["xtc"] if staged.xtc else None,
        settings=parts["settings"] if staged.settings else None,
        setting_names=staged.settings,
    )
