"""top_n_sigma: a logits processor that each request sets for itself.

It keeps the tokens whose logits are within n standard deviations of the best one (Tang et al. 2024,
arXiv:2411.07641). n is a number of the request: `node_settings: {top_n_sigma: 1.0}`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepweave.nodes import INPUTS, LOGITS, NodeKind, RequestSetting, Value, op, read

if TYPE_CHECKING:
    from torch import Tensor

    from stepweave.nodes import Inputs

N = RequestSetting(
    "top_n_sigma",
    "Keep tokens within so many standard deviations of the best logit; 0: off.",
    least=0,
    most=100,
)
PROCESSED: Value[Tensor | None] = Value("processed", "device", "slots")
"""`[S, W, V]`: the logits of the sampling rows, those of other tokens −∞."""


@op(writes=PROCESSED)
def top_n_sigma(
    logits: Tensor | None = read(LOGITS), inputs: Inputs | None = read(INPUTS)
) -> Tensor | None:
    """The logits as each row's request wants them; None where no row of this step samples."""
    import torch

    if logits is None or inputs is None or inputs.sample is None:
        return None
    n = inputs.sample.setting(N)  # [S], or None where no request of the step gives it
    if n is None:
        return logits
    with torch.inference_mode():
        scores = logits.float()
        # Off is infinitely many of them. Each row has its own n, every position of its window.
        reach = torch.where(n > 0, n, torch.inf).to(scores.dtype)[:, None, None]
        least = scores.amax(dim=-1, keepdim=True) - reach * scores.std(dim=-1, keepdim=True)
        return logits.masked_fill(scores < least, -torch.inf)


KIND = NodeKind(
    "top_n_sigma",
    "keep the tokens within some standard deviations of the best",
    device=(top_n_sigma,),
    asks=(N,),
)
