"""How many launches the parts of a step are where kernels run: counted in Triton's interpreter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch

from stepweave.executors.pieces import OpPieces
from stepweave.executors.terms import Terms
from stepweave.models import attention
from stepweave.models.causal_lm import CausalLM
from stepweave.models.eagle import EagleHead
from stepweave.models.kernels import operators
from stepweave.models.trial import TwoRows
from stepweave.requests.batch import ScheduledRow
from stepweave.testing.devices.recorded_calls import RecordedCalls
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


def mixed(family: str, dtype: torch.dtype) -> tuple[int, int, int]:
    """Launches of a pass over a row that decodes and a prompt: as usual; in pieces, those of the
    calls between, and the graphs."""
    model = tiny_model(family, dtype=dtype)
    target = CausalLM.wrap(model, invariant=False, merge=True)
    batch = TwoRows(target, 12).batch((0, 0, 1), (1, 0, 12))
    ids, rows = torch.arange(13), torch.tensor([0, 12])
    with counting() as usual:
        expected = target.forward(ids, batch, rows)
    device = RecordedCalls(graphs=True)
    pieces = OpPieces("forward", "compute", Terms(usual=0, largest=512))
    pieces.stream = device.open(["compute"], frozenset())["compute"]
    calls: list[Counter[str]] = []

    def attend_again(*args: Any) -> None:
        with counting() as counted:
            again(*args)
        calls.append(counted.counts)

    again = attention._attend_again
    with patch.object(attention, "_attend_again", attend_again):
        found = target.forward(ids, batch, rows, pieces=pieces)
    assert pieces.counts.captured == 1
    torch.testing.assert_close(found, expected)
    each_time = calls[: len(calls) // 2]  # it is done as usual, and then captured
    return usual.total, sum(each.total() for each in each_time), len(each_time) + 1


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
