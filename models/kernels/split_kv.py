"""Paged attention of short query windows on a GPU: the keys of a row are split over programs.

One token, or a window of a token and its drafts, is too little work to fill a GPU row by row, so
each row's keys are divided among several programs and their partial softmaxes are merged by a
second, small kernel (Flash-Decoding, Dao et al. 2023; the running maximum within a program is
that of FlashAttention-2, Dao 2023, arXiv:2307.08691; block tables are those of PagedAttention,
Kwon et al. 2023, arXiv:2309.06180). Query heads that share a key head are packed, with the
tokens of the window, into the rows of one matrix product.

The grid depends on host integers only and lengths are read on the device, so a launch can be
captured in a CUDA graph. Programs without keys to look at end at once. Where the rows alone occupy
the device there is one split, which writes the result itself: no partial ones, and no merge.

Split s takes the key tiles s, s + S, s + 2S … (S splits) rather than a contiguous part of the row.
So which keys are summed together, and in what order, depends on neither the row's length nor the
window, and a tile that is masked as a whole changes no bit: a token's result depends on its own
position, the launch and the (padded) rows of the product only, whatever else is in the batch.

Values that are the first numbers of their keys (`latent.py`) are loaded once, as part of these.
What keys have behind them is a product of its own, so that the whole of a key, 576 numbers in some
models, is not brought to the next power of two.

Shapes: R rows, q query tokens of a row, H query heads, h key/value heads, g = H / h, M = q · g,
B blocks of a row, S splits, D and D' widths of keys and values.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..paged_cache import within
from .write_cache import check_scales

_LOG2_E = tl.constexpr(1.4426950408889634)

MOST_SPLITS = 16
"""Partial results of a row, at most: one load of the program that merges them."""


@dataclass(frozen=True)
class Launch:
    """How the kernels are laid out on the device. Different launches round differently."""

    splits: int
    tile: int = 64
    most_rows: int = 64  # of the matrix product of a program
    num_warps: int = 4
    num_stages: int = 2
    registers: int | None = None  # of a thread, for windows, caps, trees, latents; None: any


def width(keys: Tensor, values: Tensor) -> int:
    """How many numbers of a head a program holds, of `keys[N, h, D]` and `values[N, h, D']`."""
    return values.shape[2] if within(keys, values) else max(keys.shape[2], values.shape[2])


def launch_for(
    rows: int,
    kv_heads: int,
    width: int,
    dtype: torch.dtype,
    processors: int,
    *,
    long: bool,
    scaled: bool = False,
    tree: bool = False,
) -> Launch:
    """A launch for a device of `processors` multiprocessors and heads of `width` numbers.

    As many splits as it takes that `rows` occupy the device, a power of two: each costs memory for
    every token, written and read again. So the last bits of a row depend on how many rows the step
    has; where bits must not, arithmetic is invariant, and that is not done here. `long` rows are
    enough work without splits. Tile, rows and warps are what keeps keys and values within the
    shared memory of a program, and sums in its registers. No matrix unit multiplies float32
    exactly, so larger products would only take more of both.

    Left to itself the compiler spills a few registers where one more program would then fit beside
    this one. In half precision it may use all there are; in float32 it does so no more if no tile
    is loaded ahead, which narrow heads need, the widest, which are latents, and `scaled` ones,
    since they are widened. In half precision a program of wide `scaled` heads has half as many
    rows; where rows are draft trees, so has one of narrow `scaled` heads, and of the widest. Of
    these, if `scaled`, it has a quarter.
    """
    head_bytes = triton.next_power_of_2(width) * dtype.itemsize
    wanted = -(-processors // max(1, rows * kv_heads))
    splits = 1 if long else min(MOST_SPLITS, triton.next_power_of_2(wanted))
    wide = head_bytes > 512
    fewer = (scaled and head_bytes > 256) or (tree and (wide or (scaled and head_bytes <= 128)))
    least = dtype == torch.float32 or (scaled and wide)
    return Launch(
        splits,
        tile=max(16, min(64, 16384 // head_bytes)),
        most_rows=16 if least else 32 if fewer else 64,
        num_warps=4 if head_bytes <= 128 else 8,
        num_stages=1 if dtype == torch.float32 and (scaled or not 256 < head_bytes <= 1024) else 2,
        registers=None if dtype == torch.float32 else 255,
    )


def attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    block_tables: Tensor,
    positions: Tensor,
    *,
    query_len: int,
    block_size: int,
    scaling: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    starts: Tensor | None = None,
    bits: Tensor | None = None,
    width: int = 0,
    scales: tuple[Tensor | None, Tensor | None] = (None, None),
    launch: Launch,
) -> Tensor:
    """Attention `[R · q, H, D']` of `query[R · q, H, D]` over the paged keys and values.

    `keys[slots, h, D]`, `values[slots, h, D']`, `block_tables[R, B]`, `positions[R · q]`,
    `sinks[H]`: they may lie in memory in any way. A token sees the keys of its row at positions up
    to its own, of these the last `window`. With `starts[R · q]`, `bits[R · q]` and `width` the rows
    are draft trees, no deeper than the window: `TreeRows` says what their tokens see. A token at a
    negative position gets zeros. Memory that no token of the row may see is not read, nor is a
    block table's entry for it; an entry that names no block is as if its keys were masked. float16,
    bfloat16 or float32, summed in float32; keys and values may be whole numbers of 8 bits with
    `scales[slots, h]`, which are multiplied into scores and weights. Values `within` the keys are
    not read again.

    Raises:
        ValueError: shapes do not fit, or the launch has more than 16 splits.
    """
    tokens, heads, dim = query.shape
    rows, columns = block_tables.shape
    kv_heads, value_dim = values.shape[1:]
    fits = keys.shape == (len(values), kv_heads, dim) and positions.shape == (tokens,)
    if not fits or tokens != rows * query_len or heads % kv_heads:
        raise ValueError(
            f"query {tuple(query.shape)} is not {rows} rows of {query_len} tokens for keys "
            f"{tuple(keys.shape)}, values {tuple(values.shape)} and positions "
            f"{tuple(positions.shape)}"
        )
    out = values.new_empty(tokens, heads, value_dim, dtype=query.dtype)
    if tokens == 0:
        return out
    group, splits = heads // kv_heads, launch.splits
    if splits > MOST_SPLITS:
        raise ValueError(f"{splits} splits are more than {MOST_SPLITS}")
    packed = query_len * group
    block_m = min(launch.most_rows, max(16, triton.next_power_of_2(packed)))
    block_v = max(16, triton.next_power_of_2(value_dim))
    direct = splits == 1
    partial = maxima = sums = out  # not used
    if not direct:
        partial = query.new_empty(splits, tokens, heads, value_dim, dtype=torch.float32)
        maxima, sums = query.new_empty(2, splits, tokens, heads, dtype=torch.float32)
    sinks = sinks if sinks is None else sinks.contiguous()
    tree = starts is not None and bits is not None
    check_scales(keys, *scales)
    key_scales, value_scales = scales
    inside = within(keys, values)
    more = tree or inside or softcap is not None or window is not None
    _attend_split[(rows * kv_heads, splits, triton.cdiv(packed, block_m))](
        query,
        keys,
        values,
        block_tables,
        positions,
        partial,
        maxima,
        sums,
        out,
        out if sinks is None else sinks,
        positions if starts is None else starts.contiguous(),
        positions if bits is None else bits.contiguous(),
        out if key_scales is None else key_scales,
        out if value_scales is None else value_scales,
        tokens,
        splits,
        query_len,
        columns,
        keys.shape[0] // block_size,
        width,
        scaling,
        0.0 if softcap is None else softcap,
        0 if window is None else window,
        *query.stride(),
        *keys.stride(),
        *values.stride(),
        *block_tables.stride(),
        positions.stride(0),
        KV_HEADS=kv_heads,
        GROUP=group,
        BLOCK_SIZE=block_size,
        DIM=value_dim if inside else dim,
        REST=dim - value_dim if inside else 0,
        VALUE_DIM=value_dim,
        BLOCK_D=block_v if inside else max(16, triton.next_power_of_2(dim)),
        BLOCK_R=max(16, triton.next_power_of_2(dim - value_dim)) if inside else 0,
        BLOCK_V=block_v,
        BLOCK_M=block_m,
        TILE=launch.tile,
        DIRECT=direct,
        HAS_CAP=softcap is not None,
        HAS_WINDOW=window is not None,
        HAS_SINKS=direct and sinks is not None,
        HAS_TREE=tree,
        WITHIN=inside,
        SCALED=key_scales is not None,
        WIDEN=triton.knobs.runtime.interpret and query.dtype == torch.bfloat16,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
        maxnreg=launch.registers if more else None,
    )
    if not direct:
        _merge_splits[(tokens, heads)](
            partial,
            maxima,
            sums,
            out if sinks is None else sinks,
            out,
            tokens,
            splits,
            HEADS=heads,
            VALUE_DIM=value_dim,
            BLOCK_V=block_v,
            MOST=MOST_SPLITS,
            HAS_SINKS=sinks is not None,
            num_warps=1,
        )
    return out


# What changes from step to step must not be compiled in: a new kernel takes a second.
@triton.jit(
    do_not_specialize=[
        "tokens",
        "splits",
        "query_len",
        "columns",
        "blocks",
        "width",
        "window",
        "table_row_stride",
        "table_stride",
        "position_stride",
    ],
    do_not_specialize_on_alignment=["tables", "positions", "starts", "bits"],
)
def _attend_split(
    query,
    keys,
    values,
    tables,
    positions,
    partial,  # [S, T, H, D'] weighted values, not divided by the sum of weights
    maxima,  # [S, T, H] in units of log 2
    sums,  # [S, T, H]
    out,  # [T, H, D']
    sinks,
    starts,  # [T]; `bits` too, and neither but with HAS_TREE
    bits,
    key_scales,  # [slots, h], side by side
    value_scales,
    tokens,
    splits,
    query_len,
    columns,
    blocks,
    width,
    scaling,
    softcap,
    window,
    query_token_stride,
    query_head_stride,
    query_stride,
    key_slot_stride,
    key_head_stride,
    key_stride,
    value_slot_stride,
    value_head_stride,
    value_stride,
    table_row_stride,
    table_stride,
    position_stride,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    DIM: tl.constexpr,
    REST: tl.constexpr,  # with WITHIN: what keys have behind values
    VALUE_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_M: tl.constexpr,
    TILE: tl.constexpr,
    DIRECT: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    HAS_TREE: tl.constexpr,
    WITHIN: tl.constexpr,
    SCALED: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """Program (row and key head, split, part of the packed rows)."""
    row = (tl.program_id(0) // KV_HEADS).to(tl.int64)
    kv_head = tl.program_id(0) % KV_HEADS
    split = tl.program_id(1)

    m = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M)
    token = row * query_len + m // GROUP
    head = kv_head * GROUP + m % GROUP
    inside = m < query_len * GROUP
    position = tl.load(positions + token * position_stride, mask=inside, other=-1).to(tl.int32)
    end = tl.max(position, 0) + 1
    if HAS_TREE:
        real = inside & (position >= 0)
        tree = tl.max(tl.load(starts + token, mask=real, other=0), 0).to(tl.int32)
        member = tl.load(bits + token, mask=real, other=0)
        member_of_any = tl.reduce_or(member, 0)
        end = tl.where(end > 0, tree + width, 0)
    end = tl.minimum(end, columns * BLOCK_SIZE)
    start = 0
    if HAS_WINDOW:
        earliest = tl.min(tl.where(position < 0, columns * BLOCK_SIZE, position), 0)
        start = tl.maximum(earliest - window + 1, 0)
        oldest = position - window

    d = tl.arange(0, BLOCK_D)
    e = tl.arange(0, BLOCK_V)
    q_at = query + token[:, None] * query_token_stride + head[:, None] * query_head_stride
    q = tl.load(q_at + d * query_stride, mask=inside[:, None] & (d < DIM)[None, :], other=0.0)
    if WIDEN:  # Triton's interpreter cannot multiply bfloat16
        q = q.to(tl.float32)
    if WITHIN:
        r = tl.arange(0, BLOCK_R)
        rest_at = q_at + (DIM + r) * query_stride
        q_rest = tl.load(rest_at, mask=inside[:, None] & (r < REST)[None, :], other=0.0).to(q.dtype)

    most = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_V], tl.float32)
    first = start // TILE
    first += (split + splits - first % splits) % splits  # the next tile of this split
    for tile in range(first, tl.cdiv(end, TILE), splits):
        key = tile * TILE + tl.arange(0, TILE)
        live = (key >= start) & (key < end)
        if HAS_TREE:
            behind = key - tree
            place = tl.minimum(tl.maximum(behind, 0), width - 1).to(tl.int64)
            live = live & ((behind < 0) | (((member_of_any >> place) & 1) == 1))
        entry = tables + row * table_row_stride + key // BLOCK_SIZE * table_stride
        block = tl.load(entry, mask=live, other=-1)
        live = live & (block >= 0) & (block < blocks)
        slot = tl.where(live, block.to(tl.int64) * BLOCK_SIZE + key % BLOCK_SIZE, 0)
        # Products with zero weight must not meet NaN, so what is not `live` is never loaded.
        k_at = keys + slot[None, :] * key_slot_stride + kv_head * key_head_stride
        k = tl.load(
            k_at + d[:, None] * key_stride, mask=live[None, :] & (d < DIM)[:, None], other=0.0
        )
        if WITHIN:
            v = tl.trans(k)
        else:
            v = tl.load(
                values
                + slot[:, None] * value_slot_stride
                + kv_head * value_head_stride
                + e[None, :] * value_stride,
                mask=live[:, None] & (e < VALUE_DIM)[None, :],
                other=0.0,
            )
        scores = tl.dot(q, k.to(q.dtype), input_precision="ieee")
        if WITHIN:
            rest = tl.load(
                k_at + (DIM + r)[:, None] * key_stride,
                mask=live[None, :] & (r < REST)[:, None],
                other=0.0,
            )
            scores = tl.dot(q_rest, rest.to(q.dtype), scores, input_precision="ieee")
        scores *= scaling
        if SCALED:
            of_key = slot * KV_HEADS + kv_head
            scores *= tl.load(key_scales + of_key, mask=live, other=0.0)[None, :]
        if HAS_CAP:
            # tanh(x) = 2 sigmoid(2x) - 1
            scores = 2.0 * softcap * tl.sigmoid(scores * (2.0 / softcap)) - softcap
        if HAS_TREE:
            before = (position >= 0)[:, None]
            if HAS_WINDOW:
                before = before & (key[None, :] > oldest[:, None])
            of_path = ((member[:, None] >> place[None, :]) & 1) == 1
            allowed = live[None, :] & tl.where((behind < 0)[None, :], before, of_path)
        else:
            allowed = live[None, :] & (key[None, :] <= position[:, None])
            if HAS_WINDOW:
                allowed = allowed & (key[None, :] > oldest[:, None])
        scores = tl.where(allowed, scores * _LOG2_E, float("-inf"))
        new_most = tl.maximum(most, tl.max(scores, 1))
        # While a token has seen no key its maximum is -inf, and -inf - -inf would be NaN.
        base = tl.where(new_most == float("-inf"), 0.0, new_most)
        weights = tl.exp2(scores - base[:, None])
        rescale = tl.exp2(most - base)
        total = total * rescale + tl.sum(weights, 1)
        acc = acc * rescale[:, None]
        if SCALED:
            weights *= tl.load(value_scales + of_key, mask=live, other=0.0)[None, :]
        acc = tl.dot(weights.to(q.dtype), v.to(q.dtype), acc, input_precision="ieee")
        most = new_most

    at = token * (KV_HEADS * GROUP) + head
    if DIRECT:
        top = most
        if HAS_SINKS:
            sink = tl.load(sinks + head, mask=inside, other=0.0).to(tl.float32) * _LOG2_E
            top = tl.maximum(top, sink)
        top = tl.where(top == float("-inf"), 0.0, top)
        weight = tl.exp2(most - top)
        denominator = weight * total
        if HAS_SINKS:
            denominator += tl.exp2(sink - top)
        mixed = weight[:, None] * acc / tl.where(denominator == 0.0, 1.0, denominator)[:, None]
        tl.store(
            out + at[:, None] * VALUE_DIM + e[None, :],
            mixed.to(out.dtype.element_ty),
            mask=inside[:, None] & (e < VALUE_DIM)[None, :],
        )
    else:
        at += split * tokens * (KV_HEADS * GROUP)
        tl.store(maxima + at, most, mask=inside)
        tl.store(sums + at, total, mask=inside)
        seen = inside & (most > float("-inf"))
        tl.store(
            partial + at[:, None] * VALUE_DIM + e[None, :],
            acc,
            mask=seen[:, None] & (e < VALUE_DIM)[None, :],
        )


@triton.jit(do_not_specialize=["tokens", "splits"])
def _merge_splits(
    partial,
    maxima,
    sums,
    sinks,
    out,
    tokens,
    splits,
    HEADS: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_V: tl.constexpr,
    MOST: tl.constexpr,
    HAS_SINKS: tl.constexpr,
):
    """Program (token, head): the softmax over all splits from their maxima and sums."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    s = tl.arange(0, MOST)
    e = tl.arange(0, BLOCK_V)
    at = (s * tokens + token) * HEADS + head
    most = tl.load(maxima + at, mask=s < splits, other=float("-inf"))
    seen = most > float("-inf")
    total = tl.load(sums + at, mask=seen, other=0.0)
    acc = tl.load(
        partial + at[:, None] * VALUE_DIM + e[None, :],
        mask=seen[:, None] & (e < VALUE_DIM)[None, :],
        other=0.0,
    )
    top = tl.max(most, 0)
    if HAS_SINKS:
        sink = tl.load(sinks + head).to(tl.float32) * _LOG2_E
        top = tl.maximum(top, sink)
    top = tl.where(top == float("-inf"), 0.0, top)
    weights = tl.exp2(most - top)
    denominator = tl.sum(weights * total, 0)
    if HAS_SINKS:
        denominator += tl.exp2(sink - top)
    mixed = tl.sum(weights[:, None] * acc, 0) / tl.where(denominator == 0.0, 1.0, denominator)
    where = out + (token * HEADS + head) * VALUE_DIM + e
    tl.store(where, mixed.to(out.dtype.element_ty), mask=e < VALUE_DIM)
