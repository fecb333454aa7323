"""The parts of a decoder layer between its products, each as one kernel: for models and for heads.

A part takes the weights of the module whose place it takes, and computes what that does, but for
rounding. Which module is of which form is found by trying it on random numbers (`*_of`): what it
computes decides, not its name.

Shapes: T tokens, H width of the model, I inner width of the MLP, E inputs of the attention, D head
width.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, get_args

import torch
from torch import Tensor, nn

from ..backends.kernels import current
from .attention import AttentionBatch, Turn, attend_layer
from .kernels.forms import Activation, Angles, Norm
from .kernels.reference import How

_TRIED = 2  # rows of random numbers


def add_norm(x: Tensor, addend: Tensor | None, norm: Norm, **more: Any) -> tuple[Tensor, Tensor]:
    """`[T, H]`, `[T, H]`: sums of `x[T, H]` and `addend[T, H]`, and their norm.

    It is `kernels.add_norm`, on their device.
    """
    from .kernels import add_norm as kernel

    with current(x.device):
        return kernel.add_norm(x, addend, norm, **more)


@dataclass(frozen=True)
class FusedMlp:
    """An MLP whose gate and activation are one launch."""

    module: Any  # with `gate_proj`, `up_proj` and `down_proj`
    activation: Activation

    def __call__(self, x: Tensor) -> Tensor:
        """`[..., H]` of `x[..., H]`."""
        from .kernels import gate

        opened, up = self.module.gate_proj(x), self.module.up_proj(x)
        with current(x.device):
            inner = gate.gated(opened.flatten(0, -2), up.flatten(0, -2), self.activation)
        out: Tensor = self.module.down_proj(inner.view(*x.shape[:-1], -1))
        return out


@dataclass(frozen=True)
class FusedAttention:
    """Attention in which turning queries and keys and storing keys and values are one launch."""

    module: Any  # with `q_proj`, `k_proj`, `v_proj`, `o_proj` and `layer_idx`
    width: int  # D
    how: How
    norms: tuple[Norm, Norm] | None = None  # of each query and each key

    def __call__(self, x: Tensor, angles: Angles, batch: AttentionBatch) -> Tensor:
        """`[T, H]` of `x[T, E]`; `angles` as the kernel wants them."""
        query, key, value = (each.transpose(0, 1)[None] for each in self.projected(x))
        mixed = attend_layer(
            batch,
            self.module.layer_idx,
            query,
            key,
            value,
            self.how,
            invariant=False,
            turn=Turn(angles, self.norms),
        )
        out: Tensor = self.module.o_proj(mixed.flatten(1))
        return out

    def projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values `[T, heads, D]` of `x[T, E]`, neither normed nor turned."""
        part = self.module
        query, key, value = part.q_proj(x), part.k_proj(x), part.v_proj(x)
        heads = key.shape[-1] // self.width
        return (
            query.unflatten(-1, (-1, self.width)),
            key.unflatten(-1, (heads, self.width)),
            value.unflatten(-1, (heads, -1)),
        )


def norm_of(module: nn.Module, like: Tensor, alike: Norm | None = None) -> Norm | None:
    """The form of a norm for numbers as in `like[...]`; None if it is of no known one.

    The form of `alike` is tried first, which is that of another module of its kind.
    """
    weight = getattr(module, "weight", None)
    only = [name for name, _ in module.named_parameters()] == ["weight"]
    if not (only and isinstance(weight, Tensor) and weight.dim() == 1):
        return None
    names = ("variance_epsilon", "eps", "epsilon")
    found = [value for name in names if isinstance(value := getattr(module, name, None), float)]
    if len(found) != 1:
        return None
    x = _random(weight.shape[0], like)
    try:
        wanted = module(x)
    except Exception:  # of a module of another kind, called with something that it does not know
        return None
    first = () if alike is None else ((alike.offset, alike.rounds),)
    for shapes in (first, _FORMS):
        forms = [Norm(weight, found[0], *shape) for shape in shapes]
        which = closest(wanted, (add_norm(x, None, form)[1] for form in forms))
        if which is not None:
            return forms[which]
    return None


_FORMS = ((False, True), (False, False), (True, False), (True, True))  # offset, rounds


def mlp_of(module: nn.Module, like: Tensor, alike: FusedMlp | None = None) -> FusedMlp | None:
    """The MLP with its middle as one launch; None if it computes something else.

    For numbers as in `like[...]`. The activation of `alike` is tried first.
    """
    maps = [getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
    if not all(isinstance(each, nn.Module) for each in maps):
        return None
    inputs = getattr(maps[0], "in_features", None)
    if not isinstance(inputs, int):
        return None
    x = _random(inputs, like)
    try:
        wanted = module(x)
    except Exception:  # of a module that wants something else beside its input
        return None
    for activations in (() if alike is None else (alike.activation,), get_args(Activation)):
        forms = [FusedMlp(module, activation) for activation in activations]
        which = closest(wanted, (form(x) for form in forms))
        if which is not None:
            return forms[which]
    return None


def closest(wanted: object, found: Iterable[Tensor]) -> int | None:
    """Which of `found[...]` is nearest to `wanted[...]`; None if all differ by more than rounding.

    Sums are taken in another order and rounded once more or less, which is a unit in the last
    place of each number; the form of a part makes far more.
    """
    apart = [apart_by(wanted, each) for each in found] if isinstance(wanted, Tensor) else []
    if not apart:
        return None
    assert isinstance(wanted, Tensor)
    least = min(range(len(apart)), key=apart.__getitem__)
    return least if apart[least] <= allowed(wanted.dtype) else None


def apart_by(wanted: Tensor, found: Tensor) -> float:
    """How far `found[...]` is from `wanted[...]`, as a part of its size; infinite for NaN."""
    if wanted.shape != found.shape:
        return float("inf")
    apart = float((found.double() - wanted.double()).norm() / wanted.double().norm())
    return apart if apart == apart else float("inf")


def allowed(dtype: torch.dtype, parts: int = 1) -> float:
    """How far so many parts may be from what they take the place of, one after the other."""
    return parts * (1e-5 if dtype == torch.float32 else 2 * torch.finfo(dtype).eps)


def _random(width: int, like: Tensor) -> Tensor:
    draw = torch.Generator().manual_seed(0)
    return torch.randn(_TRIED, width, generator=draw).to(like)
