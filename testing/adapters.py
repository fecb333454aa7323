"""Random LoRA adapters for small models, as PEFT writes them: for tests, of ours and of yours."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM


def save_adapter(
    directory: str | Path,
    model: str | Path,
    seed: int = 0,
    *,
    rank: int = 4,
    targets: Sequence[str] = ("q_proj", "v_proj", "down_proj"),
    **config: Any,
) -> Path:
    """Write an adapter of the model in the folder `model` to `directory`, both matrices random.

    It adapts the linear layers whose names end with one of `targets`, and much, so that texts
    differ. `config` adds to adapter_config.json. Raises `OSError` where the model cannot be read,
    and `ValueError` where it has no such layer.
    """
    load: Any = AutoModelForCausalLM.from_pretrained
    whole: nn.Module = load(Path(model), dtype=torch.float32)
    layers = {
        name: module
        for name, module in whole.named_modules()
        if isinstance(module, nn.Linear) and name.rpartition(".")[2] in targets
    }
    if not layers:
        raise ValueError(f"{model} has no linear layer called {' or '.join(targets)}")
    draw = torch.Generator().manual_seed(seed)

    def drawn(rows: int, columns: int) -> Tensor:
        made: Tensor = torch.randn(rows, columns, generator=draw) * columns**-0.5
        return made

    weights: dict[str, Tensor] = {}
    for name, module in layers.items():
        of_module = f"base_model.model.{name}"
        weights[f"{of_module}.lora_A.weight"] = drawn(rank, module.in_features)
        weights[f"{of_module}.lora_B.weight"] = drawn(module.out_features, rank)
    said: Mapping[str, Any] = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": rank,
        "target_modules": list(targets),
        "bias": "none",
        **config,
    }
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(said), encoding="utf-8")
    return folder
