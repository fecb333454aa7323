"""How many launches the parts of a step are where kernels run: counted in Triton's interpreter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from unittest.mock import patch

import torch

from stepweave.models.causal_lm import CausalLM
from stepweave.models.eagle import EagleHead
from stepweave.models.kernels import operators
from stepweave.nodes.data import Proposal
from stepweave.nodes.eagle import propose
from stepweave.nodes.ops.proposal import published
from stepweave.nodes.ops.staging import Staging
from stepweave.nodes.prepare_inputs import prepare_inputs, stage
from stepweave.policies.acceptance import Coupled
from stepweave.requests.batch import ScheduledRow, StepBatch
from stepweave.testing.launches import Launches
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

PROCESSORS = 132
"""Of the GPU that is counted for: attention of few rows is split over them, and merged."""

K = 3


def chain(most: int, style: str = "eagle3") -> Counter[str]:
    """`K` drafts of two rows whose texts have at `most` so many tokens."""
    target = CausalLM.load("embedded", invariant=False, merge=True)
    head = EagleHead.load(f"embedded-{style}", target)
    batch = StepBatch(9, tuple(decoding(row, window=K + 1, most=most) for row in (2, 0)))
    limits = replace(LIMITS, draft_tokens=K)
    with patch.object(steps, "LIMITS", limits):
        pending = drafts_of({2: [21, 49, 3]}, k=K)
        inputs = inputs_of(batch, progress_of({2: (9, 6), 0: (8, 3)}), pending)
    sampled = sampled_of([[21, 22], [31]], width=K + 1)
    hidden = torch.ones(len(inputs.ids), head.feature_size)
    kv = head.new_cache(40, LIMITS.block_size)

    def proposal() -> Proposal | None:
        return propose(
            inputs=inputs,
            sampled=sampled,
            hidden=hidden,
            draft_kv=kv,
            kept=None,
            head=head,
            rule=Coupled(),
            vocab_size=target.vocab_size,
            limits=limits,
        )

    with patch.object(operators, "processors", lambda device: PROCESSORS):
        with torch.inference_mode(), Launches() as counted:
            published(inputs, pending, None, proposal)
    return counted.counts


def prepared(rows: Sequence[ScheduledRow]) -> Counter[str]:
    """The inputs of a step of these rows, whose blocks are all known."""
    known = StepBatch(7, tuple(row._replace(known=8) for row in rows))
    staged = stage(batch=known, staging=Staging(LIMITS))
    tables, past, drafts = block_tables(), history(), drafts_of({})
    progress = progress_of({0: (9, 6), 1: (8, 6)})
    with Launches() as counted:
        prepare_inputs(
            staging=staged,
            progress=progress,
            history=past,
            tables=tables,
            drafts=drafts,
            limits=LIMITS,
            vocab_size=VOCAB,
        )
    return counted.counts
