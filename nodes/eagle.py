"""eagle: propose tokens with an EAGLE head, from the target's own hidden states.

The head at position p takes the target's feature of token p and the token at p + 1, and predicts
the token at p + 2 (Li et al. 2024, arXiv:2401.15077; EAGLE-3: 2025, arXiv:2503.01840). So its
first pass runs over the very tokens of the step, shifted by one: prompt chunks and draft windows
alike, on the target's slots. What follows a window's tokens are the tokens just sampled; positions
after the accepted ones are masked, and their keys are overwritten by the next window.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ..graph.node import State
from ..graph.parameters import Resource, given, optional, pieces, read, settings, update
from ..policies.acceptance import Acceptance
from ..requests.limits import Limits
from .drafter import Drafter, Propose, settled_spans
from .drafting_model import cache_of, fitting
from .options import ModelName
from .tree import DRAFT_TREE, GrownTree, ListedTree, TreeOptions
from .values import (
    ACCEPTANCE,
    DRAFT_MASK,
    HIDDEN,
    INPUTS,
    KEPT,
    LIMITS,
    LOADING,
    SAMPLED,
    TARGET,
    VOCAB_SIZE,
)

if TYPE_CHECKING:
    from torch import Tensor

    from ..graph.pieces import Pieces
    from ..models.causal_lm import CausalLM
    from ..models.eagle import EagleHead
    from ..models.loading import Loading
    from ..models.paged_cache import PagedCache
    from .data import DraftMask, Inputs, Kept, Proposal, Sampled


class HeadOptions(TreeOptions):
    """Options of a drafter that is a head on the target's hidden states."""

    model: ModelName = Field(description="The head: a directory, or a hub name.")


class EagleOptions(HeadOptions):
    """Options of an EAGLE head."""

    model: ModelName = Field(
        default="embedded-eagle",
        description="The head: a directory, or a hub name. Default: that of the embedded model.",
    )


def _load(
    chosen: HeadOptions = settings(HeadOptions),
    target: CausalLM = given(TARGET),
    loading: Loading = given(LOADING),
) -> EagleHead:
    return loading.eagle_head(chosen.model, target)


HEAD: Resource[EagleHead] = Resource("head", _load)
"""The head of an EAGLE drafter."""
FITTING_HEAD = fitting(HEAD)
HEAD_KV = cache_of(FITTING_HEAD)


def proposing(head: Resource[EagleHead], head_kv: State[PagedCache]) -> Propose:
    """What a drafter with such a head does, whose keys and values are in `head_kv`."""

    def propose(
        inputs: Inputs | None = read(INPUTS),
        sampled: Sampled | None = read(SAMPLED),
        hidden: Tensor | None = read(HIDDEN),
        draft_kv: PagedCache = update(head_kv),
        kept: Kept | None = optional(KEPT),
        allowed: DraftMask | None = optional(DRAFT_MASK),
        head: EagleHead = given(head),
        rule: Acceptance = given(ACCEPTANCE),
        vocab_size: int = given(VOCAB_SIZE),
        limits: Limits = given(LIMITS),
        tree: ListedTree | GrownTree | None = given(DRAFT_TREE),
        recorder: Pieces | None = pieces(),
    ) -> Proposal | None:
        """Drafts that continue the sampled tokens. `hidden[T, F]` as the head wants them.

        The first of them are of those `allowed`.
        """
        from .ops import draft_eagle

        if inputs is None or hidden is None:
            return None
        return draft_eagle.propose(
            head,
            inputs,
            sampled,
            hidden,
            draft_kv,
            kept,
            allowed,
            rule,
            vocab_size,
            limits.context_length,
            tree,
            recorder,
        )

    return propose


propose = proposing(FITTING_HEAD, HEAD_KV)
"""What `eagle` and `eagle3` do."""


KIND = Drafter(
    "eagle",
    "propose k tokens per row with an EAGLE head on the target's last hidden state",
    propose,
    options=EagleOptions,
    draws=True,
    spans=settled_spans,
)
