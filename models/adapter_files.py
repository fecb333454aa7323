"""LoRA adapters as PEFT writes them: `adapter_config.json` beside safetensors.

What a file asks for beyond products of two narrow matrices is refused by its key: an adapter is
computed whole or not at all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from ..graph.errors import did_you_mean
from .errors import ModelError, ModelNotFound, UnsupportedModel
from .head_files import require_numbers
from .json_object import read_object
from .pretrained import named
from .source import require_safetensors

CONFIG = "adapter_config.json"
_ROOT = "base_model.model."  # what PEFT puts before the name of a module

_REFUSED: Mapping[str, str] = {
    "use_dora": "DoRA scales each weight by a norm of base and adapter together",
    "use_qalora": "QALoRA is for quantized weights",
    "lora_bias": "its products have biases of their own",
    "modules_to_save": "whole modules are replaced, not adapted",
    "trainable_token_indices": "rows of the embedding are replaced",
    "layer_replication": "layers are repeated",
    "target_parameters": "it adapts parameters that belong to no linear layer, as of experts",
    "alora_invocation_tokens": "it begins in the middle of a text, where a token invokes it",
    "arrow_config": "it routes tokens among several adapters",
    "megatron_config": "its layers are those of Megatron",
}
"""Keys of adapter_config.json that must be absent, false or empty, and what they mean."""

_CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Values of `init_lora_weights` with which the base model's weights are changed too."""


@dataclass(frozen=True)
class LowRank:
    """What an adapter adds to a linear layer of K inputs and N outputs, by r numbers between."""

    down: Tensor  # [r, K]
    up: Tensor  # [N, r], with the adapter's scale


def read_adapter(name: str, folder: Path, model: nn.Module) -> dict[str, LowRank]:
    """What the adapter called `name` adds, by the names of `model`'s linear layers.

    Raises `ModelNotFound` where `folder` has no adapter, `UnsupportedModel` for what is no plain
    LoRA, and `ModelError` for weights that do not fit the model.
    """
    said = f"adapter {name!r} ({folder})"
    config = _read_config(said, folder)
    _refuse(said, config)
    require_safetensors(said, folder)
    weights: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            weights.update((key, tensors.get_tensor(key)) for key in tensors.keys())  # noqa: SIM118
    require_numbers(said, weights)
    pairs = dict(_pairs(said, weights))
    if not pairs:
        raise ModelError(f"{said}: it has no weights")
    return {
        module: _fitting(said, module, pair, config, model)
        for module, pair in sorted(pairs.items())
    }


def _read_config(said: str, folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise ModelNotFound(f"{said}: there is no such folder; an adapter is one with {CONFIG}")
    file = folder / CONFIG
    if not file.is_file():
        raise ModelNotFound(f"{said}: it has no {CONFIG}, so it is no adapter in PEFT's layout")
    return read_object(file, said)


def _refuse(said: str, config: Mapping[str, Any]) -> None:
    """Raises `UnsupportedModel` for what is not a plain LoRA."""
    kind = config.get("peft_type")
    if kind != "LORA":
        raise UnsupportedModel(f"{said}: its peft_type is {kind!r}; only LORA is served")
    for key, why in _REFUSED.items():
        if config.get(key):
            raise UnsupportedModel(f"{said}: its {CONFIG} has {key}: {why}; that is not served")
    if config.get("bias", "none") != "none":
        raise UnsupportedModel(
            f"{said}: its {CONFIG} has bias {config['bias']!r}: biases of the base model are "
            "replaced; only 'none' is served"
        )
    begins = config.get("init_lora_weights")
    if isinstance(begins, str) and begins.lower().startswith(_CHANGES_BASE):
        raise UnsupportedModel(
            f"{said}: its {CONFIG} has init_lora_weights {begins!r}, with which the base model's "
            "weights change too; convert it to a plain LoRA with PEFT's "
            "path_initial_model_for_weight_conversion"
        )


def _pairs(said: str, weights: Mapping[str, Tensor]) -> Iterator[tuple[str, tuple[Tensor, Tensor]]]:
    """Both matrices of each adapted module, by its name. Raises `ModelError`, `UnsupportedModel`"""
    found: dict[str, dict[str, Tensor]] = {}
    strange: list[str] = []
    for key, weight in weights.items():
        plain = key.removeprefix(_ROOT)
        match = re.fullmatch(r"(.+)\.lora_(A|B)(\.default)?\.weight", plain)
        if match is None:
            strange.append(key)
        else:
            found.setdefault(match[1], {})[match[2]] = weight
    if strange:
        raise UnsupportedModel(
            f"{said}: it has {named(sorted(strange))}, and only lora_A and lora_B of linear layers "
            "are served"
        )
    for module, parts in found.items():
        if len(parts) != 2:
            lacking = "A" if "B" in parts else "B"
            raise ModelError(f"{said}: its weights lack {module}.lora_{lacking}.weight")
        yield module, (parts["A"], parts["B"])


def _fitting(
    said: str,
    name: str,
    pair: tuple[Tensor, Tensor],
    config: Mapping[str, Any],
    model: nn.Module,
) -> LowRank:
    """The adapter of one module. Raises `ModelError`, `UnsupportedModel`."""
    modules = dict(model.named_modules())
    module = modules.get(name)
    if module is None:
        raise ModelError(
            f"{said}: it adapts {name!r}{did_you_mean(name, modules)}, which a "
            f"{type(model).__name__} does not have; it was trained for another model"
        )
    if not isinstance(module, nn.Linear):
        raise UnsupportedModel(
            f"{said}: it adapts {name!r}, a {type(module).__name__}; only linear layers are adapted"
        )
    output: Any = getattr(model, "get_output_embeddings", lambda: None)()
    if module is output:
        raise UnsupportedModel(f"{said}: it adapts {name!r}, the output layer; that is not served")
    down, up = (each.to(torch.float64) for each in pair)
    rank = _of_module(name, config, "rank_pattern", config.get("r"))
    alpha = _of_module(name, config, "alpha_pattern", config.get("lora_alpha"))
    if not (isinstance(rank, int) and isinstance(alpha, int | float)):
        raise ModelError(f"{said}: its {CONFIG} does not say r and lora_alpha as numbers")
    wanted = ((rank, module.in_features), (module.out_features, rank))
    if (found := (tuple(down.shape), tuple(up.shape))) != wanted:
        raise ModelError(
            f"{said}: lora_A and lora_B of {name} are {found[0]} and {found[1]}, not {wanted[0]} "
            f"and {wanted[1]}: another rank, or another model"
        )
    scale = alpha / (sqrt(rank) if config.get("use_rslora") else rank)
    return LowRank(down, up * scale)


def _of_module(name: str, config: Mapping[str, Any], key: str, usual: Any) -> Any:
    """What a pattern of the configuration says for a module, as PEFT finds it."""
    patterns = config.get(key) or {}
    matches: Callable[[str], Any] = lambda each: re.match(rf"(.*\.)?({each})$", name)  # noqa: E731
    return next((value for each, value in patterns.items() if matches(each)), usual)
