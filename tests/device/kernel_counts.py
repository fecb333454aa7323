"""How many launches the parts of a step are where kernels run: counted in Triton's interpreter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from stepweave.backends.operations import is_view
from stepweave.executors.pieces import OpPieces
from stepweave.executors.terms import Terms
from stepweave.models import attention, in_pieces
from stepweave.models.causal_lm import CausalLM
from stepweave.models.eagle import EagleHead
from stepweave.models.kernels import operators
from stepweave.models.trial import TwoRows
from stepweave.nodes.data import Progress
from stepweave.nodes.ops.block_tables import BlockTables
from stepweave.nodes.ops.history import History
from stepweave.nodes.ops.staging import Staging
from stepweave.nodes.ops.windows import draw
from stepweave.nodes.prepare_inputs import prepare_inputs, stage
from stepweave.policies.acceptance import Coupled
from stepweave.requests.batch import ScheduledRow, StepBatch
from stepweave.testing.devices.recorded_calls import RecordedCalls
from stepweave.testing.engines import tiny_pair
from stepweave.testing.launches import Launches
from stepweave.testing.models import tiny_eagle, tiny_model
from tests.nodes.ready import chain_of, inputs_for
from tests.nodes.steps import LIMITS

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
    as_on_a_device = patch.object(in_pieces, "laid_out", lambda *_: None)
    with patch.object(attention, "_attend_again", attend_again), as_on_a_device:
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


class _Written(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of what torch writes that is as large as a line of logits."""

    def __init__(self, least: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.least, self.nbytes = least, 0

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = operation(*args, **(kwargs or {}))
        if not is_view(operation) and result.numel() >= self.least:
            self.nbytes += result.nbytes
        return result


def sampled(rows: Sequence[ScheduledRow], vocab: int) -> tuple[Counter[str], int, int]:
    """Drawing the tokens of a step of these rows, rounded up, from logits in bfloat16: launches,
    bytes that torch writes of a line and more, and how many texts are read.
    """
    limits = replace(LIMITS, max_rows=len(rows), num_blocks=8 * len(rows) + 9)
    slots, context = len(rows) + 1, LIMITS.context_length
    past, read = History(slots, context), list[int]()
    inputs = prepare_inputs(
        staging=stage(batch=StepBatch(7, tuple(rows), padding=0), staging=Staging(limits)),
        progress=Progress.empty(slots),
        history=past,
        tables=BlockTables(slots, limits.blocks_for(context)),
        drafts=None,
        limits=limits,
        vocab_size=vocab,
    )
    assert inputs is not None
    assert inputs.sample is not None
    logits = torch.zeros(len(rows), 1, vocab, dtype=torch.bfloat16)

    def of(history: History, request_slot: Tensor, longest: int) -> Tensor:
        read.append(len(request_slot))
        return text_of(history, request_slot, longest)

    text_of, written = History.of, _Written(vocab)
    with patch.object(History, "of", of), torch.inference_mode(), written, counting() as counted:
        draw(Coupled(), inputs.sample, logits, None, past)
    return counted.counts, written.nbytes, sum(read)
