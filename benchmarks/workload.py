"""The grammar-heavy workload: many matchers inside strings, over a real-size vocabulary.

Fills are cheap at structural positions and dear inside free strings. A random model never closes
a string, so every row of every step is dear: the hard case for hiding the grammar.
"""

from __future__ import annotations

import sysconfig
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

FIELDS = ("title", "author", "summary", "text")


def schema(bounded: bool) -> dict[str, Any]:
    """Four strings; a bound on their length makes a fill some fifty times dearer."""
    text = {"type": "string", "maxLength": 300} if bounded else {"type": "string"}
    return {"type": "object", "properties": dict.fromkeys(FIELDS, text), "required": list(FIELDS)}


EOS = "<eos>"


@cache
def real_size_tokenizer(vocab: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE trained on the sources of Python's standard library: long, odd tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        min_frequency=1,
        special_tokens=[EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    sources = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    sources += sorted(Path(sysconfig.get_paths()["stdlib"]).glob("[a-z]*/*.py"))[:600]
    tokenizer.train([str(path) for path in sources if "site-packages" not in str(path)], trainer)
    wrap: Any = PreTrainedTokenizerFast
    wrapped: PreTrainedTokenizerFast = wrap(tokenizer_object=tokenizer, eos_token=EOS)
    return wrapped


def random_llama(
    vocab: int, *, hidden: int, layers: int, seed: int = 0, context: int = 512
) -> LlamaForCausalLM:
    """Llama-shaped, random weights, float32."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=hidden * 11 // 4,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 32,
        num_key_value_heads=hidden // 64,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        eos_token_id=0,
        bos_token_id=None,
    )
    return LlamaForCausalLM(config)
