"""Run on each of two ranks: tiny models of transformers' families, divided, against one rank.

A family is *equal* if a pipeline with prompt look-up gives on two ranks the greedy tokens of the
family's own attention, and drafts as on one rank; or it is *refused* when it is loaded.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from stepweave import LLM
from stepweave.models.causal_lm import CausalLM
from stepweave.models.errors import ModelError
from stepweave.models.support import plain_experts
from stepweave.testing.models import tiny_tokenizer
from tests.models.families import COUNT, PROMPTS, built, tiny_config
from tests.models.paged_rows import own_greedy

DIVIDED = (
    *("llama", "qwen2", "qwen3", "qwen3_moe", "mistral", "mixtral", "gemma2", "gemma3_text"),
    *("phi3", "olmo2", "granite", "glm4_moe", "deepseek_v3"),
)
"""Families that two ranks serve."""

REFUSED: Mapping[str, str] = {
    # Up to transformers 5.23 it has no plan; the plan of 5.24 leaves the experts whole.
    "gpt_oss": "run it on one rank",
    "gpt2": "transformers has no plan for dividing a gpt2 among ranks; run it on one rank",
}
"""Families that cannot be divided, and why not."""

OVERRIDES: Mapping[str, Any] = {
    "model": {"dtype": "float64", "invariant": False},
    "scheduler": {"max_rows": 4, "num_blocks": 64, "block_size": 4, "token_budget": 16},
    "graphs": False,
}


def alone(family: str, folder: Path) -> dict[str, Any] | None:
    """Save a tiny model; its own greedy tokens, and what one rank serves of one that is served."""
    config = tiny_config(family)
    assert config is not None, f"{family}: no small model can be built"
    model = built(config, torch.float64)
    model.save_pretrained(folder)  # which does nothing on another rank than 0
    tiny_tokenizer().save_pretrained(folder)
    if family in REFUSED:
        return None
    plain_experts(model)  # those that are grouped know no float64
    own = [own_greedy(model, prompt, COUNT) for prompt in PROMPTS]
    kept = latents(CausalLM.wrap(model, invariant=False))
    return {"own": own, "served": served(folder, 1), "latents": kept}


def together(folder: Path) -> dict[str, Any]:
    """What two ranks serve, or why they refuse to."""
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    try:
        # First without an engine: a refusal in one ends its group.
        model = CausalLM.load(folder, dtype="float64", invariant=False, shards=2)
    except ModelError as error:
        return {"refused": f"{error}".replace(f"{folder}", "")}
    return {"served": served(folder, 2), "latents": latents(model)}


def latents(model: CausalLM) -> list[int]:
    """Numbers of a token that each layer with latents keeps."""
    return [shape.elements for shape in model.layer_shapes if shape.within]


def served(folder: Path, ranks: int) -> list[Any]:
    """Tokens, drafted and accepted counts of each prompt."""
    overrides = {**OVERRIDES, "model.parallel.tensor": ranks}
    params = {"max_tokens": COUNT, "ignore_eos": True, "temperature": 0.0}
    with LLM(folder, pipeline="async_ngram", overrides=overrides) as llm:
        outputs = llm.generate(PROMPTS, params)
    return [[list(each.token_ids), each.drafted, each.accepted] for each in outputs]


def found(out: str, families: Sequence[str]) -> dict[str, Any]:
    """What each family comes to on one rank, by rank 0 alone, and on two."""
    leads, models = os.environ["RANK"] == "0", Path(out) / "models"
    first = {family: alone(family, models / family) for family in families} if leads else None
    if families:
        if not dist.is_initialized():
            dist.init_process_group("gloo")
        dist.barrier()  # the models are there
        if not leads:  # as on a machine where they have another path
            models = shutil.copytree(models, Path(out) / "the same models")
    folders = {family: models / family for family in families}
    return {"alone": first, "together": {each: together(path) for each, path in folders.items()}}
