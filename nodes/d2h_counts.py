"""d2h_counts: how many tokens each row got, on the host, before the drafter is launched.

With this node in the pipeline a drafter does not pad its batches: its shapes depend on that
number, so its launch waits for the device. The plan shows what that costs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..graph.declare import op
from ..graph.parameters import buffer, read
from .kind import NodeKind
from .values import HOST_COUNTS, SAMPLED

if TYPE_CHECKING:
    from torch import Tensor

    from .data import Sampled


@op(writes=HOST_COUNTS)
def d2h_counts(
    sampled: Sampled | None = read(SAMPLED), host_counts: Tensor = buffer(HOST_COUNTS)
) -> Tensor | None:
    """The counts in the first S of `host_counts[max_rows]`, the rest as it was; `[max_rows]`."""
    from .ops.host_copies import copy_counts

    return None if sampled is None else copy_counts(sampled, host_counts)


KIND = NodeKind(
    "d2h_counts",
    "copy the number of sampled tokens to the host, for the drafter",
    device=(d2h_counts,),
    stream="copy",
)
