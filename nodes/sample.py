"""sample: verify the draft window and draw the next token, on the device.

The grammar's mask comes before temperature and cuts, as it does without speculation; drafts that
the grammar refuses, or that lie past the context, are not considered, and no position after them
is ever sampled. The new last token and count of each row stay on the device for the next step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ..graph.errors import StepweaveError
from ..graph.node import Node, Op, OpContext, Read, Value
from ..policies.sampling import filtered_log_probs
from ..structured.bitmask import apply_bitmask
from .kind import Built, NodeKind, NodeSpec
from .machine import Machine
from .prepare_inputs import SampleRows
from .tails import Tails


@dataclass(frozen=True, slots=True)
class Sampled:
    """`tokens[S, k + 1]`, −1 after the first `counts[S]`; `drafted[S]`: drafts considered."""

    tokens: Tensor
    counts: Tensor
    drafted: Tensor


class MissingMask(StepweaveError):
    """A structured row would have been sampled without its mask."""

    code = "SW-MISSING-MASK"


class Masks(Protocol):
    """What `bitmask` publishes: `bits[S, k + 1, W]` int32, `valid[S]` drafts that pass."""

    @property
    def bits(self) -> Tensor: ...

    @property
    def valid(self) -> Tensor: ...


def draw(machine: Machine, rows: SampleRows, logits: Tensor, mask: Masks | None) -> Sampled:
    """Tokens of each row's window. `logits[S, k + 1, V]`; `mask` as `bitmask` publishes it.

    Raises `MissingMask` where a row has a grammar and the step has no masks, or not as many.
    """
    count, window, vocab = logits.shape
    if rows.structured and (mask is None or len(mask.valid) != count):
        raise MissingMask(
            "a row with a grammar came without its mask; it is not sampled, since that would be "
            "sampling it freely"
        )
    flat = logits.reshape(-1, vocab)
    valid = rows.valid
    if mask is not None:
        flat = apply_bitmask(flat, mask.bits.reshape(count * window, -1))
        valid = torch.minimum(valid, mask.valid)
    if not rows.greedy:
        flat = filtered_log_probs(
            flat,
            rows.temperature.repeat_interleave(window, output_size=count * window),
            rows.top_k.repeat_interleave(window, output_size=count * window),
            rows.top_p.repeat_interleave(window, output_size=count * window),
        )
    verified = machine.acceptance(
        flat.view(count, window, vocab),
        rows.drafts,
        valid,
        rows.seeds,
        rows.base + 1 - rows.prompt,
        rows.temperature == 0,
        any_random=not rows.greedy,
    )
    # A resumed row's next token is settled already: hand it on instead of drawing.
    forced = rows.forced >= 0
    first = torch.where(forced, rows.forced, verified.tokens[:, 0])
    tokens = torch.cat([first[:, None], verified.tokens[:, 1:]], dim=1)
    counts = torch.where(forced, 1, verified.counts)
    return Sampled(tokens, counts, valid)


def hand_on(tails: Tails, rows: SampleRows, sampled: Sampled) -> Tails:
    """The tails after this step: rows that did not sample keep theirs."""
    last = sampled.tokens.gather(1, sampled.counts[:, None] - 1)[:, 0]
    return Tails(
        last=tails.last.index_copy(0, rows.rows, last),
        computed=tails.computed.index_copy(0, rows.rows, rows.base + sampled.counts),
    )


def build(spec: NodeSpec, machine: Machine) -> Built:
    shape = spec.shape

    def run(ctx: OpContext) -> None:
        inputs, logits = ctx.read("inputs"), ctx.read("logits")
        mask = ctx.read("mask") if shape.structured else None
        tails: Tails = ctx.read("tails")
        if inputs is None or inputs.sample is None:
            ctx.write("tails", tails)
            return
        with torch.inference_mode():
            sampled = draw(machine, inputs.sample, logits, mask)
            ctx.write("sampled", sampled)
            ctx.write("tails", hand_on(tails, inputs.sample, sampled))

    reads = [Read("inputs"), Read("logits"), Read("tails", 1)]
    if shape.structured:
        reads.append(Read("mask"))
    return Built(
        Node(
            spec.name,
            host=(Op(),),
            device=(Op(reads=tuple(reads), writes=("sampled", "tails"), run=run),),
            stream="compute",
        ),
        values=(
            Value(
                "sampled", "device", "slots", nbytes=8 * shape.max_rows * (shape.draft_tokens + 3)
            ),
            Value(
                "tails",
                "device",
                "slots",
                nbytes=16 * shape.max_rows,
                initial=Tails.empty(shape.max_rows),
            ),
        ),
    )


KIND = NodeKind("sample", "mask, verify the draft window, draw the next token", build)
