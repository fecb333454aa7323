"""d2h_copy: bring sampled tokens and drafts to pinned host memory, beside the next forward.

Drafts are wanted on the host only to be checked against grammars.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..graph.declare import op
from ..graph.parameters import buffer, optional, read, wanted
from .kind import NodeKind
from .values import DRAFTS, HOST_DRAFTS, HOST_SAMPLED, SAMPLED

if TYPE_CHECKING:
    from .data import DraftTable, HostDrafts, HostSampled, Sampled


@op(writes=(HOST_SAMPLED, wanted(HOST_DRAFTS, of=DRAFTS)))
def d2h_copy(
    sampled: Sampled | None = read(SAMPLED),
    drafts: DraftTable | None = optional(DRAFTS),
    host_sampled: HostSampled = buffer(HOST_SAMPLED),
    host_drafts: HostDrafts | None = buffer(HOST_DRAFTS),
) -> tuple[HostSampled | None, HostDrafts | None]:
    """The copies. Whoever reads them comes after the stream has made them."""
    from .ops.host_copies import copy_drafts, copy_sampled

    if sampled is not None:
        copy_sampled(sampled, host_sampled)
    if drafts is not None and host_drafts is not None:
        copy_drafts(drafts, host_drafts)
    return host_sampled if sampled is not None else None, host_drafts


KIND = NodeKind(
    "d2h_copy",
    "copy sampled tokens and drafts to pinned host memory",
    device=(d2h_copy,),
    stream="copy",
    stages="all",
)
