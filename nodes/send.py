"""send: on every stage but the last, hand hidden states on to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..graph.declare import op
from ..graph.errors import StepweaveError
from ..graph.node import OpContext
from ..graph.parameters import context, given, read
from .kind import NodeKind
from .values import HIDDEN, LINKS, STAGING, TARGET

if TYPE_CHECKING:
    from torch import Tensor

    from ..models.causal_lm import CausalLM
    from .data import StagedStep
    from .links import Links


@op
def send(
    hidden: Tensor | None = read(HIDDEN),
    staging: StagedStep | None = read(STAGING),
    links: Links = given(LINKS),
    target: CausalLM = given(TARGET),
    ctx: OpContext = context(),
) -> None:
    """Send `hidden[T, F]`; it comes back when the next stage has it.

    Raises `StepweaveError` for another shape than the next stage expects: a library that gets more
    ends the process.
    """
    if staging is None or hidden is None:
        return
    if (found := tuple(hidden.shape)) != (expected := (staging.tokens, target.departs)):
        raise StepweaveError(f"the next stage expects {list(expected)} numbers, not {list(found)}")
    links.send(ctx.step, hidden)


KIND = NodeKind("send", "send hidden states to the next stage", device=(send,), stream="send")
