"""Rotary positions of queries and keys, and the way of keys and values to their slots: one launch.

In torch that is eight launches a layer for the rotation, eight more where queries and keys are
normed first, and one for the cache. A program does some heads of one token, for which it reads the
angles once.

Shapes: T tokens, H query heads, h key/value heads, D and D' widths of keys and values.
"""

import triton
import triton.language as tl
from torch import Tensor

from ...sampling.kernels.checks import check_shapes, check_written
from .add_norm import _scaled
from .forms import Angles, Norm
from .write_cache import _finite

_HEADS = 8
"""Heads of a program, of the query or of keys and values."""


def rotate(
    query: Tensor,
    k: Tensor,
    v: Tensor,
    angles: Angles,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    *,
    norms: tuple[Norm, Norm] | None = None,
) -> Tensor:
    """`query[T, H, D]` turned by `angles`, `[T, H, D]`; `k` turned and `v` go to the cache.

    At `slots[T]` the turned `k[T, h, D]` is stored in `keys[N, h, D]`, and `v[T, h, D']` in
    `values[N, h, D']`; zero takes the place of NaN and infinities, and a slot outside the cache is
    not written. The first 2 · A numbers of a head are turned (A, if angles are not `halved`), the
    second half of them with the first. `norms`: of each query and each key, before. Sums are
    rounded once. The tensors may lie in memory in any way.

    Raises:
        ValueError: shapes do not fit, or several entries of the cache share one place.
    """
    tokens, heads, width = query.shape
    kv_heads, value_width = values.shape[1:]
    check_shapes((tokens, kv_heads, width), k=k)
    check_shapes((tokens, kv_heads, value_width), v=v)
    check_shapes((len(values), kv_heads, width), keys=keys)
    check_shapes((tokens,), slots=slots, index=angles.index)
    check_shapes(tuple(angles.cos.shape), sin=angles.sin)
    check_written(keys=keys, values=values)
    turned = angles.cos.shape[1] * (2 if angles.halved else 1)
    if turned > width or turned % 2 or (angles.index is None and len(angles.cos) != tokens):
        raise ValueError(
            f"{turned} numbers cannot be turned, of heads of {width}, by angles "
            f"{tuple(angles.cos.shape)} for {tokens} tokens"
        )
    out = query.new_empty(tokens, heads, width)
    if tokens == 0:
        return out
    of_query, of_key = norms or (None, None)
    _rotate[(tokens, triton.cdiv(heads, _HEADS) + triton.cdiv(kv_heads, _HEADS))](
        query,
        k,
        v,
        angles.cos,
        angles.sin,
        slots if angles.index is None else angles.index,
        slots,
        keys,
        values,
        out,
        query if of_query is None else of_query.weight,
        query if of_key is None else of_key.weight,
        0.0 if of_query is None else of_query.epsilon,
        0.0 if of_key is None else of_key.epsilon,
        len(keys),
        heads,
        kv_heads,
        *query.stride(),
        *k.stride(),
        *v.stride(),
        *angles.cos.stride(),
        *angles.sin.stride(),
        0 if angles.index is None else angles.index.stride(0),
        slots.stride(0),
        *keys.stride(),
        *values.stride(),
        0 if of_query is None else of_query.weight.stride(0),
        0 if of_key is None else of_key.weight.stride(0),
        WIDTH=width,
        VALUE_WIDTH=value_width,
        HALF=turned // 2,
        BLOCK_HALF=triton.next_power_of_2(turned // 2),
        BLOCK_REST=triton.next_power_of_2(max(1, width - turned)),
        BLOCK_V=triton.next_power_of_2(value_width),
        INDEXED=angles.index is not None,
        HALVED=angles.halved,
        NORMED=norms is not None,
        OFFSET=of_query is not None and of_query.offset,
        ROUNDS=of_query is not None and of_query.rounds,
        HEADS=_HEADS,
        num_warps=4,
    )
    return out


@triton.jit
def _normed(
    x, scale, weights, at, stride, inside, OFFSET: tl.constexpr, ROUNDS: tl.constexpr, like
):
    weight = tl.load(weights + at * stride, mask=inside, other=0.0)
    return _scaled(x, scale[:, None], weight[None, :], OFFSET, ROUNDS, like).to(tl.float32)


@triton.jit
def _turned(
    at,
    head,
    inside,
    head_stride,
    stride,
    cos_at,
    cos_stride,
    sin_at,
    sin_stride,
    weights,
    weight_stride,
    epsilon,
    like,
    WIDTH: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_REST: tl.constexpr,
    HALVED: tl.constexpr,
    NORMED: tl.constexpr,
    OFFSET: tl.constexpr,
    ROUNDS: tl.constexpr,
):
    """Some heads: both turned halves, in float32, and what follows them."""
    d = tl.arange(0, BLOCK_HALF)
    e = 2 * HALF + tl.arange(0, BLOCK_REST)
    at += head[:, None] * head_stride
    halves = inside[:, None] & (d < HALF)[None, :]
    left = tl.load(at + d[None, :] * stride, mask=halves, other=0.0).to(tl.float32)
    right = tl.load(at + (HALF + d)[None, :] * stride, mask=halves, other=0.0).to(tl.float32)
    behind = inside[:, None] & (e < WIDTH)[None, :]
    rest = tl.load(at + e[None, :] * stride, mask=behind, other=0.0).to(tl.float32)
    if NORMED:
        squares = tl.sum(left * left + right * right, 1) + tl.sum(rest * rest, 1)
        scale = tl.rsqrt(squares / WIDTH + epsilon)
        late = HALF + d
        left = _normed(left, scale, weights, d, weight_stride, d < HALF, OFFSET, ROUNDS, like)
        right = _normed(right, scale, weights, late, weight_stride, d < HALF, OFFSET, ROUNDS, like)
        rest = _normed(rest, scale, weights, e, weight_stride, e < WIDTH, OFFSET, ROUNDS, like)
    cos = tl.load(cos_at + d * cos_stride, mask=d < HALF, other=0.0).to(tl.float32)[None, :]
    sin = tl.load(sin_at + d * sin_stride, mask=d < HALF, other=0.0).to(tl.float32)[None, :]
    late_cos, late_sin = cos, sin
    if not HALVED:
        later = tl.load(cos_at + (HALF + d) * cos_stride, mask=d < HALF, other=0.0)
        late_cos = later.to(tl.float32)[None, :]
        later = tl.load(sin_at + (HALF + d) * sin_stride, mask=d < HALF, other=0.0)
        late_sin = later.to(tl.float32)[None, :]
    return left * cos - right * sin, right * late_cos + left * late_sin, rest


# A stride of 1 is compiled in, so numbers that lie side by side are moved several at a time.
@triton.jit(
    do_not_specialize=["capacity", "heads", "kv_heads", "index_stride", "slots_stride"],
    do_not_specialize_on_alignment=["index", "slots"],
)
def _rotate(
    query,
    k,
    v,
    cos,
    sin,
    index,
    slots,
    keys,
    values,
    out,
    query_weights,
    key_weights,
    query_epsilon,
    key_epsilon,
    capacity,
    heads,
    kv_heads,
    query_token_stride,
    query_head_stride,
    query_stride,
    k_token_stride,
    k_head_stride,
    k_stride,
    v_token_stride,
    v_head_stride,
    v_stride,
    cos_row_stride,
    cos_stride,
    sin_row_stride,
    sin_stride,
    index_stride,
    slots_stride,
    keys_slot_stride,
    keys_head_stride,
    keys_stride,
    values_slot_stride,
    values_head_stride,
    values_stride,
    query_weight_stride,
    key_weight_stride,
    WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_REST: tl.constexpr,
    BLOCK_V: tl.constexpr,
    INDEXED: tl.constexpr,
    HALVED: tl.constexpr,
    NORMED: tl.constexpr,
    OFFSET: tl.constexpr,
    ROUNDS: tl.constexpr,
    HEADS: tl.constexpr,
):
    """Program (token, some heads): first those of the query, then those of keys and values."""
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    line = token
    if INDEXED:  # a masked token is at a negative position: any angles do
        line = tl.maximum(tl.load(index + token * index_stride), 0).to(tl.int64)
    cos_at, sin_at = cos + line * cos_row_stride, sin + line * sin_row_stride
    d = tl.arange(0, BLOCK_HALF)
    e = 2 * HALF + tl.arange(0, BLOCK_REST)
    like = out.dtype.element_ty
    of_query = tl.cdiv(heads, HEADS)
    if part < of_query:
        head = part * HEADS + tl.arange(0, HEADS)
        inside = head < heads
        left, right, rest = _turned(
            query + token * query_token_stride,
            head,
            inside,
            query_head_stride,
            query_stride,
            cos_at,
            cos_stride,
            sin_at,
            sin_stride,
            query_weights,
            query_weight_stride,
            query_epsilon,
            like,
            WIDTH,
            HALF,
            BLOCK_HALF,
            BLOCK_REST,
            HALVED,
            NORMED,
            OFFSET,
            ROUNDS,
        )
        out_at = out + (token * heads + head)[:, None] * WIDTH
        halves = inside[:, None] & (d < HALF)[None, :]
        tl.store(out_at + d[None, :], left.to(like), mask=halves)
        tl.store(out_at + HALF + d[None, :], right.to(like), mask=halves)
        tl.store(out_at + e[None, :], rest.to(like), mask=inside[:, None] & (e < WIDTH)[None, :])
    else:
        slot = tl.load(slots + token * slots_stride).to(tl.int64)
        head = (part - of_query) * HEADS + tl.arange(0, HEADS)
        inside = (head < kv_heads) & (slot >= 0) & (slot < capacity)
        left, right, rest = _turned(
            k + token * k_token_stride,
            head,
            inside,
            k_head_stride,
            k_stride,
            cos_at,
            cos_stride,
            sin_at,
            sin_stride,
            key_weights,
            key_weight_stride,
            key_epsilon,
            like,
            WIDTH,
            HALF,
            BLOCK_HALF,
            BLOCK_REST,
            HALVED,
            NORMED,
            OFFSET,
            ROUNDS,
        )
        store = keys.dtype.element_ty
        at = keys + slot * keys_slot_stride + head[:, None] * keys_head_stride
        halves = inside[:, None] & (d < HALF)[None, :]
        tl.store(at + d[None, :] * keys_stride, _finite(left.to(store)), mask=halves)
        tl.store(at + (HALF + d)[None, :] * keys_stride, _finite(right.to(store)), mask=halves)
        behind = inside[:, None] & (e < WIDTH)[None, :]
        tl.store(at + e[None, :] * keys_stride, _finite(rest.to(store)), mask=behind)
        f = tl.arange(0, BLOCK_V)
        v_at = v + token * v_token_stride + head[:, None] * v_head_stride
        at = values + slot * values_slot_stride + head[:, None] * values_head_stride
        of_values = inside[:, None] & (f < VALUE_WIDTH)[None, :]
        new = tl.load(v_at + f[None, :] * v_stride, mask=of_values, other=0.0)
        new = new.to(values.dtype.element_ty)
        tl.store(at + f[None, :] * values_stride, _finite(new), mask=of_values)
