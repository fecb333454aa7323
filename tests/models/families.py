"""Tiny random models of every causal family of transformers, and what becomes of each.

A configuration's sizes are set by their names, which families share; `SPECIAL` has what only one
family needs. A family is *served* if its greedy tokens on the paged cache, in random chunks, are
those of its own `generate`; it is *refused* if loading raises a `ModelError`. Anything else is a
fault of ours, or of the configuration here.
"""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from stepweave.models.causal_lm import CausalLM
from stepweave.models.errors import ModelError
from stepweave.testing import tiny_tokenizer
from tests.models.paged_rows import PagedRows, own_greedy

VOCAB = 96

SIZES: Mapping[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "d_model": 64,
    "n_embd": 64,
    "rotary_dim": 8,
    "intermediate_size": 80,
    "ffn_dim": 80,
    "n_inner": 80,
    "num_hidden_layers": 2,
    "n_layer": 2,
    "n_layers": 2,
    "num_layers": 2,
    "decoder_layers": 2,
    "encoder_layers": 2,
    "num_attention_heads": 4,
    "n_head": 4,
    "n_heads": 4,
    "num_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size_per_layer_input": VOCAB,
    "unpadded_vocab_size": VOCAB,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "n_positions": 128,
    "n_ctx": 128,
    "max_seq_len": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "sliding_window": 9,
    # experts
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "moe_num_experts": 4,
    "num_experts_per_tok": 2,
    "num_experts_per_token": 2,
    "moe_topk": 2,
    "moe_k": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "shared_intermediate_size": 32,
    "expert_ffn_hidden_size": 32,
    # latent attention
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
    "index_n_heads": 2,
    "index_head_dim": 16,
    "index_topk": 8,
    # states
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 8,
    "mamba_d_ssm": 128,
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "state_size": 8,
    "time_step_rank": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}

SPECIAL: Mapping[str, Mapping[str, Any]] = {
    "bert": {"is_decoder": True},
    "blenderbot": {"encoder_attention_heads": 4, "decoder_attention_heads": 4},
    "deepseek_v2": {"topk_method": "greedy", "num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 4},
    "exaone4": {"num_hidden_layers": 4},  # three slide, and the fourth does not
    "exaone_moe": {"num_hidden_layers": 4},
    "kolibri1": {"num_hidden_layers": 4},
    "hunyuan_v1_dense": {"head_dim": 16},
    "hunyuan_v1_moe": {"head_dim": 16},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["full_attention", "conv"]},
    "ministral": {"head_dim": 16, "layer_types": ["sliding_attention", "full_attention"]},
    "nemotron": {"num_key_value_heads": 2},
    "qwen3_next": {"layer_types": ["linear_attention", "full_attention"]},
    "reformer": {"is_decoder": True},
    "zaya": {"num_experts_per_tok": 1},
}
"""What only one family needs to be small, or to be a decoder at all."""

ATTEMPTS: tuple[frozenset[str], ...] = (
    frozenset(),
    frozenset({"head_dim"}),
    frozenset({"num_hidden_layers", "n_layer", "num_layers"}),
    frozenset({"num_hidden_layers", "n_layer", "num_layers", "head_dim"}),
    frozenset(name for name in SIZES if name.startswith(("mamba", "linear", "state"))),
    frozenset(SIZES) - {"vocab_size", "pad_token_id", "bos_token_id", "eos_token_id"},
)
"""Sizes that are left as the family has them, until one of its passes works."""

MOST_WEIGHTS = 40_000_000


def families() -> list[str]:
    """Every `model_type` that the installed transformers has a causal model for."""
    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


@cache
def tiny_config(family: str) -> PreTrainedConfig | None:
    """A small configuration with which a pass of the family's own code works; None: none found."""
    for left_out in ATTEMPTS:
        try:
            config: PreTrainedConfig = _sized(
                CONFIG_MAPPING[family], left_out, SPECIAL.get(family, {})
            )
            with torch.device("meta"):
                build: Any = AutoModelForCausalLM.from_config
                size = sum(each.numel() for each in build(config).parameters())
            if size <= MOST_WEIGHTS:
                model: Any = built(config, torch.float32)
                with torch.no_grad():
                    model(input_ids=torch.tensor([[5, 6, 7]]), use_cache=False)
                return config
        except Exception:  # whatever a family's code raises of sizes that it was not made for
            continue
    return None


def outline(family: str) -> tuple[PreTrainedConfig, PreTrainedModel]:
    """A small model of `family` without weights, whose code is not run.

    Raises `ValueError` where none can be built.
    """
    for left_out in ATTEMPTS:
        try:
            config = _sized(CONFIG_MAPPING[family], left_out, SPECIAL.get(family, {}))
            with torch.device("meta"):
                build: Any = AutoModelForCausalLM.from_config
                return config, build(config)
        except Exception:  # as in `tiny_config`
            continue
    raise ValueError(family)


def _sized(kind: Any, left_out: frozenset[str], special: Mapping[str, Any]) -> Any:
    plain = kind()
    latent = hasattr(plain, "qk_rope_head_dim")
    aliases = getattr(kind, "attribute_map", {})
    fields: dict[str, Any] = {}
    for name in sorted(SIZES.keys() - left_out):
        if latent and name == "head_dim":
            continue  # it follows from the widths of its parts
        if (value := _size(plain, name)) is not None:
            fields[aliases.get(name, name)] = value
    if latent:  # all heads have keys of their own
        fields["num_key_value_heads"] = SIZES["num_attention_heads"]
    nested = {
        name: _sized(part, left_out, {}).to_dict()
        for name, part in getattr(kind, "sub_configs", {}).items()
        if isinstance(part, type) and issubclass(part, PreTrainedConfig)
    }
    found = kind(**{**fields, **nested, **special})
    types = getattr(found, "layer_types", None)
    if types == ["linear_attention"] * 2 and not special:  # both kinds, where a family has both
        return kind(**{**fields, **nested, "layer_types": ["linear_attention", "full_attention"]})
    return found


def _size(plain: Any, name: str) -> Any:
    """The small size for a field that the configuration has as a number."""
    value = _field(plain, name)
    return SIZES[name] if isinstance(value, int) and not isinstance(value, bool) else None


def _field(plain: Any, name: str) -> Any:
    try:
        return getattr(plain, name, None)
    except Exception:  # some families refuse to say what differs by layer
        return None


def built(config: PreTrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """A random model whose greedy outputs wander."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        build: Any = AutoModelForCausalLM.from_config
        model = build(copy.deepcopy(config), attn_implementation="eager")
        for name, each in model.named_parameters():
            if "embed" in name or "wte" in name:
                each.normal_()
            elif each.dim() >= 2:
                each.normal_(std=1.5 * each.shape[1] ** -0.5)
            elif not each.isfinite().all():  # left as it was allocated
                each.normal_()
            else:  # what begins as zeros or ones does something, too
                each.add_(torch.randn_like(each), alpha=0.1)
    nn.Module.to(model, dtype).train(False)
    assert isinstance(model, PreTrainedModel)
    return model


def save_family(family: str, folder: Path, **fields: Any) -> PreTrainedModel:
    """Write a tiny model of `family` with a tokenizer that fits; `fields` of its configuration."""
    tokenizer: Any = tiny_tokenizer()
    config: Any = copy.deepcopy(tiny_config(family))
    assert config is not None, family
    for name, value in {"vocab_size": len(tokenizer), "eos_token_id": 0, **fields}.items():
        setattr(config, name, value)
    model = built(config, torch.float32)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model


@dataclass(frozen=True)
class Outcome:
    """What became of a family: whether it is served, and `why` not or with what exceptions."""

    family: str
    served: bool
    invariant: bool = False  # also in arithmetic that does not depend on the batch
    merged: bool = False  # some of its linear layers become one
    heads: bool = False  # its layers' hidden states can be watched, as EAGLE-3 needs
    why: str = ""


def outcome(family: str, folder: Path) -> Outcome:
    """Save a tiny model of `family` in `folder`, load it in each mode, compare its tokens.

    Raises `AssertionError` if tokens differ, and whatever is raised that is no `ModelError`.
    """
    config = tiny_config(family)
    if config is None:
        return Outcome(family, False, why=NOT_TRIED)
    model = built(config, torch.float32)
    model.save_pretrained(folder)
    answers = None
    modes: dict[str, bool] = {}
    why = ""
    for mode, options in MODES.items():
        try:
            lm = CausalLM.load(folder, dtype="float32", **options)
        except ModelError as error:
            modes[mode] = False
            if mode != "merged":  # what refuses the plain model says more than what refuses others
                why = _reason(f"{error}", folder, type(model).__name__)
            continue
        if answers is None:
            # `generate` does not cache models that have layers with states alone.
            cached = not lm.keeps_states
            answers = [own_greedy(model, each, COUNT, use_cache=cached) for each in PROMPTS]
        rows = PagedRows(lm, num_blocks=40)
        for index, (prompt, answer) in enumerate(zip(PROMPTS, answers, strict=True)):
            assert paged_greedy(rows, f"{index}", prompt, answer) == answer, f"{family}, {mode}"
        modes[mode] = bool(lm.notes) if mode == "merged" else True
        if mode == "fast":
            modes["heads"] = _can_be_watched(lm)
    served = modes["fast"]
    return Outcome(
        family,
        served,
        invariant=modes["invariant"],
        merged=modes.get("merged", False),
        heads=modes.get("heads", False),
        why=why,
    )


NOT_TRIED = "not tried: no configuration small enough was found with which its own code works"
COUNT = 12
PROMPTS = ([5, 9, 40, 7, 33, 21, 60, 11, 8, 72, 19, 4, 55], [77, 3, 14])
MODES: Mapping[str, dict[str, Any]] = {
    "invariant": {"invariant": True},
    "fast": {"invariant": False},
    "merged": {"invariant": False, "merge": True},
}


def paged_greedy(rows: PagedRows, name: str, prompt: list[int], answer: list[int]) -> list[int]:
    """The greedy token at each place of `answer`, fed in chunks of several sizes."""
    tokens, at = prompt + answer[:-1], 0
    said: list[int] = []
    for size in itertools.cycle((5, 1, 3)):
        if at == len(tokens):
            return said
        chunk = tokens[at : at + size]
        greedy = rows.feed((name, chunk))[0].argmax(-1).tolist()
        said += greedy[max(0, len(prompt) - 1 - at) :]
        at += len(chunk)
    raise AssertionError("a cycle does not end")


def _can_be_watched(lm: CausalLM) -> bool:
    try:
        lm.record_features((0, lm.num_layers))
    except ModelError:
        return False
    lm.record_features(None)
    return True


def _reason(said: str, folder: Path, kind: str) -> str:
    """What a refusal says beside names and numbers of this very model."""
    said = said.removeprefix(f"{folder}: ").removeprefix(kind).lstrip(": ")
    said = said.removeprefix("cannot be served: ").split(" (docs/reference/")[0]
    return re.sub(r"[0-9]+(\.[0-9]+)?(e[-+][0-9]+)?", "n", said) if "differ by" in said else said
