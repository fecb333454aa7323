"""tell_drafts: on the last stage, send the pending drafts to the other stages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..graph.declare import op
from ..graph.node import OpContext
from ..graph.parameters import context, given, read
from .kind import NodeKind
from .values import DRAFTS, LINKS, STAGING

if TYPE_CHECKING:
    from .data import DraftTable, StagedStep
    from .links import Links


@op
def tell_drafts(
    staging: StagedStep | None = read(STAGING),
    drafts: DraftTable = read(DRAFTS),
    links: Links = given(LINKS),
    ctx: OpContext = context(),
) -> None:
    """The drafts of every live row, and how they branch."""
    from .ops.telling import parts

    if staging is not None:
        links.tell(ctx.step, *parts(drafts))


KIND = NodeKind(
    "tell_drafts",
    "tell the other stages what was drafted",
    device=(tell_drafts,),
    stream="feedback",
)
