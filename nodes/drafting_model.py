"""What drafters with a cache share: a model that fits the target, and its cache in the target's
blocks, so that blocks are granted once for both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from ..graph.node import State
from ..graph.parameters import Resource, given
from ..requests.limits import Limits
from .values import BLOCKS, DRAFT_KV, LIMITS, TARGET

if TYPE_CHECKING:
    from ..models.causal_lm import CausalLM
    from ..models.eagle import EagleHead
    from ..models.paged_cache import PagedCache
    from ..models.translated import TranslatedLM

M = TypeVar("M", bound="CausalLM | TranslatedLM | EagleHead")


def fitting(loaded: Resource[M]) -> Resource[M]:
    """The loaded model, checked against the target, which gives the hidden states that it reads.

    Making it raises `ModelError` where the two do not fit.
    """

    def fitted(model: M = given(loaded), target: CausalLM = given(TARGET)) -> M:
        from ..models.fitting import fit_drafter

        fit_drafter(model, target)
        return model

    return Resource(f"fitting_{loaded.name}", fitted)


def cache_of(model: Resource[M]) -> State[PagedCache]:
    """The model's keys and values, in the target's blocks. Making it raises `NoMemory`."""

    def new_cache(model: M = given(model), limits: Limits = given(LIMITS)) -> PagedCache:
        return model.new_cache(limits.cache_blocks, limits.block_size, limits.cache_dtype)

    return State(DRAFT_KV, make=new_cache, keys=BLOCKS)
