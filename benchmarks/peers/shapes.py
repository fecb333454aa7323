"""Models in the shapes that people run on a CPU, with random weights: nothing is downloaded.

A random model of the usual initialization repeats its last token for ever, since the embedding
outweighs everything else, and any two programs would agree on that. So the embedding is small and
the layers are not: each token then depends on the whole text before it. The layers behind the
first few add little. These first few are the drafter, which so guesses a part of the tokens.

Weights are stored in bfloat16, and computed with in bfloat16 or float32: the same numbers.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig, Qwen3Config

from stepweave.models.source import quiet

from ..gpu.networks import EOS
from ..gpu.vocabulary import tokenizer

LATER = 0.05
"""How much of a layer behind the drafter's counts, relative to one of the drafter's."""


@dataclass(frozen=True)
class Shape:
    """The numbers of a config.json. All of these models tie their head to the embedding."""

    name: str
    family: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head: int
    intermediate: int
    vocab: int
    rope_theta: float
    draft_layers: int
    context: int = 2048

    @property
    def parameters(self) -> int:
        """Numbers that a step reads: the tied embedding is read once, as the head."""
        attention = self.hidden * self.head * 2 * (self.heads + self.kv_heads)
        layer = attention + 3 * self.hidden * self.intermediate
        return self.layers * layer + self.hidden * self.vocab

    def cache_bytes(self, tokens: int, size: int) -> int:
        """What keys and values of so many tokens take, in numbers of `size` bytes."""
        return 2 * self.layers * self.kv_heads * self.head * size * tokens

    def config(self, layers: int) -> PreTrainedConfig:
        """As transformers has it, with the first so many layers."""
        kinds: dict[str, Callable[..., PreTrainedConfig]] = {
            "llama": LlamaConfig,
            "qwen3": Qwen3Config,
        }
        return kinds[self.family](
            vocab_size=self.vocab,
            hidden_size=self.hidden,
            intermediate_size=self.intermediate,
            num_hidden_layers=layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            head_dim=self.head,
            max_position_embeddings=self.context,
            rope_parameters={"rope_type": "default", "rope_theta": self.rope_theta},
            rms_norm_eps=1e-5,
            tie_word_embeddings=True,
            eos_token_id=EOS,
            bos_token_id=None,
            pad_token_id=EOS,
        )


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("smollm2-135m", "llama", 576, 30, 9, 3, 64, 1536, 49152, 1e5, 6),
        Shape("qwen3-0.6b", "qwen3", 1024, 28, 16, 8, 128, 3072, 151936, 1e6, 4),
        Shape("llama-1b", "llama", 2048, 16, 32, 8, 64, 8192, 128256, 5e5, 2),
        Shape("toy", "llama", 64, 3, 4, 2, 16, 128, 2048, 1e4, 1),
        Shape("toy-qwen3", "qwen3", 64, 3, 4, 2, 32, 128, 2048, 1e4, 1),
    )
}


def checkpoint(shape: Shape, parent: Path) -> Path:
    """A folder with `target` and `draft` as transformers saves them, made if it is not there."""
    folder = parent / shape.name
    if not (folder / "target" / "config.json").exists():
        part = parent / f".{shape.name}.part"
        shutil.rmtree(part, ignore_errors=True)
        with quiet():
            _make(shape, part)
        part.replace(folder)
    return folder


def _make(shape: Shape, folder: Path) -> None:
    torch.manual_seed(0)
    make: Any = AutoModelForCausalLM
    model = make.from_config(shape.config(shape.layers), dtype=torch.bfloat16)
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding):
            module.weight.data.normal_(std=0.02)
        elif isinstance(module, nn.Linear) and module.weight is not model.lm_head.weight:
            module.weight.data.normal_(std=_deviation(shape, name, module.in_features))
    words = tokenizer(shape.vocab)
    for name, layers in (("target", shape.layers), ("draft", shape.draft_layers)):
        saved = make.from_config(shape.config(layers), dtype=torch.bfloat16)
        weights = model.state_dict()
        saved.load_state_dict({key: weights[key] for key in saved.state_dict()}, assign=True)
        saved.tie_weights()
        saved.save_pretrained(folder / name)
        words.save_pretrained(folder / name)
        about = json.loads((folder / name / "config.json").read_text())
        assert about["num_hidden_layers"] == layers, "the drafter has the first layers"


def _deviation(shape: Shape, name: str, inputs: int) -> float:
    """Keeps the size of what goes through; the sums of later layers are small beside it."""
    scale = 1 / math.sqrt(inputs)
    adds = name.endswith(("o_proj", "down_proj"))
    later = adds and int(name.split(".layers.")[1].split(".")[0]) >= shape.draft_layers
    return scale * LATER if later else scale
