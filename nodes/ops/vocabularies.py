"""What the tokens of a model spell, to find those that two vocabularies have in common."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import TYPE_CHECKING

from ...models.causal_lm import CausalLM
from ...models.translated import TranslatedLM
from ...structured.vocabulary import tokenizer_info

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

END = "the end of a text"


def spelled(
    tokenizer: PreTrainedTokenizerBase, vocab_size: int, ends: Collection[int]
) -> list[Hashable]:
    """Of each token: its bytes, the name of a control token, or `END` for the first of `ends`."""
    # Who has no end of a text has none that is common; the library wants one, and spells it alike.
    info = tokenizer_info(tokenizer, vocab_size, ends or (0,))
    found: list[Hashable] = list(info.decoded_vocab)
    for token, added in tokenizer.added_tokens_decoder.items():
        if added.special and token < len(found):
            found[token] = added.content
    for token in sorted(ends)[:1]:
        found[token] = END
    return found


def translated(
    drafter: CausalLM,
    own: PreTrainedTokenizerBase,
    target: CausalLM,
    theirs: PreTrainedTokenizerBase,
) -> TranslatedLM:
    """The drafter, in the target's vocabulary. Raises `ModelError` if hardly a token is common."""
    return TranslatedLM.of(
        drafter,
        spelled(own, drafter.vocab_size, drafter.eos_token_ids),
        spelled(theirs, target.vocab_size, target.eos_token_ids),
    )
