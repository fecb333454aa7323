"""Which tokens of a drafter's first pass are real, where its batches are not padded.

A padded first pass has the shape of the target's windows and masks what was refused; nothing waits
for the host to learn how much that is. An unpadded one leaves those tokens out. The host picks them
when it knows the counts, in an op that the plan makes wait for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from ...requests.batch import StepBatch
from ..data import Kept

if TYPE_CHECKING:
    from ..drafter import Spans


def keep_tokens(spans: Spans, batch: StepBatch, host_counts: Tensor | None, buffer: Tensor) -> Kept:
    """The real tokens of each row's span (first, count), noted in `buffer[most]`.

    `host_counts[max_rows]`: the tokens of each of the S sampling rows, which come first.
    """
    known = [] if host_counts is None else host_counts.numpy()[: len(batch.sampling)].tolist()
    found = spans(batch, known)
    token_index = [index for first, count in found for index in range(first, first + count)]
    buffer.numpy()[: len(token_index)] = token_index
    return Kept(buffer[: len(token_index)], tuple(count for _, count in found))
