"""damp_repeats: make tokens less likely the more often the row's output has them.

A node that owns a state: how often each row's output has each token. It counts a token once, when
it is settled, and not the whole text in each step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import Field

from stepweave.nodes import (
    DEVICE,
    HISTORY,
    INPUTS,
    LOGITS,
    REQUEST_SLOTS,
    SIZES,
    VOCAB_SIZE,
    NodeKind,
    Options,
    Sizes,
    State,
    Value,
    given,
    op,
    read,
    settings,
    state,
    update,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from stepweave.nodes import History, Inputs, SampleRows


class Damping(Options):
    """What a pipeline file may say of the node."""

    strength: float = Field(default=0.5, ge=0, description="Taken off a logit for each repeat.")
    most: int = Field(default=4, ge=1, description="Repeats beyond these take no more off.")


@dataclass(frozen=True, slots=True)
class Counts:
    """By request slot, of which there are R: the output of the request that has it."""

    counts: Tensor  # [R, V] float32: how often each token is in the first tokens of its text
    end: Tensor  # [R]: that many tokens of the text are counted
    generation: Tensor  # [R]: which owner of the slot they are of, −1 for none


def new_counts(
    sizes: Sizes = given(SIZES),
    vocab_size: int = given(VOCAB_SIZE),
    device: torch.device = given(DEVICE),
) -> Counts:
    """Nothing counted, of nobody."""
    import torch

    slots = sizes.request_slots
    return Counts(
        counts=torch.zeros(slots, vocab_size, device=device),
        end=torch.zeros(slots, dtype=torch.int64, device=device),
        generation=torch.full((slots,), -1, device=device),
    )


COUNTS: State[Counts] = State("repeat_counts", make=new_counts, keys=REQUEST_SLOTS)
DAMPED: Value[Tensor | None] = Value("damped", "device", "slots")
"""`[S, W, V]`: the logits of the sampling rows, damped."""


@op(writes=DAMPED)
def damp_repeats(
    logits: Tensor | None = read(LOGITS),
    inputs: Inputs | None = read(INPUTS),
    history: History = state(HISTORY),
    counted: Counts = update(COUNTS),
    chosen: Damping = settings(Damping),
) -> Tensor | None:
    """The damped logits; None, which is an explicit none, where no row of this step samples."""
    import torch

    if logits is None or inputs is None or inputs.sample is None:
        return None
    with torch.inference_mode():
        sample, width = inputs.sample, logits.shape[1]
        # A row that decodes has at most a window of new tokens, a new one may have its whole text.
        all_decode = inputs.decodes == len(inputs.query_lens)
        repeats = _count(sample, history, counted, width if all_decode else sample.longest)
        every = repeats[:, None].repeat(1, width, 1)  # [S, W, V]
        # A window position is judged as if the drafts before it were accepted.
        drafted = torch.zeros_like(every[:, 1:])
        drafts = sample.drafts[:, : width - 1, None]
        drafted.scatter_(2, drafts.clamp(min=0), (drafts >= 0).to(drafted.dtype))
        every[:, 1:] += drafted.cumsum(dim=1)
        return logits - chosen.strength * every.clamp(max=chosen.most).to(logits.dtype)


def _count(sample: SampleRows, history: History, counted: Counts, most: int) -> Tensor:
    """Count the tokens of the rows that are settled since the last time: all counts, `[S, V]`."""
    import torch

    slot = sample.request_slot
    # A slot changes hands: what its last owner left there counts for nothing.
    same = counted.generation[slot] == sample.generation
    start = torch.where(same, counted.end[slot], sample.prompt)
    positions = start[:, None] + torch.arange(most, device=start.device)  # [S, most]
    settled = (positions <= sample.window_start[:, None]).to(counted.counts.dtype)
    longest = history.tokens.shape[1] - 1
    tokens = history.tokens[slot[:, None], positions.clamp(max=longest)].long()
    counts = torch.where(same[:, None], counted.counts[slot], 0.0).scatter_add(1, tokens, settled)
    counted.counts.index_copy_(0, slot, counts)
    counted.end.index_copy_(0, slot, torch.maximum(start, sample.window_start + 1))
    counted.generation.index_copy_(0, slot, sample.generation)
    return counts


KIND = NodeKind(
    "damp_repeats",
    "take something off the logits of tokens that the output has already",
    device=(damp_repeats,),
    options=Damping,
)
