"""hear_drafts: on every stage but the last, what the last one drafted."""

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


@op(writes=DRAFTS)
def hear_drafts(
    staging: StagedStep | None = read(STAGING),
    drafts: DraftTable = read(DRAFTS, 1),
    links: Links = given(LINKS),
    ctx: OpContext = context(),
) -> DraftTable:
    """The drafts of every live row, and how they branch."""
    from .data import DraftTable
    from .ops.telling import parts

    if staging is None:
        return drafts
    shapes = [part.shape for part in parts(drafts)]
    return DraftTable(*links.hear(ctx.step, shapes, drafts.tokens))


KIND = NodeKind(
    "hear_drafts",
    "hear from the last stage what was drafted",
    device=(hear_drafts,),
    stream="feedback",
)
