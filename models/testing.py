"""Small random models of several families, for tests: of ours, and of nodes you write.

They are random but not bland: weights are large enough that greedy outputs wander, so that a
wrong mask or a lost token shows in the text. No weights are downloaded, and neither pytest nor
hypothesis is needed.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
)

SIZE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
    "tie_word_embeddings": False,
}

FAMILIES: dict[str, Callable[..., Any]] = {
    "llama": LlamaConfig,
    "qwen3": Qwen3Config,
    "mistral": lambda **size: MistralConfig(**{"sliding_window": 7, **size}),
    "gemma2": lambda **size: Gemma2Config(
        **{
            "sliding_window": 9,
            "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": 4.0,
            "query_pre_attn_scalar": 16,
            **size,
        }
    ),
    "gemma3": lambda **size: Gemma3TextConfig(
        **{
            "sliding_window": 6,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "query_pre_attn_scalar": 16,
            **size,
        }
    ),
    "gpt_oss": lambda **size: GptOssConfig(
        **{
            "sliding_window": 8,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
            **size,
        }
    ),
}
"""What is special: window (mistral), soft caps (gemma2), two ropes (gemma3), sinks and experts."""

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)

_TEXT = (
    'the quick brown fox jumps over the lazy dog {"name": "value", "list": [1, 2, 3], "true": '
    "false, null} to be or not to be that is the question 3.14159 hello hello world"
)


def tiny_model(
    family: str = "llama", seed: int = 0, dtype: torch.dtype = torch.float32, **config: Any
) -> PreTrainedModel:
    """A random model of `family` (a key of `FAMILIES`), the same for the same arguments.

    `config` overrides fields of its configuration. The global random state is left alone.
    """
    if family not in FAMILIES:
        raise ValueError(f"no family {family!r}; there are {', '.join(sorted(FAMILIES))}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        build: Any = AutoModelForCausalLM.from_config
        model = build(FAMILIES[family](**{**SIZE, **config}), attn_implementation="eager")
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "embed" in name or name.endswith("sinks"):
                    parameter.normal_()
                elif parameter.dim() >= 2:
                    fan_in = parameter.shape[
                        1
                    ]  # of (outputs, inputs) or (experts, inputs, outputs)
                    parameter.normal_(std=1.5 * fan_in**-0.5)
    nn.Module.to(model, dtype).train(False)
    assert isinstance(model, PreTrainedModel)
    return model


def tiny_tokenizer(vocab_size: int = 320) -> PreTrainedTokenizerFast:
    """A byte-level BPE of at most `vocab_size` (≥ 262) tokens, `<eos>` being token 0."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<eos>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_TEXT], trainer)
    wrap: Any = PreTrainedTokenizerFast
    wrapped = wrap(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>")
    wrapped.chat_template = CHAT_TEMPLATE
    assert isinstance(wrapped, PreTrainedTokenizerFast)
    return wrapped


def save_tiny(directory: str | Path, family: str = "llama", seed: int = 0, **config: Any) -> Path:
    """Write a model and tokenizer that fit each other to `directory`, as the hub has them."""
    directory = Path(directory)
    tokenizer = tiny_tokenizer()
    vocab = {"vocab_size": len(tokenizer), "eos_token_id": 0}
    model = tiny_model(family, seed, **{**vocab, **config})
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory
