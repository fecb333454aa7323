"""draft_ngram: propose what followed the last few tokens when they stood in the text before.

Prompt look-up (Saxena 2023) needs every token of the row; engines that kept them on the host had to
give up either overlap or this drafter. Ours are on the device.
"""

from __future__ import annotations

from ..graph.node import OpContext
from ..sampling.lookup import propose as look_up
from .history import History
from .prepare_inputs import Inputs
from .proposal import Proposal
from .sample import Sampled


def propose(
    longest: int, shortest: int, ctx: OpContext, inputs: Inputs, sampled: Sampled | None
) -> Proposal | None:
    sample = inputs.sample
    history: History = ctx.state("history")
    if sample is None or sampled is None or sample.draft_width == 0:
        return None
    reach = sample.longest + sampled.tokens.shape[1]
    tokens, valid = look_up(
        history.tokens[sample.rows, :reach].long(),
        sample.base + sampled.counts + 1,
        sample.draft_width,
        longest,
        shortest,
    )
    return Proposal(tokens, valid)
