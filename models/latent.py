"""Latent attention: the keys and values of all heads are made of one narrow vector of each token.

Models with it (DeepSeek-V2, arXiv:2405.04434, and its descendants) expand that vector, the
*latent*, to a key and a value for each head by one linear map; a part of each key that knows the
position, the same for all heads, goes beside it. Only latents and that part need to be kept. The
map is linear, so nothing has to be expanded: its half for keys is multiplied into the query (it is
*absorbed*), its half for values into the result. What is left is attention with one key head, whose
values are the first numbers of its keys.

A family's own code runs up to where it would expand (`expand_kv`, by which transformers calls that
step in all of them) and goes on with what attention gives. Scores are sums in another order than
the family's own, and the same in every batch, chunk and window. A prompt takes more arithmetic than
with expanded keys, where the latent is wider than a head.

Shapes: T tokens, H heads, R width of the latent, P and N widths of a key with and without position,
V width of a value.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from . import invariant
from .sharding import own_part

_HELD = "_stepweave_latent"
_EXPAND = "expand_kv"


@dataclass(frozen=True, eq=False)
class Latent:
    """The linear map of one layer, by its halves: views of the layer's own weights."""

    keys: Tensor  # [H, N, R]
    values: Tensor  # [H, R, V]

    def absorbed(self, query: Tensor, *, exactly: bool) -> Tensor:
        """`[1, H, T, R + P]` of `query[1, H, T, N + P]`; `exactly`: in invariant arithmetic."""
        by_token, width = query[0].transpose(0, 1), self.keys.shape[1]
        plain = _by_head(by_token[..., :width], self.keys, exactly)
        return torch.cat((plain, by_token[..., width:]), dim=-1).transpose(0, 1)[None]

    def expanded(self, mixed: Tensor, *, exactly: bool) -> Tensor:
        """`[1, T, H, V]` of latents `mixed[1, T, H, R]`."""
        return _by_head(mixed[0], self.values, exactly)[None]


def _by_head(x: Tensor, weight: Tensor, exactly: bool) -> Tensor:
    """`[T, H, N']` of `x[T, H, K]` and `weight[H, K, N']`."""
    if exactly:
        return invariant.by_head(x, weight)
    return torch.bmm(x.transpose(0, 1), weight).transpose(0, 1)


def latent_of(module: nn.Module) -> Latent | None:
    """What `keep_latents` has given the module."""
    found: Latent | None = getattr(module, _HELD, None)
    return found


def keep_latents(model: nn.Module) -> tuple[nn.Module, ...]:
    """From here on attention is handed latents, in place; the maps that are absorbed.

    None are where the model has no latent attention.
    """
    maps = []
    for module, each in _layers(model):
        width = module.qk_nope_head_dim
        weight = own_part(each.weight.detach())  # of all heads that are here, keys before values
        heads = weight.view(-1, width + module.v_head_dim, weight.shape[1])
        module.__dict__[_HELD] = Latent(heads[:, :width], heads[:, width:].transpose(1, 2))
        module.__dict__[_EXPAND] = _kept
        maps.append(each)
    return tuple(maps)


def undo(model: nn.Module) -> None:
    """Give every layer its own expansion back."""
    for module in model.modules():
        if module.__dict__.pop(_HELD, None) is not None:
            del module.__dict__[_EXPAND]


def _kept(latents: Tensor, turned: Tensor) -> tuple[Tensor, Tensor]:
    """In place of expansion: key `[1, 1, T, R + P]` and value `[1, 1, T, R]`.

    Of `latents[1, 1, T, R]` and the part of keys that knows the position, `turned[1, 1, T, P]`.
    """
    return torch.cat((latents, turned), dim=-1), latents


def _layers(model: nn.Module) -> Iterator[tuple[Any, nn.Linear]]:
    """Modules with latent attention, each with its map."""
    for module in model.modules():
        each = getattr(module, "kv_b_proj", None)
        if hasattr(type(module), _EXPAND) and isinstance(each, nn.Linear) and each.bias is None:
            yield module, each
