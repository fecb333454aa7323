"""How many launches the parts of a step are where kernels run: counted in Triton's interpreter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

import torch

from stepweave.models.causal_lm import CausalLM
from stepweave.models.eagle import EagleHead
from stepweave.models.kernels import operators
from stepweave.models.trial import TwoRows
from stepweave.nodes.data import Proposal
from stepweave.nodes.eagle import propose
from stepweave.nodes.ops.proposal import published
from stepweave.nodes.ops.staging import Staging
from stepweave.nodes.prepare_inputs import prepare_inputs, stage
from stepweave.policies.acceptance import Coupled
from stepweave.requests.batch import ScheduledRow, StepBatch
from stepweave.testing.engines import tiny_pair
from stepweave.testing.launches import Launches
from stepweave.testing.models import tiny_eagle, tiny_model
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


@contextmanager
def counting() -> Iterator[Launches]:
    """What is started inside, as on a device of so many processors."""
    with patch.object(operators, "processors", lambda device: PROCESSORS), Launches() as counted:
        yield counted


def forward(family: str, dtype: torch.dtype, rows: int = 2) -> tuple[Counter[str], tuple[str, ...]]:
    """A pass of a small model with merged products over a token of each row, and its notes."""
    model = tiny_model(family, dtype=dtype)
    target = CausalLM.wrap(model, invariant=False, merge=True)
    batch = TwoRows(target, 4).batch(*[(row, 0, 1) for row in range(rows)])
    with counting() as counted:
        target.forward(torch.arange(rows), batch)
    return counted.counts, target.notes


def chains(*most: int) -> list[Counter[str]]:
    """`K` drafts of an EAGLE-3 head for two rows whose texts have at `most` so many tokens."""
    target, _ = tiny_pair(torch.float32)
    head = tiny_eagle(target, "eagle3", merge=True)
    return [_chain(head, each) for each in most]


def _chain(head: EagleHead, most: int) -> Counter[str]:
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
            vocab_size=head.vocab_size,
            limits=limits,
        )

    with torch.inference_mode(), counting() as counted:
        published(inputs, pending, None, proposal)
    return counted.counts


def prepared(rows: Sequence[ScheduledRow]) -> Counter[str]:
    """The inputs of a step of these rows, whose blocks are all known."""
    known = StepBatch(7, tuple(row._replace(known=8) for row in rows))
    staged = stage(batch=known, staging=Staging(LIMITS))
    tables, past, drafts = block_tables(), history(), drafts_of({})
    progress = progress_of({0: (9, 6), 1: (8, 6)})
    with counting() as counted:
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
