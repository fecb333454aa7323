"""prepare_inputs: turn a scheduled batch into model inputs, on the device.

The host knows how many tokens each row has, never which: the last sampled token and the pending
drafts are read from the device hand-off of the step before. So no token of step i−1 passes
through the host on its way to step i, and there is no placeholder on the host to leak.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..graph.node import OpContext
from ..models.paged_cache import SCRATCH_BLOCK
from ..requests.batch import StepBatch
from ..requests.table import Limits
from .edits import Edits
from .history import History
from .kind import Shape
from .machine import Machine
from .staging import (
    DECODES,
    LIMIT,
    P_ID,
    P_POSITION,
    P_ROW,
    ROW,
    SAMPLE,
    StagedStep,
    Staging,
)
from .tails import DraftTable, Tails
from .transfer import packed, upload


@dataclass(frozen=True, slots=True)
class SampleRows:
    """The sampling rows of a step, S of them with windows of W places; tensors on the device.

    `lines[S]`: their lines in the batch; `rows[S]`: their stable device rows. `base[S]`: the
    position of the window's first input. `first[S]`: that input. `drafts[S, W − 1]` with −1 where
    there is none, `valid[S]`: how many of them may be considered. `forced[S]`: a known next token,
    or −1; None if no row has one. `draft_limit[S]`: drafts that the row may be offered for its next
    window, at most `draft_width` in all rows. `step[S]`: the number of the step. The rest are the
    requests' sampling parameters; `prompt[S]` makes an absolute position an output position.
    `greedy`: the host knows that nothing is drawn at random; `ranked`: that top-k or top-p may cut
    some row's tokens; `structured`: that some row has a
    grammar; `longest`: that no row has more tokens. `logprobs`: alternatives wanted beside each
    token, −1 for none at all.
    """

    lines: Tensor
    rows: Tensor
    base: Tensor
    first: Tensor
    drafts: Tensor
    valid: Tensor
    forced: Tensor | None
    draft_limit: Tensor
    logit_index: Tensor
    seeds: Tensor
    prompt: Tensor
    top_k: Tensor
    temperature: Tensor
    top_p: Tensor
    min_p: Tensor
    generation: Tensor
    step: Tensor
    edits: Edits
    draft_width: int
    longest: int
    greedy: bool
    structured: bool
    logprobs: int
    ranked: bool = True


@dataclass(frozen=True, slots=True)
class PromptLines:
    """Prompt tokens whose log-probabilities are asked for, P of them.

    `lines[P]`: the token lines that predict them; `targets[P]`: the tokens; `top`: alternatives.
    """

    lines: Tensor
    targets: Tensor
    top: int


@dataclass(frozen=True, slots=True)
class Inputs:
    """Model inputs of one step: T tokens of N rows, in the order of the batch's rows.

    `positions` is −1 for a masked token; its KV goes to the scratch block. `following[T]` is the
    token after each, −1 where it is yet to be sampled: then it is that of `column[T]` in the window
    of sampling row `sample_line[T]`. `long[T]`: tokens of rows beyond the model's original context;
    None where it has but one. `query_lens`, the number of rows that decode (they lie
    first) and the shapes are all that the host knows.
    """

    ids: Tensor
    positions: Tensor
    slots: Tensor
    blocks: Tensor
    following: Tensor
    column: Tensor
    sample_line: Tensor
    query_lens: tuple[int, ...]
    decodes: int
    sample: SampleRows | None
    prompt: PromptLines | None
    long: Tensor | None = None

    @property
    def long_rows(self) -> Tensor | None:
        """`long` of each sampling row, `[S]`."""
        if self.long is None or self.sample is None:
            return None
        return self.long[self.sample.logit_index[:, 0]]


def slots_of(blocks: Tensor, lines: Tensor, positions: Tensor, block_size: int) -> Tensor:
    """Cache slots of `positions` (−1: a slot of the scratch block) in the rows' block tables."""
    masked = positions < 0
    safe = positions.clamp_min(0)
    column = (safe // block_size).clamp_max(blocks.shape[1] - 1)
    block = torch.where(masked, SCRATCH_BLOCK, blocks[lines, column])
    return block * block_size + safe % block_size


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
        edits=Edits.of(staged, warp),
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


def new_staging(machine: Machine) -> Staging:
    return Staging(machine.limits, machine.device)


def stage(ctx: OpContext) -> None:
    batch: StepBatch = ctx.read("batch")
    if not batch:
        return
    staging: Staging = ctx.buffer("staging")
    ctx.write("staging", staging.fill(batch))


def run(machine: Machine, shape: Shape, ctx: OpContext) -> None:
    staged = ctx.read("staging")
    tails = ctx.read("tails")
    drafts = ctx.read("drafts") if shape.draft_tokens > 0 else None
    history: History = ctx.state("history")
    if staged is not None:
        with torch.inference_mode():
            ctx.write(
                "inputs",
                prepare(staged, tails, drafts, history, machine.limits, machine.vocab_size),
            )
