"""Llama-shaped models with random weights, made on the device: nothing is loaded.

Speed does not depend on what the weights say, only on their number and shape.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from types import FunctionType, MethodType
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel
from transformers.models.llama import modeling_llama

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
        model: Any = AutoModelForCausalLM.from_config(
            config, dtype=dtype, attn_implementation="sdpa"
        )
    model.train(False)
    model.requires_grad_(False)
    made: PreTrainedModel = model
    return made


def twin(model: PreTrainedModel, size: Size) -> PreTrainedModel:
    """Another model on the same weights: what is changed in the one is not in the other."""
    other = random_model(size, model.device, model.dtype)
    other.load_state_dict(model.state_dict(), assign=True)
    other.requires_grad_(False)
    return other


def fuse(model: Any) -> None:
    """Compile what lies between the attentions and the big products, piece by piece, in place.

    Norms, the MLP and the rotary embedding: the same code in every layer, so each is compiled once,
    and no piece contains a layer's number or the cache. Shapes are dynamic, or each prompt length
    would be compiled anew.
    """
    compiled = _rotary()
    for layer in model.model.layers:
        for piece in (layer.input_layernorm, layer.post_attention_layernorm, layer.mlp):
            piece.compile(dynamic=True)
        attention = layer.self_attn
        attention.forward = MethodType(
            _with_global(type(attention).forward, "apply_rotary_pos_emb", compiled), attention
        )
    model.model.norm.compile(dynamic=True)


@cache
def _rotary() -> Callable[..., Any]:
    return torch.compile(modeling_llama.apply_rotary_pos_emb, dynamic=True)


def _with_global(function: Any, name: str, value: object) -> FunctionType:
    """The same function, for which one global name means something else."""
    if name not in function.__globals__:
        raise LookupError(f"{function.__qualname__} uses no {name}: another release of the library")
    return FunctionType(
        function.__code__,
        {**function.__globals__, name: value},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
