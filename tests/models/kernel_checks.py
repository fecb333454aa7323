"""What kernels come to on a device, against the textbook on the CPU: for GPUs, and rehearsed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stepweave.models import paged_cache
from stepweave.models.kernels import operators
from stepweave.nodes.tree import MOST_NODES, Tree
from tests.models import test_kernels_glue as glue
from tests.models.layouts import LAYOUTS
from tests.models.paged_oracle import Batch

ERRORS = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}

FEW = Tree.of([(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (1, 0, 0), (2, 0)])
TREES = {"few": FEW, "most": Tree(tuple(place // 2 for place in range(MOST_NODES)))}
"""By their numbers of nodes. The second needs all bits of a token's path."""

SIZES = {"narrow": (48, 9, 12, 8, 1100), "wide": (4096, 32, 128, 128, 14336)}
"""Of tokens, of their heads and of an MLP, as `glue.arguments` takes them."""


def between(name: str, layout: str, sizes: str, dtype: torch.dtype, device: str) -> bool:
    """What stands between the products of a layer, by its name in the tests of these kernels."""
    every = glue.arguments(*SIZES[sizes])[name]
    given, plain = {}, {}
    for each, x in every.items():
        x = x.to(dtype) if x.is_floating_point() else x
        x = x.to(device)
        given[each] = x if (each, layout) in glue.REFUSED else LAYOUTS[layout](x)
        plain[each] = given[each].cpu().clone(memory_format=torch.contiguous_format)
        if x.is_floating_point():
            plain[each] = plain[each].float()
    wanted, found = getattr(glue, name)(**plain), getattr(glue, f"_{name}")(**given)
    many = isinstance(wanted, tuple)
    for one, other in zip(wanted if many else [wanted], found if many else [found], strict=True):
        assert not one.is_floating_point() or other.dtype == dtype
        error = ERRORS[dtype] if one.is_floating_point() else 0
        torch.testing.assert_close(
            other.cpu(), one, rtol=error, atol=error, check_dtype=False, check_layout=False
        )
    return True


def trees(
    nodes: str,
    lengths: tuple[int, ...],
    dim: int,
    window: int | None,
    kept: torch.dtype | None,
    dtype: torch.dtype,
    device: str,
) -> bool:
    """Attention of draft trees at the ends of rows of so many keys, one token masked in the first.

    `kept`: what the cache holds, if it is not `dtype`.
    """
    places = len(TREES[nodes].parents) + 1
    batch = Batch(lengths, places, 8, 2, dim, dim, 16, dtype=dtype, masked={0: 1})
    batch.plant(TREES[nodes])
    scales = () if kept is None else batch.narrow()
    _attend(batch, dtype, device, scales, window)
    return True


def latents(
    lengths: tuple[int, ...],
    query_len: int,
    widths: tuple[int, int],
    kept: torch.dtype | None,
    dtype: torch.dtype,
    device: str,
    planted: bool = False,
) -> bool:
    """Attention to latents: values are the first numbers of their keys; `widths` of both.

    `planted`: the rows are draft trees.
    """
    dim, value_dim = widths
    query_len = len(FEW.parents) + 1 if planted else query_len
    batch = Batch(lengths, query_len, 8, 1, dim, value_dim, 16, dtype=dtype, masked={0: 1})
    if planted:
        batch.plant(FEW)
    scales = () if kept is None else batch.narrow()[:1] * 2
    batch.rows = [(k, k[..., :value_dim]) for k, _ in batch.rows]
    _attend(batch, dtype, device, scales, None, within=True)
    return True


def _attend(
    batch: Batch,
    dtype: torch.dtype,
    device: str,
    scales: tuple[Tensor, ...],
    window: int | None,
    *,
    within: bool = False,
) -> None:
    query, keys, values, tables, positions = (x.to(device) for x in batch.arguments())
    if within:
        values = keys[..., : batch.value_dim]
    how: dict[str, Any] = {**batch.trees, "window": window}
    how |= dict(zip(("key_scales", "value_scales"), scales, strict=False))
    how = {name: x.to(device) if isinstance(x, Tensor) else x for name, x in how.items()}
    scaling = 0.5 * batch.dim**-0.5
    sizes = (batch.query_len, batch.block_size, scaling)
    out = operators.attend_now(query, keys, values, tables, positions, *sizes, **how)
    assert out.dtype == dtype
    expected, error = batch.expected(scaling, window), ERRORS[dtype]
    torch.testing.assert_close(out.cpu().double(), expected, rtol=error, atol=error)


def stored_latents(
    widths: tuple[int, int], kept: torch.dtype | None, dtype: torch.dtype, device: str
) -> bool:
    """Latents go to their slots, with the scales of whole keys where the cache is in 8 bits."""
    dim, value_dim = widths
    k = torch.randn(5, 1, dim, generator=torch.Generator().manual_seed(0)).to(dtype)
    k[..., -1] = 9.0  # behind the value
    k[1, 0, 2] = torch.nan
    slots = torch.tensor([7, 30, 4, 0, 22])
    stores: list[tuple[Tensor, Tensor | None]] = []
    for place in ("cpu", device):
        keys = torch.ones(32, 1, dim, dtype=kept or dtype, device=place)
        scales = None if kept is None else torch.ones(32, 1, device=place)
        new, at = k.to(place), slots.to(place)
        mine = (keys, keys[..., :value_dim], at, new, new[..., :value_dim])
        if not stores:
            paged_cache.write(*mine, (scales, scales))
        else:
            operators.write_now(*mine, scales, scales)
        stores.append((keys.cpu(), None if scales is None else scales.cpu()))
    (keys, scales), (found, of_found) = stores
    assert torch.equal(found, keys)
    assert scales is None or (of_found is not None and torch.equal(of_found, scales))
    return True
