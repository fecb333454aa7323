"""tell: on the last stage, send what a step sampled to the other stages."""

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


@op
def tell(
    staging: StagedStep | None = read(STAGING),
    sampled: Sampled | None = read(SAMPLED),
    progress: Progress = read(PROGRESS),
    links: Links = given(LINKS),
    sizes: Sizes = given(SIZES),
    ctx: OpContext = context(),
) -> None:
    """The tokens of the step, along which paths of draft trees, and how far each request is."""
    from .ops.telling import tell_sampled

    if staging is not None:
        tell_sampled(links, ctx.step, staging, sampled, progress, trees=sizes.trees)


KIND = NodeKind("tell", "tell the other stages what was sampled", device=(tell,), stream="feedback")
