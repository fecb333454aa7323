"""Small random models that read images, for tests: of ours, and of nodes you write."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)

from .models import SIZE, tiny_tokenizer

VOCAB = 320
SPECIAL = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {% if message['content'] is string %}"
    "{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)

PROCESSOR: Mapping[str, Any] = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "patch_size": 4,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "size": {"shortest_edge": 256, "longest_edge": 1 << 12},
}
_VISION: Mapping[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 2,
    "out_hidden_size": SIZE["hidden_size"],
    "patch_size": PROCESSOR["patch_size"],
    "spatial_merge_size": PROCESSOR["merge_size"],
    "temporal_patch_size": PROCESSOR["temporal_patch_size"],
}
_OF_ITS_OWN: Mapping[str, tuple[Callable[..., Any], Callable[..., Any], Mapping[str, Any]]] = {
    "qwen2_5_vl": (
        Qwen2_5_VLConfig,
        Qwen2_5_VLForConditionalGeneration,
        {"depth": 2, "window_size": 16, "fullatt_block_indexes": [1]},
    ),
    "qwen3_vl": (
        Qwen3VLConfig,
        Qwen3VLForConditionalGeneration,
        {"depth": 3, "num_position_embeddings": 16, "deepstack_visual_indexes": [0, 1]},
    ),
}
FAMILIES = tuple(_OF_ITS_OWN)


def tiny_vision_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE with the tokens that stand around and for images."""
    tokenizer = tiny_tokenizer(VOCAB - len(SPECIAL))
    tokenizer.add_special_tokens({"additional_special_tokens": list(SPECIAL)})
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def tiny_vision_model(family: str = "qwen2_5_vl", seed: int = 0, **text: Any) -> PreTrainedModel:
    """A random model of `family` (one of `FAMILIES`), the same for the same arguments.

    `text` overrides fields of the decoder's configuration. The global random state is left alone.
    Raises `KeyError` for a family that there is not.
    """
    config, build, vision = _OF_ITS_OWN[family]
    known = tiny_vision_tokenizer().get_vocab()
    ids = [known[each] for each in SPECIAL]
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 2, 2]}
    size = {**SIZE, "head_dim": 12, "vocab_size": VOCAB, "eos_token_id": 0, "rope_parameters": rope}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = build(
            config(
                text_config={**size, **text},
                vision_config={**_VISION, **vision},
                vision_start_token_id=ids[0],
                vision_end_token_id=ids[1],
                image_token_id=ids[2],
                video_token_id=ids[3],
                tie_word_embeddings=False,
            )
        )
        with torch.no_grad():
            for name, parameter in made.named_parameters():
                if "embed_tokens" in name:
                    parameter.normal_()
                elif parameter.dim() >= 2:
                    parameter.normal_(std=1.5 * parameter[0].numel() ** -0.5)
    nn.Module.train(made, False)
    assert isinstance(made, PreTrainedModel)
    return made


def save_tiny_vision(directory: str | Path, family: str = "qwen2_5_vl", **text: Any) -> Path:
    """Write a model, its tokenizer and its image processor to `directory`, as the hub has them.

    Raises `OSError` where nothing can be written.
    """
    directory = Path(directory)
    tiny_vision_model(family, **text).save_pretrained(directory)
    tiny_vision_tokenizer().save_pretrained(directory)
    (directory / "preprocessor_config.json").write_text(json.dumps(dict(PROCESSOR)))
    return directory
