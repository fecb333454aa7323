"""forward: the target model over the step's tokens, on the paged KV cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..graph.declare import op
from ..graph.parameters import (
    given,
    optional,
    optional_state,
    optional_update,
    pieces,
    read,
    update,
    wanted,
)
from .kind import NodeKind
from .values import (
    ARRIVED,
    ENCODED,
    HIDDEN,
    INPUTS,
    KV,
    LOGITS,
    MEETINGS,
    PROMPT_LOGITS,
    ROW_STATES,
    TARGET,
    divided,
    keeps_states,
)

if TYPE_CHECKING:
    from torch import Tensor

    from ..distributed.membership import Membership
    from ..graph.pieces import Pieces
    from ..models.causal_lm import CausalLM
    from ..models.paged_cache import PagedCache
    from ..models.recurrent import RowStates
    from .data import Inputs
    from .ops.encoding import EncodedRows


@op(writes=(LOGITS, PROMPT_LOGITS, wanted(HIDDEN)))
def forward(
    inputs: Inputs | None = read(INPUTS),
    kv: PagedCache = update(KV),
    target: CausalLM = given(TARGET),
    arrived: Tensor | None = optional(ARRIVED),
    meetings: Membership | None = optional_update(MEETINGS, when=divided),
    states: RowStates | None = optional_update(ROW_STATES, when=keeps_states),
    recorder: Pieces | None = pieces(),
    encoded: EncodedRows | None = optional_state(ENCODED),
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Logits `[S, W, V]` and `[P, V]`, and the hidden states `[T, F]` that are watched.

    A stage of a model goes on from `arrived[T, F]`; one that is not the last has no logits, and its
    hidden states are what it hands on.
    """
    from .ops.passes import target_pass

    if inputs is None:
        return None, None, None
    return target_pass(target, inputs, kv, arrived, states, recorder, encoded)


KIND = NodeKind(
    "forward",
    "run the target model; logits [S, W, V] of the sampling rows",
    device=(forward,),
    stages="each",
)
