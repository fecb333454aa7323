"""A drafter and its target fit: one vocabulary, one original context, one device."""

from __future__ import annotations

from .causal_lm import CausalLM
from .eagle import EagleHead
from .errors import ModelError, UnsupportedModel
from .support import windows
from .translated import TranslatedLM


def fit_drafter(drafter: CausalLM | TranslatedLM | EagleHead, target: CausalLM) -> None:
    """Let the target give the hidden states that its drafter reads.

    Raises `ModelError` where the drafter's tokens or positions mean something else, and
    `UnsupportedModel` for a drafter whose layers keep states.
    """
    advice = "set the drafter's `model` to one made for this model, or leave the drafting node out"
    if drafter.vocab_size < target.vocab_size:
        raise ModelError(
            f"the drafter has a vocabulary of {drafter.vocab_size} tokens, the target "
            f"one of {target.vocab_size}: they must share one vocabulary; {advice}; a draft_model "
            "of another vocabulary can draft the tokens that both have: `vocabulary: common`"
        )
    switch = getattr(drafter, "rope_switch", None)
    if switch is not None and switch != target.rope_switch:
        raise ModelError(
            f"the drafter has an original context of {switch} tokens (rope_type longrope), the "
            f"target one of {target.rope_switch or target.context_length}; {advice}"
        )
    if drafter.keeps_states:
        raise UnsupportedModel(
            "the drafter's layers keep states, and a drafter's text is cut where drafts are "
            f"refused; {advice}"
        )
    if drafter.device != target.device:
        raise ModelError(
            f"the drafter is on {drafter.device}, the target on {target.device}: they must "
            "be on the same device"
        )
    if isinstance(drafter, EagleHead):
        target.record_features(drafter.feature_layers)


def fit_tree(depth: int, target: CausalLM) -> None:
    """Raises `ModelError` where drafts on a path of that depth would not see where it begins."""
    shortest = min(filter(None, windows(target.config).values()), default=depth + 1)
    if depth >= shortest:
        raise ModelError(
            f"{target.name}: a layer looks back {shortest} tokens, and a path of the draft tree "
            f"has {depth} drafts behind the last token: give `tree` a smaller depth"
        )
