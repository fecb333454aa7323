"""bias_logits: add a bias to the logits of some tokens, between `forward` and `sample`.

A whole node kind of somebody else's. It says what it reads and writes; where it waits, and for
what, is derived like that of every other node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from stepweave.nodes import LOGITS, NodeKind, Options, Value, op, read, settings

if TYPE_CHECKING:
    from torch import Tensor


class Bias(Options):
    """What a pipeline file may say of the node."""

    tokens: tuple[int, ...] = Field(default=(), description="Ids of the tokens to bias.")
    bias: float = Field(default=1.0, description="What is added to their logits.")


BIASED: Value[Tensor | None] = Value("biased", "device", "slots")
"""`[S, W, V]`: the logits of the sampling rows, biased."""


@op(writes=BIASED)
def bias_logits(
    logits: Tensor | None = read(LOGITS), chosen: Bias = settings(Bias)
) -> Tensor | None:
    """The biased logits; None, which is an explicit none, where no row of this step samples."""
    import torch

    if logits is None:
        return None
    with torch.inference_mode():
        added = logits.new_zeros(logits.shape[-1])
        added[torch.tensor(chosen.tokens, dtype=torch.long)] = chosen.bias
        return logits + added  # anew: what a node reads it must not change


KIND = NodeKind(
    "bias_logits", "add a bias to the logits of some tokens", device=(bias_logits,), options=Bias
)
