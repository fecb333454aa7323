"""jump_forward: drafts that a grammar forces, for free.

Where a grammar leaves one text to come, such as the key of the next field, its tokens are drafted
without a drafter's work. On the host the matchers walk the window of the step, as they do for the
masks, and note what is forced after each of its positions; the drafter's device op takes up what is
forced after the newest token. So nothing waits for the host to know what was sampled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..graph.declare import op
from ..graph.parameters import Resource, buffer, given, optional, read, update
from .kind import NodeKind
from .values import BATCH, FORCED, HOST_DRAFTS, MATCHERS, TOKENIZER

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

    from ..requests.batch import StepBatch
    from ..structured.forced import ForcedTokens
    from .data import HostDrafts
    from .ops.masks import MatcherTable


def _forced_tokens(tokenizer: PreTrainedTokenizerBase = given(TOKENIZER)) -> ForcedTokens:
    from ..structured.forced import ForcedTokens

    return ForcedTokens(tokenizer)


FORCED_TOKENS: Resource[ForcedTokens] = Resource("forced_tokenizer", _forced_tokens)
"""How forced texts are cut into tokens."""


@op(writes=FORCED)
def find(
    batch: StepBatch = read(BATCH),
    matchers: MatcherTable = update(MATCHERS),
    host_drafts: HostDrafts | None = optional(HOST_DRAFTS, 1),
    forced: Tensor = buffer(FORCED),
    tokens: ForcedTokens = given(FORCED_TOKENS),
) -> Tensor | None:
    """What must come after each window position, in `forced[max_rows, L, L]`: `[S, W, L]`."""
    from .ops.forcing import find_forced

    return find_forced(batch, matchers, host_drafts, forced, tokens)


KIND = NodeKind(
    "jump_forward",
    "find the tokens that grammars force, which are then drafted without a drafter's work",
    host=(find,),
)
