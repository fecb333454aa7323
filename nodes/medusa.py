"""medusa: propose tokens with Medusa heads, each of which guesses one token further ahead.

All read the hidden state from which the newest token was sampled, so they draft in parallel: a
draft does not depend on those before it. See `models/medusa.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ..graph.parameters import Resource, given, optional, read, settings
from ..policies.acceptance import Acceptance
from .drafter import Drafter
from .eagle import HeadOptions
from .options import ModelName
from .tree import DRAFT_TREE, GrownTree, ListedTree, Nodes
from .values import ACCEPTANCE, DRAFT_MASK, HIDDEN, INPUTS, LOADING, SAMPLED, TARGET, VOCAB_SIZE

if TYPE_CHECKING:
    from torch import Tensor

    from ..models.causal_lm import CausalLM
    from ..models.loading import Loading
    from ..models.medusa import MedusaHeads
    from .data import DraftMask, Inputs, Proposal, Sampled


class MedusaOptions(HeadOptions):
    """Options of Medusa heads."""

    model: ModelName = Field(
        default="embedded-medusa",
        description="The heads: a directory, or a hub name. Default: those of the embedded model.",
    )
    tree: Nodes | None = Field(
        default=None,
        description="A draft tree by its nodes, each as its way from the root: [0] is the "
        "likeliest next token, [0, 1] the second choice after it. null: one draft of each head.",
    )


def _load(
    chosen: MedusaOptions = settings(MedusaOptions),
    target: CausalLM = given(TARGET),
    loading: Loading = given(LOADING),
) -> MedusaHeads:
    return loading.medusa_heads(chosen.model, target, least=chosen.tree_depth or chosen.tokens)


MEDUSA: Resource[MedusaHeads] = Resource("medusa_heads", _load)
"""A head for each draft of a row."""


def propose(
    inputs: Inputs | None = read(INPUTS),
    sampled: Sampled | None = read(SAMPLED),
    hidden: Tensor | None = read(HIDDEN),
    allowed: DraftMask | None = optional(DRAFT_MASK),
    heads: MedusaHeads = given(MEDUSA),
    rule: Acceptance = given(ACCEPTANCE),
    vocab_size: int = given(VOCAB_SIZE),
    tree: ListedTree | GrownTree | None = given(DRAFT_TREE),
) -> Proposal | None:
    """A draft from each head, for the places after the token that was just sampled, by the
    states `hidden[T, F]`. The first of them are of those `allowed`.
    """
    from .ops import grow, proposal
    from .ops.draft_masks import permitted

    sample = None if inputs is None else inputs.sample
    if sample is None or sampled is None or hidden is None or sample.draft_width == 0:
        return None
    newest = last = (sampled.counts - 1)[:, None]
    if sampled.paths is not None:
        last = sampled.paths.gather(1, newest)
    # The window position whose logits gave the newest token.
    states = hidden.index_select(0, sample.logit_index.gather(1, last)[:, 0])
    at = sample.window_start + newest[:, 0]
    deep = sample.draft_width
    if isinstance(tree, ListedTree):
        deep = tree.shape.first(deep).depth
    first, *others = heads.guesses(states, deep)
    guesses = [permitted(first, allowed, vocab_size), *others]
    if isinstance(tree, ListedTree):
        return grow.at_once(rule, vocab_size, sample, guesses, at, tree)
    return proposal.at_once(rule, vocab_size, sample, guesses, at)


KIND = Drafter(
    "medusa",
    "propose k tokens per row with k Medusa heads on the target's last hidden state, in parallel",
    propose,
    options=MedusaOptions,
    draws=True,
)
