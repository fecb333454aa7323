"""receive: on every stage but the first, what the stage before hands on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..graph.declare import op
from ..graph.node import OpContext
from ..graph.parameters import context, given, read
from .kind import NodeKind
from .values import ARRIVED, LINKS, STAGING, TARGET

if TYPE_CHECKING:
    from torch import Tensor

    from ..models.causal_lm import CausalLM
    from .data import StagedStep
    from .links import Links


@op(writes=ARRIVED)
def receive(
    staging: StagedStep | None = read(STAGING),
    links: Links = given(LINKS),
    target: CausalLM = given(TARGET),
    ctx: OpContext = context(),
) -> Tensor | None:
    """What enters the stage's first layer, `[T, F]`; the host knows T, so nobody sends it."""
    if staging is None:
        return None
    shape = (staging.tokens, target.arrives)
    return links.receive(ctx.step, shape, target.dtype, target.device)


KIND = NodeKind(
    "receive", "receive what the stage before hands on", device=(receive,), stream="receive"
)
