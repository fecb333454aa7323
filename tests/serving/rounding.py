"""What a model computes whose keys and values go through 8 bits: by a textbook, without a cache."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel


def rounding(model: PreTrainedModel, kept: str) -> PreTrainedModel:
    """`model`, which attends to what is left of keys and values from here on; auto: to all."""
    if kept != "auto":
        AttentionInterface.register(f"plain_{kept}", _attention(kept))
        model.set_attn_implementation(f"plain_{kept}")
    return model


def _rounded(x: Tensor, kept: str) -> Tensor:
    """`x[…, D]` after a way through 8 bits, by the definition."""
    most = x.float().abs().max(dim=-1, keepdim=True).values / (127 if kept == "int8" else 448)
    steps = torch.where(most > 0, x.float() / most, 0.0)
    if kept == "int8":
        return torch.round(steps).double() * most.double()
    return steps.to(torch.float8_e4m3fn).double() * most.double()


def _attention(kept: str) -> Any:
    def attend(
        module: Any, query: Tensor, key: Tensor, value: Tensor, mask: object, **_: object
    ) -> tuple[Tensor, None]:
        shared = query.shape[1] // key.shape[1]
        k = _rounded(key, kept).repeat_interleave(shared, dim=1)
        v = _rounded(value, kept).repeat_interleave(shared, dim=1)
        scores = query @ k.transpose(2, 3) * query.shape[-1] ** -0.5
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        weights = scores.masked_fill(later, -torch.inf).softmax(dim=-1)
        return (weights @ v).transpose(1, 2).contiguous(), None

    return attend
