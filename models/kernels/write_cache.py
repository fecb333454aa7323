"""Storing a pass's keys and values in the paged cache on a GPU, in one launch per layer.

`PagedCache.write` in torch is safe to capture in a CUDA graph too, but it is six launches per
layer (cast, clean and scatter, for keys and for values), each as long as the launch of this one:
with a model of 32 layers that is a few tenths of a millisecond per step.

Shapes: T tokens, h key/value heads, D and D' widths of keys and values.
"""

import triton
import triton.language as tl
from torch import Tensor

from ...sampling.kernels.checks import check_shapes, check_written
from ..paged_cache import within


def write(
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    k: Tensor,
    v: Tensor,
    scales: tuple[Tensor | None, Tensor | None] = (None, None),
) -> None:
    """At `slots[T]` store `k[T, h, D]` in `keys[N, h, D]`, `v[T, h, D']` in `values[N, h, D']`.

    As whole numbers of 8 bits if there are `scales[N, h]` of keys and of values, which are stored
    too: the bits are those of `narrowed`. Zero takes the place of NaN and infinities (see
    `PagedCache`). Values `within` the keys are stored with them. A slot outside the cache is not
    written. Several tokens may name one scratch slot; which of them stays there is undefined. The
    tensors may lie in memory in any way.

    Raises:
        ValueError: shapes do not fit, or several entries of `keys` or `values` share one place.
    """
    tokens = slots.shape[0]
    for name, store, new in (("keys", keys, k), ("values", values, v)):
        if new.shape != (tokens, *store.shape[1:]) or len(store) != len(keys):
            raise ValueError(
                f"{tokens} slots, new {name} {tuple(new.shape)}, {name} {tuple(store.shape)}: "
                "they do not fit together"
            )
    check_written(keys=keys, values=values)
    check_scales(keys, *scales)
    key_scales, value_scales = scales
    if tokens == 0:
        return
    heads, dim = k.shape[1:]
    value_dim = v.shape[2]
    _write[(tokens, heads)](
        keys,
        values,
        slots,
        k,
        v,
        keys if key_scales is None else key_scales,
        values if value_scales is None else value_scales,
        keys.shape[0],
        slots.stride(0),
        *keys.stride(),
        *values.stride(),
        *k.stride(),
        *v.stride(),
        DIM=dim,
        VALUE_DIM=value_dim,
        BLOCK_D=triton.next_power_of_2(dim),
        BLOCK_V=triton.next_power_of_2(value_dim),
        SCALED=key_scales is not None,
        WITHIN=within(keys, values),
        num_warps=1,
    )


def check_scales(keys: Tensor, key_scales: Tensor | None, value_scales: Tensor | None) -> None:
    """That `key_scales[N, h]`, `value_scales[N, h]` fit `keys[N, h, D]`, or neither is there.

    Raises:
        ValueError: they do not, or do not lie side by side.
    """
    if (key_scales is None) != (value_scales is None):
        raise ValueError("keys and values have scales, or neither has")
    check_shapes(tuple(keys.shape[:2]), key_scales=key_scales, value_scales=value_scales)
    for scales in (key_scales, value_scales):
        if scales is not None and not scales.is_contiguous():
            raise ValueError("scales of a cache must lie side by side")


# A stride of 1 is compiled in, so numbers that lie side by side are moved several at a time.
@triton.jit(
    do_not_specialize=["capacity", "slots_stride"], do_not_specialize_on_alignment=["slots"]
)
def _write(
    keys,
    values,
    slots,
    k,
    v,
    key_scales,  # [N, h], side by side
    value_scales,
    capacity,
    slots_stride,
    keys_slot_stride,
    keys_head_stride,
    keys_stride,
    values_slot_stride,
    values_head_stride,
    values_stride,
    k_token_stride,
    k_head_stride,
    k_stride,
    v_token_stride,
    v_head_stride,
    v_stride,
    DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
    SCALED: tl.constexpr,
    WITHIN: tl.constexpr,
):
    """Program (token, head)."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    slot = tl.load(slots + token * slots_stride).to(tl.int64)
    if (slot >= 0) & (slot < capacity):
        d = tl.arange(0, BLOCK_D)
        e = tl.arange(0, BLOCK_V)
        k_at = k + token * k_token_stride + head * k_head_stride
        v_at = v + token * v_token_stride + head * v_head_stride
        keys_at = keys + slot * keys_slot_stride + head * keys_head_stride
        values_at = values + slot * values_slot_stride + head * values_head_stride
        new_k = tl.load(k_at + d * k_stride, mask=d < DIM, other=0.0)
        new_v = tl.load(v_at + e * v_stride, mask=e < VALUE_DIM, other=0.0)
        if SCALED:
            of_head = slot * tl.num_programs(1) + head
            new_k, k_scale = _narrowed(new_k)
            new_v, v_scale = _narrowed(new_v)
            tl.store(key_scales + of_head, k_scale)
            if not WITHIN:
                tl.store(value_scales + of_head, v_scale)
        else:
            new_k = _finite(new_k.to(keys.dtype.element_ty))
            new_v = _finite(new_v.to(values.dtype.element_ty))
        tl.store(keys_at + d * keys_stride, new_k, mask=d < DIM)
        if not WITHIN:
            tl.store(values_at + e * values_stride, new_v, mask=e < VALUE_DIM)


@triton.jit
def _finite(x):
    # Compared after the cast: a number can be finite in float32 and not in float16.
    return tl.where(tl.abs(x.to(tl.float32)) < float("inf"), x, 0.0).to(x.dtype)


_MOST = tl.constexpr(127.0)
_LEAST = tl.constexpr(1.1754943508222875e-38)
_WHOLE = tl.constexpr(12582912.0)  # 1.5 · 2²³: added to a small number, it leaves no fraction


@triton.jit
def _narrowed(x):
    """`x[D]` as whole numbers of 8 bits, and their scale: `cache_format.narrowed`, bit for bit."""
    x = _finite(x.to(tl.float32))
    scale = tl.div_rn(tl.max(tl.abs(x), 0), _MOST)
    whole = tl.div_rn(x, tl.maximum(scale, _LEAST))
    whole = (whole + _WHOLE) - _WHOLE
    return tl.minimum(tl.maximum(whole, -_MOST), _MOST).to(tl.int8), scale
