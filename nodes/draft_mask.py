"""draft_mask: what a grammar allows after the newest token, for the drafter that goes on from it.

A drafter knows no grammar, so where a model and its grammar disagree its first draft is often
refused, and all behind it with it. Here the matchers walk over the tokens that the step has just
sampled, and back; the drafter chooses its first draft among those that are allowed. That is a wait
for the host between the sample and the drafter, which no other node has. Later drafts would need a
wait each, for what they follow; masks of the next step cut them as ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..graph.declare import op
from ..graph.parameters import buffer, given, read, update
from .kind import NodeKind
from .values import BATCH, DEVICE, DRAFT_MASK, DRAFT_MASK_HOST, HOST_TOKENS, MATCHERS

if TYPE_CHECKING:
    import torch

    from ..requests.batch import StepBatch
    from .data import DraftMask, HostTokens
    from .ops.draft_masks import DraftMaskBuffer
    from .ops.masks import MatcherTable


@op(writes=DRAFT_MASK_HOST)
def fill(
    batch: StepBatch = read(BATCH),
    matchers: MatcherTable = update(MATCHERS),
    host_tokens: HostTokens | None = read(HOST_TOKENS),
    masks: DraftMaskBuffer = buffer(DRAFT_MASK_HOST),
) -> DraftMask | None:
    """Masks after the newest token of rows that have a grammar; None where none has, or none may be
    offered drafts.
    """
    from .ops.draft_masks import fill_next

    return fill_next(batch, matchers, host_tokens, masks)


@op(writes=DRAFT_MASK)
def upload(
    filled: DraftMask | None = read(DRAFT_MASK_HOST), device: torch.device = given(DEVICE)
) -> DraftMask | None:
    """The masks on the device."""
    from .ops.draft_masks import uploaded

    return None if filled is None else uploaded(filled, device)


KIND = NodeKind(
    "draft_mask",
    "fill the grammar mask of the first draft, once the host knows what was sampled",
    host=(fill,),
    device=(upload,),
)
