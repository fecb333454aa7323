"""Products with weights on a CPU: by oneDNN, of weights that are laid out for it once.

The library behind `F.linear` lays the weights of a small batch out anew in each product, or reads
them in rows that no cache foresees. oneDNN takes them in an order of its own, in which they are
kept from the time when the model is loaded, in place of the plain ones. A product of few rows then
takes as long as its weights are in coming, and mostly has the same bits for any number of rows,
which `invariant.py` tries.

Weights that others read too (an embedding that is the output layer) stay plain; oneDNN takes those
as well, more slowly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..backends import backend_of
from .memory import let_go

LEAST = 3 << 15
"""Elements of a matrix from which on oneDNN is ahead: a call costs 9 to 25 microseconds more, but
few rows have the bits that they have among many, so that one need not be computed as four."""

LEAST_PLAIN = 1 << 18
"""The same of a matrix that is not laid out."""

_ROWS = 16  # oneDNN chooses the order for that many, of which also one row has the tile's bits

_PLAIN = "_stepweave_plain_product"


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear`: `[..., N]` of `x[..., K]`, `weight[N, K]`, laid out or plain, and `bias[N]`."""
    if weight.is_mkldnn or (_takes(weight, LEAST_PLAIN) and x.dtype == weight.dtype):
        made: Tensor = _linear()(x, weight, bias, "none", [], "")
        return made
    return F.linear(x, weight, bias)


def lay_out(model: nn.Module, leave: Collection[nn.Module] = ()) -> None:
    """Give, in place, the linear layers of `model` their products by oneDNN.

    Weights are laid out one by one: the memory beside them is that of one. A layer that is not a
    plain `nn.Linear` (divided among ranks, adapted) is left alone, and so is one whose `forward`
    somebody has replaced, or that is to be left. Doing it again changes nothing.
    """
    shared = shared_parameters(model)
    for module in model.modules():
        if type(module) is not nn.Linear or "forward" in module.__dict__ or module in leave:
            continue
        weight = module.weight
        if not _takes(weight, LEAST):
            continue
        if id(weight) not in shared and not weight.is_mkldnn:
            made = laid_out(weight)
            let_go(weight)
            module.weight = nn.Parameter(made, requires_grad=False)
        module.__dict__[_PLAIN] = True
        module.__dict__["forward"] = partial(layer_product, module)


def undo(model: nn.Module) -> None:
    """Give the layers their own products and plain weights back."""
    for module in model.modules():
        if module.__dict__.pop(_PLAIN, False):
            assert isinstance(module, nn.Linear)
            module.__dict__.pop("forward", None)
            if module.weight.is_mkldnn:
                module.weight = nn.Parameter(plain(module.weight), requires_grad=False)


def laid_out(weight: Tensor) -> Tensor:
    """`[N, K]`: `weight[N, K]` as oneDNN keeps it, copied."""
    with torch.no_grad():
        made: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), _ROWS)
    return made


def plain(weight: Tensor) -> Tensor:
    """`[N, K]`: `weight[N, K]` as others read it, copied if it is laid out."""
    return weight.detach().to_dense() if weight.is_mkldnn else weight.detach()


def shared_parameters(model: nn.Module) -> frozenset[int]:
    """Those that the model has under more than one name, by `id`."""
    named = model.named_parameters(remove_duplicate=False)
    times = Counter(id(parameter) for _, parameter in named)
    return frozenset(which for which, count in times.items() if count > 1)


def layer_product(module: nn.Linear, x: Tensor) -> Tensor:
    """What the layer computes: `[..., N]` of `x[..., K]`, by `product`."""
    return product(x, module.weight, module.bias)


def _takes(weight: Tensor, least: int) -> bool:
    """Whether oneDNN multiplies by `weight[N, K]`, from so many elements on."""
    return (
        type(weight) in (Tensor, nn.Parameter)
        and backend_of(weight.device).on_host
        and weight.dtype in _dtypes()
        and weight.numel() >= least
    )


@cache
def _dtypes() -> frozenset[torch.dtype]:
    if not torch._C._has_mkldnn or not hasattr(torch.ops.mkldnn, "_reorder_linear_weight"):
        return frozenset()
    half = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return frozenset({torch.float32, torch.bfloat16} if half else {torch.float32})


@cache
def _linear() -> Any:
    return torch.ops.mkldnn._linear_pointwise.default
