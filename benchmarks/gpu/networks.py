"""Llama-shaped models with random weights, made on the device: nothing is loaded.

Speed does not depend on what the weights say, only on their number and shape.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from stepweave.models.causal_lm import CausalLM

EOS = 0


@dataclass(frozen=True)
class Size:
    """A Llama's shape."""

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocab: int = 128256
    context: int = 4096
    tied: bool = False

    def weight_bytes(self, item: int = 2) -> int:
        """What a decode step has to read of the weights: all but the embedding table."""
        head = self.hidden // self.heads
        attention = self.hidden * head * (2 * self.heads + 2 * self.kv_heads)
        layer = attention + 3 * self.hidden * self.intermediate
        return item * (self.layers * layer + self.hidden * self.vocab)

    def cache_bytes(self, item: int = 2) -> int:
        """Keys and values of one token."""
        return item * 2 * self.layers * self.kv_heads * (self.hidden // self.heads)


SIZES = {
    "8b": Size("Llama-3.1-8B", 4096, 32, 32, 8, 14336),
    "1b": Size("Llama-3.2-1B", 2048, 16, 32, 8, 8192, tied=True),
}

DRAFTER = Size("draft model", 2560, 1, 20, 4, 7168)
"""One layer; a pass reads 0.8 GB, about what the EAGLE-3 head of the 8B model reads."""

TOY = Size("toy", 64, 2, 4, 2, 128, vocab=2048, context=1024)
TOY_DRAFTER = replace(TOY, name="toy draft model", layers=1)


def random_model(
    size: Size, device: torch.device, dtype: torch.dtype, *, seed: int = 0
) -> PreTrainedModel:
    """Filled by the device's own generator."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=size.vocab,
        hidden_size=size.hidden,
        intermediate_size=size.intermediate,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        max_position_embeddings=size.context,
        tie_word_embeddings=size.tied,
        eos_token_id=EOS,
        bos_token_id=None,
        pad_token_id=EOS,
    )
    with torch.device(device):
        make: Any = AutoModelForCausalLM
        model: PreTrainedModel = make.from_config(config, dtype=dtype, attn_implementation="sdpa")
    model.train(False)
    model.requires_grad_(False)
    return model


def twin(model: PreTrainedModel, size: Size) -> PreTrainedModel:
    """Another model on the same weights: what is changed in the one is not in the other."""
    other = random_model(size, model.device, model.dtype)
    other.load_state_dict(model.state_dict(), assign=True)
    other.requires_grad_(False)
    return other


def served(model: PreTrainedModel, *, compiled: bool) -> CausalLM:
    """The model on our paged cache; its layers compiled and its projections merged, or not."""
    return CausalLM.wrap(model, invariant=False, compile="layer" if compiled else "off")
