"""fork: copy the last KV block of a prompt for each further completion of it.

Completions of one prompt share the blocks that it fills. In its last block each writes on, so each
has a copy; without this node they compute the tokens of that block again. Which blocks are copied
in a step is decided with its rows (`requests/forks.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..graph.declare import op
from ..graph.parameters import optional_update, read, update
from .kind import NodeKind
from .values import BATCH, DRAFT_KV, FORK_COPIES, KV

if TYPE_CHECKING:
    from ..models.paged_cache import PagedCache
    from ..requests.batch import StepBatch


@op(writes=FORK_COPIES)
def list_copies(batch: StepBatch = read(BATCH)) -> tuple[tuple[int, int], ...] | None:
    """The copies that were decided with the rows, from and to."""
    return batch.copies or None


@op
def copy(
    copies: tuple[tuple[int, int], ...] | None = read(FORK_COPIES),
    kv: PagedCache = update(KV),
    draft_kv: PagedCache | None = optional_update(DRAFT_KV),
) -> None:
    """Copy the blocks, in the target's cache and in the drafter's."""
    for source, target in copies or ():
        kv.copy_block(source, target)
        if draft_kv is not None:
            draft_kv.copy_block(source, target)


KIND = NodeKind(
    "fork",
    "copy the last KV block of a prompt for each further completion of it",
    host=(list_copies,),
    device=(copy,),
    stages="all",
)
