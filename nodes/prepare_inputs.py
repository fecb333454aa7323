"""prepare_inputs: turn a scheduled batch into model inputs, on the device.

The host knows how many tokens each row has, never which: the last sampled token and the pending
drafts are read from the device hand-off of the step before. So no token of step i−1 passes
through the host on its way to step i, and there is no placeholder on the host to leak.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..graph.declare import op
from ..graph.node import State
from ..graph.parameters import buffer, given, optional, read, update
from ..requests.limits import Limits
from .kind import NodeKind
from .sizes import Sizes
from .values import (
    BATCH,
    DEVICE,
    DRAFTS,
    HISTORY,
    INPUTS,
    LIMITS,
    PROGRESS,
    REQUEST_SLOTS,
    SIZES,
    STAGING,
    VOCAB_SIZE,
)

if TYPE_CHECKING:
    import torch

    from ..requests.batch import StepBatch
    from .data import DraftTable, Inputs, Progress, StagedStep
    from .ops.block_tables import BlockTables
    from .ops.history import History
    from .ops.staging import Staging


def _new_block_tables(
    sizes: Sizes = given(SIZES),
    limits: Limits = given(LIMITS),
    device: torch.device = given(DEVICE),
) -> BlockTables:
    from .ops.block_tables import new_block_tables

    blocks = limits.blocks_for(limits.context_length)
    return new_block_tables(sizes.request_slots, blocks, device)


BLOCK_TABLES: State[BlockTables] = State("block_tables", make=_new_block_tables, keys=REQUEST_SLOTS)
"""The blocks of every live row, on the device: a batch brings only what is new of them."""


@op(writes=STAGING)
def stage(batch: StepBatch = read(BATCH), staging: Staging = buffer(STAGING)) -> StagedStep | None:
    """The batch in a pinned buffer; None for an empty one."""
    return staging.fill(batch) if batch else None


@op(writes=INPUTS, decides="what all ranks compute on")
def prepare_inputs(
    staging: StagedStep | None = read(STAGING),
    progress: Progress = read(PROGRESS, 1),
    history: History = update(HISTORY),
    tables: BlockTables = update(BLOCK_TABLES),
    drafts: DraftTable | None = optional(DRAFTS, 1),
    limits: Limits = given(LIMITS),
    vocab_size: int = given(VOCAB_SIZE),
) -> Inputs | None:
    """What the models compute on. It adds the step's prompt tokens to the history."""
    from .ops.inputs import prepare

    if staging is None:
        return None
    return prepare(staging, progress, drafts, history, tables, limits, vocab_size)


KIND = NodeKind(
    "prepare_inputs",
    "stage the batch and build model inputs from the device hand-off",
    host=(stage,),
    device=(prepare_inputs,),
    stages="all",
)
