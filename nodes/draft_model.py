"""draft_model: offer each row tokens for its next window, with a smaller causal LM on its cache.

Each round feeds the last two tokens (the one before last was never fed if every draft was
accepted), then the proposals one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

from pydantic import Field

from ..graph.parameters import Resource, given, optional, pieces, read, settings, update
from ..policies.acceptance import Acceptance
from ..requests.limits import Limits
from .drafter import Drafter
from .drafting_model import cache_of, fitting
from .options import DrafterOptions, ModelName
from .sizes import Sizes
from .values import (
    ACCEPTANCE,
    DRAFT_MASK,
    INPUTS,
    KEPT,
    LIMITS,
    LOADING,
    SAMPLED,
    SIZES,
    TARGET,
    VOCAB_SIZE,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from ..graph.pieces import Pieces
    from ..models.causal_lm import CausalLM
    from ..models.loading import Loading
    from ..models.paged_cache import PagedCache
    from ..models.translated import TranslatedLM
    from ..requests.batch import StepBatch
    from .data import DraftMask, Inputs, Kept, Proposal, Sampled

    Vocabularies: TypeAlias = tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase]


class DraftModelOptions(DrafterOptions):
    """Options of a drafter that is a smaller causal language model."""

    model: ModelName = Field(
        default="embedded-draft",
        description="The drafter: a directory, or a hub name. Default: that of the embedded model.",
    )
    vocabulary: Literal["same", "common"] = Field(
        default="same",
        description="same: the drafter has the target's vocabulary. common: it has another, and "
        "drafts the tokens that both have, by what they spell.",
    )


def _load(
    chosen: DraftModelOptions = settings(DraftModelOptions),
    target: CausalLM = given(TARGET),
    loading: Loading = given(LOADING),
) -> CausalLM:
    return loading.causal_lm(chosen.model, target.device)


DRAFT_MODEL: Resource[CausalLM] = Resource("draft_model", _load)
"""The smaller model."""


def _vocabularies(
    chosen: DraftModelOptions = settings(DraftModelOptions), target: CausalLM = given(TARGET)
) -> Vocabularies | None:
    if chosen.vocabulary == "same":
        return None
    from ..models.tokenizer import load_tokenizer

    return load_tokenizer(chosen.model), load_tokenizer(target.checkpoint)


VOCABULARIES: Resource[Vocabularies | None] = Resource("vocabularies", _vocabularies)
"""The tokenizers of the drafter and its target; None where they have one vocabulary."""


def _speaking(
    model: CausalLM = given(DRAFT_MODEL),
    tokenizers: Vocabularies | None = given(VOCABULARIES),
    target: CausalLM = given(TARGET),
) -> CausalLM | TranslatedLM:
    if tokenizers is None:
        return model
    from .ops.vocabularies import translated

    return translated(model, tokenizers[0], target, tokenizers[1])


SPEAKING_MODEL: Resource[CausalLM | TranslatedLM] = Resource("speaking_draft_model", _speaking)
"""The same, in the target's vocabulary."""
FITTING_MODEL = fitting(SPEAKING_MODEL)
DRAFT_KV = cache_of(FITTING_MODEL)


def propose(
    inputs: Inputs | None = read(INPUTS),
    sampled: Sampled | None = read(SAMPLED),
    draft_kv: PagedCache = update(DRAFT_KV),
    kept: Kept | None = optional(KEPT),
    allowed: DraftMask | None = optional(DRAFT_MASK),
    model: CausalLM | TranslatedLM = given(FITTING_MODEL),
    rule: Acceptance = given(ACCEPTANCE),
    vocab_size: int = given(VOCAB_SIZE),
    limits: Limits = given(LIMITS),
    sizes: Sizes = given(SIZES),
    recorder: Pieces | None = pieces(),
) -> Proposal | None:
    """Drafts that continue the sampled tokens, by the model's own continuation.

    The first of them is one of those `allowed`.
    """
    from .ops import draft_model

    if inputs is None:
        return None
    draft_model.follow_prompts(model, inputs, draft_kv, recorder)
    if inputs.sample is None or sampled is None:
        return None
    return draft_model.propose(
        model,
        inputs,
        sampled,
        draft_kv,
        kept,
        allowed,
        rule,
        vocab_size,
        limits.context_length,
        recorder,
        unseen=sizes.forced,
    )


def not_fed_yet(batch: StepBatch, counts: Sequence[int]) -> list[tuple[int, int]]:
    """Of a row's last two tokens, the first is new to the drafter only if all drafts were kept."""
    return [
        (2 * index, 2) if row.decodes and counts[index] == row.queries else (2 * index + 1, 1)
        for index, row in enumerate(batch.sampling)
    ]


KIND = Drafter(
    "draft_model",
    "propose k tokens per row with a smaller causal LM",
    propose,
    options=DraftModelOptions,
    draws=True,
    spans=not_fed_yet,
)
