"""Parts of a step with all that they need, ready to be counted: what is called does the part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from unittest.mock import patch

import torch

from stepweave.models.eagle import EagleHead
from stepweave.nodes.data import Proposal
from stepweave.nodes.eagle import propose
from stepweave.nodes.ops.proposal import published
from stepweave.nodes.ops.staging import Staging
from stepweave.nodes.prepare_inputs import prepare_inputs, stage
from stepweave.policies.acceptance import Coupled
from stepweave.requests.batch import ScheduledRow, StepBatch
from tests.nodes import steps
from tests.nodes.steps import (
    LIMITS,
    VOCAB,
    block_tables,
    decoding,
    drafts_of,
    history,
    inputs_of,
    progress_of,
    sampled_of,
)


def chain_of(head: EagleHead, k: int, most: int) -> Callable[[], object]:
    """`k` drafts for each of two rows, whose texts have at `most` so many tokens."""
    batch = StepBatch(9, tuple(decoding(row, window=k + 1, most=most) for row in (2, 0)))
    limits = replace(LIMITS, draft_tokens=k)
    with patch.object(steps, "LIMITS", limits):
        pending = drafts_of({2: [21, 49, 3]}, k=k)
        inputs = inputs_of(batch, progress_of({2: (9, 6), 0: (8, 3)}), pending)
    sampled = sampled_of([[21, 22], [31]], width=k + 1)
    hidden = torch.ones(len(inputs.ids), head.feature_size)
    kv = head.new_cache(40, LIMITS.block_size)

    def proposal() -> Proposal | None:
        return propose(
            inputs=inputs,
            sampled=sampled,
            hidden=hidden,
            draft_kv=kv,
            kept=None,
            allowed=None,
            head=head,
            rule=Coupled(),
            vocab_size=head.vocab_size,
            limits=limits,
            tree=None,
            recorder=None,
        )

    return partial(published, inputs, pending, None, proposal)


def inputs_for(rows: Sequence[ScheduledRow]) -> Callable[[], object]:
    """The inputs of a step of these rows, whose blocks are all known."""
    known = StepBatch(7, tuple(row._replace(known=8) for row in rows))
    return partial(
        prepare_inputs,
        staging=stage(batch=known, staging=Staging(LIMITS)),
        progress=progress_of({0: (9, 6), 1: (8, 6)}),
        history=history(),
        tables=block_tables(),
        drafts=drafts_of({}),
        limits=LIMITS,
        vocab_size=VOCAB,
    )
