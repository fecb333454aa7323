"""How many blocks a KV cache has where that is left to the memory that is free.

What a step needs beside the cache cannot be asked before it has run, so it is counted generously:
products of the widest step, and scores of every line over the vocabulary, which sampling copies.
States of layers that keep them are counted as they will be allocated. A
tenth of the free memory is for graphs, and for what an allocator loses between its pieces.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

from safetensors import safe_open

from ..backends import backend_of
from ..configs.schema import PipelineConfig
from ..models.causal_lm import CausalLM
from ..models.errors import NoMemory
from ..models.memory import in_units
from ..models.mtp_checkpoint import modules_among, of_module
from ..models.mtp_network import left_states
from ..models.paged_cache import LayerShape, bytes_per_block
from ..models.source import EMBEDDED, EMBEDDED_HEADS, folder_of
from ..nodes.mtp import MtpOptions
from ..nodes.sizes import Sizes

SHARE = 0.9
"""Of the memory that is free once the target is loaded."""

USUAL = 512
"""Blocks on a device that does not say what is free."""

COPIES = 4
"""Of a step's scores and hidden states, at the most, at one time."""


def blocks_of(config: PipelineConfig, model: CausalLM) -> int:
    """Blocks for requests: those of the file, or as many as fit.

    Never more than twice what the rows can fill: one half is then for prefixes that are kept.
    Raises `NoMemory` where there is no room for one.
    """
    chosen, scheduler = config.scheduler.num_blocks, config.scheduler
    if chosen != "auto":
        return chosen
    free = backend_of(model.device).free_bytes(model.device)
    if free is None:
        return USUAL
    drafter, layers = _drafter(config, model)
    every = [*model.layer_shapes, *layers]
    each = bytes_per_block(every, scheduler.block_size, model.dtype, config.model.kv_cache_dtype)
    sizes = _sizes(config)
    beside = drafter + model.state_bytes(sizes.request_slots, sizes.window)
    room = int(SHARE * free) - _step_bytes(config, model) - beside
    if room < max(2 * each, 1):  # one is the scratch block
        raise NoMemory(
            f"of {in_units(free)} that are free on {model.device} nothing is left for a KV cache; "
            "lower scheduler.token_budget or scheduler.max_rows, or take a smaller model"
        )
    context = scheduler.max_context or model.context_length
    most = 2 * scheduler.max_rows * -(-context // scheduler.block_size)
    return min(room // each - 1, most) if each else most  # no layer may have keys


def _sizes(config: PipelineConfig) -> Sizes:
    drafts = config.drafter.tokens if config.drafter else 0
    return Sizes(max_rows=config.scheduler.max_rows, draft_tokens=drafts)


def _step_bytes(config: PipelineConfig, model: CausalLM) -> int:
    """Of the widest step: hidden states and products of each token, scores of each line."""
    sizes = _sizes(config)
    lines = sizes.max_rows * sizes.window
    wide = getattr(model.config, "intermediate_size", None)
    wide = wide if isinstance(wide, int) else 4 * model.hidden_size
    tokens = config.scheduler.token_budget * (2 * wide + 8 * model.hidden_size)
    return COPIES * (tokens * model.dtype.itemsize + lines * model.vocab_size * 4)


def _drafter(config: PipelineConfig, model: CausalLM) -> tuple[int, list[LayerShape]]:
    """Bytes of the drafter's weights, and the layers of its cache, from its files."""
    if isinstance(config.drafter, MtpOptions):
        return _module(config.drafter.model or model.checkpoint, model)
    name = getattr(config.drafter, "model", None)
    folder = None if name is None else folder_of(name, EMBEDDED | EMBEDDED_HEADS)
    if folder is None:
        return 0, []
    weights = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    return weights, _layers(folder, model.layer_shapes[0])


def _module(name: str, model: CausalLM) -> tuple[int, list[LayerShape]]:
    """The same of modules that the target was trained with, each of which is one more layer of its
    kind, and leaves hidden states for the next.

    Their files may be those of the target, with all that the target has.
    """
    folder = folder_of(name, EMBEDDED | EMBEDDED_HEADS)
    numbers, names = 0, set[str]()
    for file in () if folder is None else folder.glob("*.safetensors"):
        with safe_open(file, framework="pt") as tensors:
            for key in tensors.keys():  # noqa: SIM118  # it is no mapping
                if of_module(key, model.num_layers):
                    numbers += prod(tensors.get_slice(key).get_shape())
                    names.add(key)
    count = max(1, modules_among(names, model.num_layers))
    shapes = [model.layer_shapes[-1]] * count + [left_states(model.hidden_size)] * (count - 1)
    return numbers * model.dtype.itemsize, shapes


def _layers(folder: Path, like: LayerShape) -> list[LayerShape]:
    """What its config.json says, else as one layer of the target. A drafter that has no cache
    is given the room of one all the same.
    """
    try:
        stated: Any = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        stated = {}
    if not isinstance(stated, Mapping):
        return [like]
    heads, hidden = stated.get("num_attention_heads"), stated.get("hidden_size")
    usual = hidden // heads if isinstance(heads, int) and isinstance(hidden, int) else like.key_dim
    width = stated.get("head_dim") or usual
    shape = LayerShape(stated.get("num_key_value_heads") or heads or like.kv_heads, width, width)
    return [shape] * (stated.get("num_hidden_layers") or 1)
