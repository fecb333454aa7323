"""A drafter with another vocabulary than its target, as far as both have tokens in common.

A draft of a token that both have is the target's token, and others are not drafted: the drafter's
distribution is restricted to the common tokens (token-level intersection; Timor et al. 2025,
arXiv:2502.05202). What is accepted is decided by the target as for every drafter, so its tokens, or
their distribution, are what the acceptance rule says, whatever the drafter is.

Every token of the text has one place in the drafter's cache. One that the drafter does not have is
read as the part of it that comes last.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import torch
from torch import Tensor

from ..graph.pieces import Pieces
from .attention import AttentionBatch
from .cache_dtype import CacheDType
from .causal_lm import CausalLM
from .errors import ModelError
from .paged_cache import LayerShape, PagedCache

Spelled = Sequence[Hashable]
"""What each token of a vocabulary spells: bytes, or the name of a control token; b"": nothing."""

LEAST = 0.05
"""The part of the smaller vocabulary that must be common: with less, hardly a draft is right."""


class TranslatedLM:
    """`model`, taking and giving tokens of a vocabulary of `vocab_size` tokens.

    `reads[vocab_size]`: the token of its own that it reads in the place of each. `own[n]` and
    `common[n]`: the tokens that both have, in its own vocabulary and in the other. A forward pass
    must not run in two threads at once.
    """

    def __init__(
        self, model: CausalLM, reads: Tensor, own: Tensor, common: Tensor, vocab_size: int
    ) -> None:
        self.model, self.vocab_size = model, vocab_size
        self.name = f"{model.name}, in another vocabulary"
        self.device, self.rope_switch = model.device, model.rope_switch
        self.keeps_states = model.keeps_states
        self._reads, self._own, self._common = (
            each.to(model.device) for each in (reads, own, common)
        )
        self.notes = (
            *model.notes,
            f"drafts {len(own)} of {vocab_size} tokens: those that both vocabularies have",
        )

    @classmethod
    def of(cls, model: CausalLM, own: Spelled, theirs: Spelled) -> TranslatedLM:
        """From what the tokens of both vocabularies spell. Raises `ModelError` where hardly a token
        is common.
        """
        place = {spelled: token for token, spelled in reversed(list(enumerate(own))) if spelled}
        pairs = [
            (place[spelled], token)
            for token, spelled in enumerate(theirs)
            if spelled and spelled in place
        ]
        smaller = min(sum(map(bool, own)), sum(map(bool, theirs)))
        if len(pairs) < max(1, LEAST * smaller):
            raise ModelError(
                f"the drafter and its target have only {len(pairs)} tokens in common, of "
                f"{len(own)} and {len(theirs)}: hardly a draft would be right; take a drafter of "
                "the target's family, or one that needs no model, such as ngram"
            )
        reads = [_read(spelled, place) for spelled in theirs]
        mine, common = torch.tensor(pairs).unbind(1)
        return cls(model, torch.tensor(reads), mine, common, len(theirs))

    @property
    def context_length(self) -> int:
        """Positions the model was made for."""
        return self.model.context_length

    @property
    def layer_shapes(self) -> tuple[LayerShape, ...]:
        """Of its cache."""
        return self.model.layer_shapes

    def new_cache(
        self, num_blocks: int, block_size: int, cache_dtype: CacheDType = "auto"
    ) -> PagedCache:
        """A zeroed cache of `num_blocks` blocks, scratch block 0 included."""
        return self.model.new_cache(num_blocks, block_size, cache_dtype)

    def forward(
        self,
        input_ids: Tensor,
        batch: AttentionBatch,
        logit_rows: Tensor | None = None,
        *,
        pieces: Pieces | None = None,
    ) -> tuple[Tensor, Tensor]:
        """As `CausalLM.forward` of `input_ids[T]`, for `logit_rows[L]`: logits `[L, V]` and hidden
        states `[T, H]`. The logits of tokens that it does not have are −inf.
        """
        read = self._reads.index_select(0, input_ids)
        logits, hidden = self.model.forward(read, batch, logit_rows, pieces=pieces)
        every = logits.new_full((len(logits), self.vocab_size), -torch.inf)
        return every.index_copy_(1, self._common, logits.index_select(1, self._own)), hidden


def _read(spelled: Hashable, place: Mapping[Hashable, int]) -> int:
    """The own token for one of the other vocabulary: the same, or else the longest of its ends."""
    if spelled in place:
        return place[spelled]
    ends = (
        (spelled[start:] for start in range(1, len(spelled))) if isinstance(spelled, bytes) else ()
    )
    return next((place[end] for end in ends if end in place), 0)
