"""The kernels as torch operators, so that compilers see what they read, write and return.

`torch.compile` takes an operator as one opaque step: its declared mutations order it, and its fake
implementation gives the result's shape. Which implementation runs is decided inside, by device.
Calling an operator costs the host tens of microseconds, in every layer; so without a compiler the
functions behind them, `write_now` and `attend_now`, are called instead.

Shapes: see `split_kv.py`.
"""

import torch
from torch import Tensor

from ...backends.kernels import current, processors, takes
from .. import paged_cache
from . import reference
from .forms import Angles, Norm

LONG = 8
"""Query tokens of a row beyond which it counts as a prompt rather than as a window of drafts,
unless these are a tree."""


def _takes(computed: Tensor, stored: Tensor) -> bool:
    """Whether kernels run for what is `computed[...]` and `stored[...]` in a cache.

    Numbers of 8 bits with a point are left to torch: not every GPU's kernels can read them.
    """
    narrow = stored.dtype.is_floating_point and stored.dtype.itemsize == 1
    return takes(computed.device, computed.dtype) and not narrow


def write_now(
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    k: Tensor,
    v: Tensor,
    key_scales: Tensor | None = None,
    value_scales: Tensor | None = None,
) -> None:
    """At `slots[T]` store `k[T, h, D]` in `keys[N, h, D]`, `v[T, h, D']` in `values[N, h, D']`.

    Zero takes the place of NaN and infinities. With `key_scales[N, h]` and `value_scales[N, h]` in
    8 bits.
    """
    scales = (key_scales, value_scales)
    if _takes(k, keys):
        from . import write_cache as kernel

        with current(keys.device):
            kernel.write(keys, values, slots, k, v, scales)
    else:
        paged_cache.write(keys, values, slots, k, v, scales)


write_cache = torch.library.custom_op(
    "stepweave::write_cache",
    write_now,
    mutates_args=("keys", "values", "key_scales", "value_scales"),
)


@write_cache.register_fake
def _(
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    k: Tensor,
    v: Tensor,
    key_scales: Tensor | None = None,
    value_scales: Tensor | None = None,
) -> None:
    return None


def rotate_now(
    query: Tensor,
    k: Tensor,
    v: Tensor,
    angles: Angles,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    norms: tuple[Norm, Norm] | None = None,
) -> Tensor:
    """`query[T, H, D]` turned, `[T, H, D]`; `k[T, h, D]` turned and `v[T, h, D']` stored.

    They go to `slots[T]` of `keys[N, h, D]` and `values[N, h, D']`. For kernels alone: see
    `rotate.py`.
    """
    from . import rotate as kernel

    with current(query.device):
        return kernel.rotate(query, k, v, angles, keys, values, slots, norms=norms)


def turned_now(
    query: Tensor,
    k: Tensor,
    v: Tensor,
    angles: Angles,
    norms: tuple[Norm, Norm] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """`query[T, H, D]` turned, `[T, H, D]`, `k[T, h, D]` turned, `[T, h, D]`, and `v[T, h, D']`.

    Nothing is stored. For kernels alone, as `rotate_now`.
    """
    turned, finite = k.new_empty(k.shape), v.new_empty(v.shape)
    places = torch.arange(len(k), device=k.device)
    return rotate_now(query, k, v, angles, turned, finite, places, norms), turned, finite


def attend_now(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    block_tables: Tensor,
    positions: Tensor,
    query_len: int,
    block_size: int,
    scaling: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    starts: Tensor | None = None,
    bits: Tensor | None = None,
    width: int = 0,
    key_scales: Tensor | None = None,
    value_scales: Tensor | None = None,
) -> Tensor:
    """Attention `[R · q, H, D']` of `query[R · q, H, D]` over the paged keys and values.

    `keys[N, h, D]`, `values[N, h, D']`, `block_tables[R, B]`, `positions[R · q]`, `sinks[H]`. A
    token sees the keys of its row at positions up to its own, of these the last `window`; a token
    at a negative position gets something finite. With `starts[R · q]`, `bits[R · q]` and `width`
    the rows are draft trees, as `TreeRows` says. The cache holds finite numbers only; in 8 bits if
    it has `key_scales[N, h]` and `value_scales[N, h]`.
    """
    scales = (key_scales, value_scales)
    if not _takes(query, keys):
        how = reference.How(scaling, window, softcap, sinks)
        return reference.attend(
            query,
            keys,
            values,
            block_tables,
            positions,
            query_len=query_len,
            block_size=block_size,
            how=how,
            starts=starts,
            bits=bits,
            width=width,
            scales=scales,
        ).contiguous()
    from . import split_kv

    launch = split_kv.launch_for(
        len(block_tables),
        keys.shape[1],
        split_kv.width(keys, values),
        query.dtype,
        processors(query.device),
        long=query_len > LONG and starts is None,
        scaled=key_scales is not None,
        tree=starts is not None,
    )
    with current(query.device):
        return split_kv.attend(
            query,
            keys,
            values,
            block_tables,
            positions,
            query_len=query_len,
            block_size=block_size,
            scaling=scaling,
            window=window,
            softcap=softcap,
            sinks=sinks,
            starts=starts,
            bits=bits,
            width=width,
            scales=scales,
            launch=launch,
        )


attend_paged = torch.library.custom_op("stepweave::attend_paged", attend_now, mutates_args=())


@attend_paged.register_fake
def _(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    block_tables: Tensor,
    positions: Tensor,
    query_len: int,
    block_size: int,
    scaling: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    starts: Tensor | None = None,
    bits: Tensor | None = None,
    width: int = 0,
    key_scales: Tensor | None = None,
    value_scales: Tensor | None = None,
) -> Tensor:
    return query.new_empty(query.shape[0], query.shape[1], values.shape[2])
