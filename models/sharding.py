"""A model of which each of several ranks has a part: tensor parallelism, as transformers divides.

transformers divides what the plan of a family names and leaves the rest whole, without a word. So
what cannot be divided is refused here: by the configuration before weights are read, and by the
share of the parameters that this rank has afterwards.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from .errors import ModelError, UnsupportedModel
from .plausible import stated

REMAINDER = 0.15
"""How much of a model every rank may have whole, beside its share: norms, routers."""

_PLANS: dict[str, dict[str, str]] = {
    # Its own plan leaves attention whole, and so the keys of every head on each rank.
    "deepseek_v3": {
        "model.layers.*.self_attn.q_b_proj": "colwise",
        "model.layers.*.self_attn.kv_b_proj": "colwise",
        "model.layers.*.self_attn.kv_a_proj_with_mqa": "mla_kv_a_proj",
        "model.layers.*.self_attn.o_proj": "rowwise",
    },
}
"""By model type: what is divided beside what the family's own plan names."""


def dividing(name: str, config: Any, shards: int) -> dict[str, Any]:
    """What `from_pretrained` is to be given, so that each of `shards` ranks gets its part.

    Raises `UnsupportedModel` for a model that cannot be divided by that number, and `ModelError`
    where a library is missing.
    """
    if find_spec("accelerate") is None:
        raise ModelError(
            f"{name}: dividing a model among {shards} ranks needs accelerate: "
            "pip install 'stepweave[ranks]'"
        )
    try:
        from transformers.distributed.configuration_utils import DistributedConfig
    except ImportError as error:
        raise ModelError(
            f"{name}: the installed transformers cannot divide a model among ranks: {error}"
        ) from error
    text = config.get_text_config(decoder=True)
    plan = {**(getattr(text, "base_model_tp_plan", None) or {}), **_PLANS.get(text.model_type, {})}
    if not plan:
        raise UnsupportedModel(
            f"{name}: transformers has no plan for dividing a {text.model_type} among ranks; run "
            "it on one rank"
        )
    _require_heads(name, text, plan, shards)
    more = _PLANS.get(text.model_type)
    return {"distributed_config": DistributedConfig(tp_size=shards, tp_plan=more)}


def require_divided(name: str, model: torch.nn.Module, shards: int) -> None:
    """Raises `UnsupportedModel` where this rank has much more than its share of the parameters."""
    whole = local = 0
    largest = ("", 0)
    for key, parameter in model.named_parameters():
        here = own_part(parameter)
        whole, local = whole + parameter.numel(), local + here.numel()
        if here.numel() == parameter.numel() > largest[1]:
            largest = (key, here.numel())
    share = local / max(whole, 1)
    if share > 1 / shards + REMAINDER:
        raise UnsupportedModel(
            f"{name}: of its parameters each of {shards} ranks would have {share:.0%}, since the "
            f"plan of transformers leaves {largest[0]!r} and others whole; run it on one rank"
        )


def whole(tensor: Tensor) -> Tensor:
    """`[...]` of `tensor[...]`, of which each rank may have a part: all of it.

    Every rank has to ask for it, in the same order.
    """
    gather = getattr(tensor, "full_tensor", None)
    return tensor if gather is None else gather()


def own_part(parameter: Tensor) -> Tensor:
    """`[...]`: what this rank has of `parameter[...]`."""
    local = getattr(parameter, "to_local", None)
    return parameter if local is None else local()


def _require_heads(name: str, config: Any, plan: dict[str, str], shards: int) -> None:
    """Heads are divided whole: a number of ranks that divides them not is refused."""
    heads = stated(config, "num_attention_heads")
    every = [(count, "attention") for count in sorted(heads)]
    if any(key.endswith(".k_proj") and style == "colwise" for key, style in plan.items()):
        pairs = stated(config, "num_key_value_heads") or heads
        every += [(count, "key-value") for count in sorted(pairs)]
    if any(count % shards for count, _ in every):
        fits = [n for n in range(2, min(every)[0] + 1) if not any(count % n for count, _ in every)]
        sizes = " or ".join(map(str, fits)) or "no number of"
        counts = " and ".join(f"{count} {what}" for count, what in every)
        raise UnsupportedModel(
            f"{name}: it has {counts} heads, which cannot be divided among {shards} ranks; "
            f"{sizes} ranks fit"
        )
