"""The numbers of a config.json against the weights beside it, before anything is made of them.

A configuration of a few bytes can ask for a billion layers, or for tensors of terabytes, and
transformers makes them before it finds that the file has others. So no number may exceed many times
what the file can fill; what is wrong by less is found by comparing shapes, and told in more words.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import safe_open

from .errors import ModelError

_COUNTS = ("num_hidden_layers", "num_experts", "num_local_experts", "n_routed_experts")
_WIDTHS = (
    "hidden_size",
    "intermediate_size",
    "moe_intermediate_size",
    "vocab_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
)

_TIMES = 16


def require_plausible(name: str, folder: Path, config: Any) -> None:
    """Refuse a configuration whose layers, experts or widths the weights in `folder` cannot fill.

    Raises `ModelError` that names the key. Packed weights of a quantized checkpoint are not judged.
    """
    if getattr(config, "quantization_config", None) is not None:
        return
    shapes = list(_shapes(folder))
    widest = max((width for shape in shapes for width in shape), default=0)
    for keys, most in ((_COUNTS, max(len(shapes), widest)), (_WIDTHS, widest)):
        for key in keys:
            largest = max(stated(config, key), default=0)
            if largest > _TIMES * most:
                raise ModelError(
                    f"{name}: config.json has {key} {largest}, but its weights are {len(shapes)} "
                    f"tensors of widths up to {widest}; config.json belongs to another file"
                )


def stated(config: Any, key: str) -> set[int]:
    """The numbers that a configuration has for `key`: several where its layers differ.

    transformers raises where such a key is read from the whole, as in Gemma 4.
    """
    of_each_layer = key in (getattr(config, "per_layer_attributes", None) or ())
    holders = config.per_layer_config if of_each_layer else [config]
    values = [getattr(each, key, None) for each in holders]
    return {value for value in values if isinstance(value, int)}


def _shapes(folder: Path) -> Iterator[list[int]]:
    """The shape of each tensor that has an element."""
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            for key in tensors.keys():  # noqa: SIM118 (it is no mapping)
                shape = tensors.get_slice(key).get_shape()
                if all(shape):
                    yield shape
