"""How many launches the parts of a step are where kernels run: counted in Triton's interpreter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

import torch

from stepweave.models.causal_lm import CausalLM
from stepweave.models.eagle import EagleHead
from stepweave.models.kernels import operators
from stepweave.models.trial import TwoRows
from stepweave.requests.batch import ScheduledRow
from stepweave.testing.engines import tiny_pair
from stepweave.testing.launches import Launches
from stepweave.testing.models import tiny_eagle, tiny_model
from tests.nodes.ready import chain_of, inputs_for

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
    chain = chain_of(head, K, most)
    with torch.inference_mode(), counting() as counted:
        chain()
    return counted.counts


def prepared(rows: Sequence[ScheduledRow]) -> Counter[str]:
    """The inputs of a step of these rows, whose blocks are all known."""
    prepare = inputs_for(rows)
    with counting() as counted:
        prepare()
    return counted.counts
