"""RMSNorm on a GPU, with the addition before it, in one launch.

In torch an addition and a norm are up to eight launches of a decoder layer, twice a layer. One
program does a row, block by block, so that rows of any width need few registers. A row of several
blocks is read again for the second pass, since what was written need not be visible yet.

Shapes: T tokens, H numbers of each, L of the tokens.
"""

import triton
import triton.language as tl
from torch import Tensor

from ...sampling.kernels.checks import check_written
from .forms import Norm

_BLOCK = 2048
"""Numbers of a row at a time, at most."""


def add_norm(
    x: Tensor,
    addend: Tensor | None,
    norm: Norm,
    *,
    inner: Norm | None = None,
    index: Tensor | None = None,
    live: Tensor | None = None,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`[L, H]`, `[L, H]`: the sums of `x[T, H]` and `addend[T, H]`, and their norm.

    Without an addend the sums are the numbers themselves, and where all rows are wanted as they
    are, `x`. `inner`: the addend is normed by it before it is added. `index[L]` chooses rows of `x`
    and of the addend; None: all, in order. Where `live[L]` is negative the row counts as zeros,
    whatever it holds. `out[L, H]` takes the norm; None: a new tensor. Sums are rounded to the type
    of `x` before they are normed, and norms have that type too. The tensors may lie in memory in
    any way.

    Raises:
        ValueError: shapes do not fit, or several entries of `out` share one place.
    """
    rows, width = len(x) if index is None else len(index), x.shape[1]
    weights = [each.weight for each in (norm, inner) if each is not None]
    fits = addend is None or addend.shape == x.shape
    fits &= all(each.shape == (width,) for each in weights) and x.dim() == 2
    fits &= all(each is None or each.shape == (rows,) for each in (index, live))
    if not fits or (out is not None and out.shape != (rows, width)):
        raise ValueError(
            f"x {tuple(x.shape)}, what is added, weights {tuple(norm.weight.shape)}, index, live "
            "and out do not fit together"
        )
    sums = not (addend is None and index is None and live is None)
    total = x.new_empty(rows, width) if sums else x
    out = x.new_empty(rows, width) if out is None else out
    check_written(out=out)
    if rows == 0:
        return total, out
    within = norm if inner is None else inner
    other = x if addend is None else addend
    _add_norm[(rows,)](
        x,
        other,
        norm.weight,
        within.weight,
        x if index is None else index,
        x if live is None else live,
        total,
        out,
        norm.epsilon,
        within.epsilon,
        0 if index is None else index.stride(0),
        0 if live is None else live.stride(0),
        *x.stride(),
        *other.stride(),
        norm.weight.stride(0),
        within.weight.stride(0),
        *out.stride(),
        WIDTH=width,
        BLOCK=min(_BLOCK, triton.next_power_of_2(width)),
        OFFSET=norm.offset,
        ROUNDS=norm.rounds,
        INNER_OFFSET=within.offset,
        INNER_ROUNDS=within.rounds,
        SUMS=sums,
        ADDS=addend is not None,
        INNER=inner is not None,
        INDEXED=index is not None,
        MASKED=live is not None,
        num_warps=4 if width <= 1024 else 8,
    )
    return total, out


@triton.jit
def _scaled(x, scale, weight, OFFSET: tl.constexpr, ROUNDS: tl.constexpr, like):
    """A part of a row, normed; families differ in what they round and in what weights mean."""
    x = x * scale
    if ROUNDS:
        x = x.to(like).to(tl.float32)
    weight = weight.to(tl.float32)
    if OFFSET:
        weight += 1.0
    return (x * weight).to(like)


@triton.jit(
    do_not_specialize=["index_stride", "live_stride"],
    do_not_specialize_on_alignment=["index", "live"],
)
def _add_norm(
    x,
    addend,
    weights,
    inner_weights,
    index,
    live,
    total,
    out,
    epsilon,
    inner_epsilon,
    index_stride,
    live_stride,
    x_row_stride,
    x_stride,
    addend_row_stride,
    addend_stride,
    weight_stride,
    inner_weight_stride,
    out_row_stride,
    out_stride,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    OFFSET: tl.constexpr,
    ROUNDS: tl.constexpr,
    INNER_OFFSET: tl.constexpr,
    INNER_ROUNDS: tl.constexpr,
    SUMS: tl.constexpr,
    ADDS: tl.constexpr,
    INNER: tl.constexpr,
    INDEXED: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Program (row)."""
    row = tl.program_id(0).to(tl.int64)
    source = row
    if INDEXED:
        source = tl.load(index + row * index_stride).to(tl.int64)
    counts = True
    if MASKED:
        counts = tl.load(live + row * live_stride) >= 0
        source = tl.where(counts, source, 0)
    at = tl.arange(0, BLOCK)
    x_at = x + source * x_row_stride
    addend_at = addend + source * addend_row_stride
    like = total.dtype.element_ty

    inner_scale = 1.0
    if INNER:
        squares = tl.zeros([BLOCK], tl.float32)
        for first in range(0, WIDTH, BLOCK):
            d = first + at
            inside = (d < WIDTH) & counts
            more = tl.load(addend_at + d * addend_stride, mask=inside, other=0.0).to(tl.float32)
            squares += more * more
        inner_scale = tl.rsqrt(tl.sum(squares, 0) / WIDTH + inner_epsilon)

    each = tl.zeros([BLOCK], tl.float32)
    squares = tl.zeros([BLOCK], tl.float32)
    for first in range(0, WIDTH, BLOCK):
        d = first + at
        inside = (d < WIDTH) & counts
        each = tl.load(x_at + d * x_stride, mask=inside, other=0.0).to(tl.float32)
        if ADDS:
            more = tl.load(addend_at + d * addend_stride, mask=inside, other=0.0).to(tl.float32)
            if INNER:
                weight = tl.load(inner_weights + d * inner_weight_stride, mask=inside, other=0.0)
                more = _scaled(more, inner_scale, weight, INNER_OFFSET, INNER_ROUNDS, like)
                more = more.to(tl.float32)
            each = (each + more).to(like).to(tl.float32)
        if SUMS:
            tl.store(total + row * WIDTH + d, each.to(like), mask=d < WIDTH)
        squares += each * each
    scale = tl.rsqrt(tl.sum(squares, 0) / WIDTH + epsilon)

    for first in range(0, WIDTH, BLOCK):
        d = first + at
        if BLOCK < WIDTH:  # else the row is still there
            inside = (d < WIDTH) & counts
            each = tl.load(x_at + d * x_stride, mask=inside, other=0.0).to(tl.float32)
            if ADDS:
                more = tl.load(addend_at + d * addend_stride, mask=inside, other=0.0)
                more = more.to(tl.float32)
                if INNER:
                    weight = tl.load(
                        inner_weights + d * inner_weight_stride, mask=inside, other=0.0
                    )
                    more = _scaled(more, inner_scale, weight, INNER_OFFSET, INNER_ROUNDS, like)
                    more = more.to(tl.float32)
                each = (each + more).to(like).to(tl.float32)
        weight = tl.load(weights + d * weight_stride, mask=d < WIDTH, other=0.0)
        normed = _scaled(each, scale, weight, OFFSET, ROUNDS, like)
        tl.store(out + row * out_row_stride + d * out_stride, normed, mask=d < WIDTH)
