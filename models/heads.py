"""What a drafter needs to stand on its target: the target's output layer, and its arithmetic."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from .causal_lm import CausalLM
from .errors import ModelError
from .invariant import make_invariant
from .products import lay_out, plain
from .sharding import whole

M = TypeVar("M", bound=nn.Module)


def output_head(target: CausalLM, dtype: torch.dtype | None = None) -> nn.Linear:
    """The target's output layer, which makes logits `[N, V]` of hidden states `[N, H]`.

    A module of its own over the target's weights, which are copied only for another `dtype`. What
    the target's own code does to its logits (soft caps, scales) it does not do. Raises `ModelError`
    if the target has no such matrix.
    """
    hf: Any = target.hf
    head = hf.get_output_embeddings()
    weight = getattr(head, "weight", None)
    if not isinstance(weight, Tensor) or tuple(weight.shape) != (
        target.vocab_size,
        target.hidden_size,
    ):
        raise ModelError(
            f"{target.name}: its output head is no matrix {(target.vocab_size, target.hidden_size)}"
            ", which a head that drafts has to read hidden states with"
        )
    dtype = target.dtype if dtype is None else dtype
    bias = getattr(head, "bias", None)
    linear = nn.Linear(1, 1, bias=bias is not None, device="meta")
    linear.in_features, linear.out_features = target.hidden_size, target.vocab_size
    weight = weight.detach() if weight.dtype == dtype else plain(weight)
    linear.weight = nn.Parameter(whole(weight).to(dtype), requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(whole(bias.detach()).to(dtype), requires_grad=False)
    if linear.weight.is_mkldnn:
        lay_out(linear)
    return linear


def fitted(module: M, target: CausalLM) -> M:
    """The module, changed in place: on the target's device, in its precision and arithmetic.

    If the target is invariant, each row `[K]` of what the module's linear layers, activations and
    products get comes to the same bits in every batch; a drafter's weights need that for drafts to
    depend on the row's own tokens alone. Parameters get no gradients. Raises `ModelError` if the
    weights cannot be put on the device.
    """
    try:
        module.to(device=target.device, dtype=target.dtype)
    except (RuntimeError, AssertionError, MemoryError) as error:
        raise ModelError(
            f"{type(module).__name__}: its weights cannot be put on device "
            f"{str(target.device)!r}: {error}"
        ) from error
    module.train(False).requires_grad_(False)
    lay_out(module)
    if target.invariant:
        make_invariant(module)
    return module
