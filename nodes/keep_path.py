"""keep_path: move the keys and values of accepted drafts of a tree to where they belong.

The drafts of a tree lie side by side in the cache, in the order of its places. Those on the path
that was accepted are to lie one behind the other, at their positions: there everybody looks for
them, the next step and the prefix cache alike. So do the states that layers keep after each draft.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..graph.declare import op
from ..graph.parameters import optional_update, read, update
from .kind import NodeKind
from .values import INPUTS, KV, ROW_STATES, SAMPLED, keeps_states

if TYPE_CHECKING:
    from ..models.paged_cache import PagedCache
    from ..models.recurrent import RowStates
    from .data import Inputs, Sampled


@op
def keep_path(
    inputs: Inputs | None = read(INPUTS),
    sampled: Sampled | None = read(SAMPLED),
    kv: PagedCache = update(KV),
    states: RowStates | None = optional_update(ROW_STATES, when=keeps_states),
) -> None:
    """Nothing to do in a step without trees."""
    from .ops.paths import keep

    if inputs is not None and sampled is not None and sampled.paths is not None:
        keep(inputs, sampled.paths, sampled.counts, kv, states)


KIND = NodeKind(
    "keep_path",
    "move keys, values and states of the accepted path of a draft tree to their places",
    device=(keep_path,),
    stages="late",
)
