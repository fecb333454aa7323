"""d2h_tokens: which tokens each row got, on the host, before the drafter is launched.

With this node a mask of the next draft can be filled in time (`draft_mask`): `d2h_copy` tells the
host what was sampled a drafter's pass later. The plan shows what that costs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..graph.declare import op
from ..graph.parameters import buffer, read
from .kind import NodeKind
from .values import HOST_TOKENS, SAMPLED

if TYPE_CHECKING:
    from .data import HostTokens, Sampled


@op(writes=HOST_TOKENS)
def d2h_tokens(
    sampled: Sampled | None = read(SAMPLED), host_tokens: HostTokens = buffer(HOST_TOKENS)
) -> HostTokens | None:
    """The tokens and counts, in the first lines of the buffers."""
    from .ops.host_copies import copy_tokens

    return None if sampled is None else copy_tokens(sampled, host_tokens)


KIND = NodeKind(
    "d2h_tokens",
    "copy the sampled tokens to the host, for the masks of the next drafts",
    device=(d2h_tokens,),
    stream="copy",
)
