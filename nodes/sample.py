"""sample: verify the draft window and draw the next token, on the device.

The grammar's mask comes before temperature and cuts, as it does without speculation; drafts that
the grammar refuses, or that lie past the context, are not considered, and no position after them
is ever sampled. The new last token and count of each row stay on the device for the next step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..graph.declare import op
from ..graph.parameters import given, optional, optional_state, optional_update, read, update
from ..policies.acceptance import Acceptance
from .kind import NodeKind
from .values import (
    ACCEPTANCE,
    DRAFT_PROBS,
    HISTORY,
    INPUTS,
    LOGITS,
    MASK,
    MEETINGS,
    PROGRESS,
    PROMPT_LOGITS,
    SAMPLED,
    SOURCES,
    VOCAB_SIZE,
    agreement,
    divided,
)

if TYPE_CHECKING:
    from torch import Tensor

    from ..distributed.agreement import Agreement
    from ..distributed.membership import Membership
    from .data import Inputs, Mask, Progress, Sampled
    from .ops.history import History

AGREED = agreement("on_samples")
"""Logits can differ in the last bit from rank to rank: what is sampled is that of rank 0."""


def compares(rule: Acceptance = given(ACCEPTANCE)) -> bool:
    """Whether the acceptance rule needs what drafts were drawn from."""
    return rule.compares


@op(writes=(SAMPLED, PROGRESS), agrees=True)
def sample(
    inputs: Inputs | None = read(INPUTS),
    logits: Tensor | None = read(LOGITS),
    prompt_logits: Tensor | None = read(PROMPT_LOGITS),
    progress: Progress = read(PROGRESS, 1),
    history: History = update(HISTORY),
    mask: Mask | None = optional(MASK),
    draft_probs: Tensor | None = optional_state(DRAFT_PROBS, when=compares),
    rule: Acceptance = given(ACCEPTANCE),
    agree: Agreement | None = given(AGREED),
    meetings: Membership | None = optional_update(MEETINGS, when=divided),
    vocab_size: int = given(VOCAB_SIZE),
    sources: Mapping[tuple[str, str], str] = given(SOURCES),
) -> tuple[Sampled | None, Progress]:
    """The tokens of the step, and the hand-off to the next. It adds the tokens to the history.

    `logits[S, W, V]`, `prompt_logits[P, V]`, `draft_probs[R, k, V]`: None where there are none.
    Raises `MissingMask` where a row with a grammar has no mask, and `WrongResult` for logits that
    are not of the step's rows.
    """
    from .ops.results import check_scores
    from .ops.windows import sample_step

    if inputs is None:
        return None, progress
    asked = (
        (LOGITS, None if inputs.sample is None else inputs.sample.logit_index, logits),
        (PROMPT_LOGITS, None if inputs.prompt is None else inputs.prompt.targets, prompt_logits),
    )
    for value, places, found in asked:
        if places is not None:
            source = sources.get((KIND.name, value.name))
            check_scores(value.name, found, (*places.shape, vocab_size), source)
    return sample_step(
        rule, inputs, logits, prompt_logits, progress, history, mask, draft_probs, agree
    )


KIND = NodeKind("sample", "mask, verify the draft window, draw the next token", device=(sample,))
