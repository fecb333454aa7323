"""The vocabulary as a grammar sees it: what each token id spells, in bytes.

Both grammar libraries take the text of a control token ("<pad>") for text that a string may
contain. The model never means it so, and decoding drops it, so the output would not match the
grammar. Here control tokens spell nothing, and so do ids that the tokenizer does not know.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import xgrammar as xgr

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def tokenizer_info(
    tokenizer: PreTrainedTokenizerBase, vocab_size: int, stop_tokens: Collection[int]
) -> Any:
    """XGrammar's `TokenizerInfo` over exactly `vocab_size` ids; its `decoded_vocab` are the bytes.

    Args:
        tokenizer: a Hugging Face tokenizer.
        vocab_size: tokens in the model's output layer, more or fewer than the tokenizer's.
        stop_tokens: the ids that end an output.
    """
    stops = sorted(stop_tokens)
    known = max(tokenizer.get_vocab().values(), default=-1) + 1
    info = xgr.TokenizerInfo.from_huggingface(
        tokenizer, vocab_size=max(vocab_size, known), stop_token_ids=stops
    )
    vocabulary = list(info.decoded_vocab)[:vocab_size]
    control = {index for index, added in tokenizer.added_tokens_decoder.items() if added.special}
    for index in control | set(tokenizer.all_special_ids):
        if index < len(vocabulary):
            vocabulary[index] = b""  # an empty token is one that the library never allows
    return xgr.TokenizerInfo(
        vocabulary,
        xgr.VocabType.RAW,
        vocab_size=vocab_size,
        stop_token_ids=stops,
        add_prefix_space=info.add_prefix_space,
    )
