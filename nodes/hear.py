"""hear: on every stage but the last, what the last one sampled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..graph.declare import op
from ..graph.node import OpContext
from ..graph.parameters import context, given, read
from .kind import NodeKind
from .sizes import Sizes
from .values import LINKS, PROGRESS, SAMPLED, SIZES, STAGING

if TYPE_CHECKING:
    from .data import Progress, Sampled, StagedStep
    from .links import Links


@op(writes=(SAMPLED, PROGRESS))
def hear(
    staging: StagedStep | None = read(STAGING),
    progress: Progress = read(PROGRESS, 1),
    links: Links = given(LINKS),
    sizes: Sizes = given(SIZES),
    ctx: OpContext = context(),
) -> tuple[Sampled | None, Progress]:
    """What `tell` tells; the host knows all shapes."""
    from .ops.telling import hear_sampled

    if staging is None:
        return None, progress
    return hear_sampled(links, ctx.step, staging, progress, trees=sizes.trees)


KIND = NodeKind(
    "hear", "hear from the last stage what was sampled", device=(hear,), stream="feedback"
)
