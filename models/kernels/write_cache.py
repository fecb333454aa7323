"""Storing a pass's keys and values in the paged cache on a GPU, in one launch per layer.

`PagedCache.write` in torch is safe to capture in a CUDA graph too, but it is six launches per
layer (cast, clean and scatter, for keys and for values), each as long as the launch of this one:
with a model of 32 layers that is a few tenths of a millisecond per step.

Shapes: T tokens, h key/value heads, D and D' widths of keys and values.
"""

import triton
import triton.language as tl
from torch import Tensor

from ...sampling.kernels.checks import check_written


def write(keys: Tensor, values: Tensor, slots: Tensor, k: Tensor, v: Tensor) -> None:
    """At `slots[T]` store `k[T, h, D]` in `keys[N, h, D]`, `v[T, h, D']` in `values[N, h, D']`.

    Zero takes the place of NaN and infinities (see `PagedCache`). A slot outside the cache is not
    written. Several tokens may name one scratch slot; which of them stays there is undefined.
    The tensors may lie in memory in any way.

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
        num_warps=1,
    )


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
        new_k = tl.load(k_at + d * k_stride, mask=d < DIM, other=0.0).to(keys.dtype.element_ty)
        new_v = tl.load(v_at + e * v_stride, mask=e < VALUE_DIM, other=0.0).to(
            values.dtype.element_ty
        )
        tl.store(keys_at + d * keys_stride, _finite(new_k), mask=d < DIM)
        tl.store(values_at + e * values_stride, _finite(new_v), mask=e < VALUE_DIM)


@triton.jit
def _finite(x):
    # Compared after the cast: a number can be finite in float32 and not in float16.
    return tl.where(tl.abs(x.to(tl.float32)) < float("inf"), x, 0.0).to(x.dtype)
