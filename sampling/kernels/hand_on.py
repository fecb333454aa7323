"""What a step hands to the next, in one launch besides the copies of two small tables.

Shapes: S sampling rows with windows of W places, R rows of a table, a context of C tokens.
"""

import triton
import triton.language as tl
from torch import Tensor

from ...backends.kernels import current
from .checks import check_shapes, check_written


def hand_on(
    tokens: Tensor,
    counts: Tensor,
    base: Tensor,
    rows: Tensor,
    history: Tensor,
    last: Tensor,
    computed: Tensor,
) -> tuple[Tensor, Tensor]:
    """`last[R]` and `computed[R]` after a step; the tokens are written to `history` in place.

    Row `rows[S]` gets the first `counts[S]` of `tokens[S, W]`, at the positions after `base[S]`, in
    `history[R, C + 1]` int32. A position outside the context is not kept; the last column, which is
    there for those, is left alone.
    """
    check_shapes((len(tokens),), counts=counts, base=base, rows=rows)
    check_shapes((len(history),), last=last, computed=computed)
    check_written(history=history)
    last, computed = last.clone(), computed.clone()
    with current(tokens.device):
        _hand_on[(len(tokens),)](
            tokens,
            counts,
            base,
            rows,
            history,
            last,
            computed,
            tokens.shape[1],
            history.shape[1] - 1,
            *tokens.stride(),
            counts.stride(0),
            base.stride(0),
            rows.stride(0),
            *history.stride(),
            WIDTH=triton.next_power_of_2(tokens.shape[1]),
            num_warps=1,
        )
    return last, computed


@triton.jit(
    do_not_specialize=[
        "width",
        "context",
        "token_row_stride",
        "token_stride",
        "count_stride",
        "base_stride",
        "row_stride",
        "history_row_stride",
        "history_stride",
    ],
    do_not_specialize_on_alignment=["base", "rows"],
)
def _hand_on(
    tokens,
    counts,
    base,
    rows,
    history,
    last,
    computed,
    width,
    context,
    token_row_stride,
    token_stride,
    count_stride,
    base_stride,
    row_stride,
    history_row_stride,
    history_stride,
    WIDTH: tl.constexpr,
):
    """Program (sampling row)."""
    line = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + line * row_stride).to(tl.int64)
    count = tl.load(counts + line * count_stride)
    before = tl.load(base + line * base_stride)
    place = tl.arange(0, WIDTH)
    settled = (place < count) & (place < width)
    token_at = tokens + line * token_row_stride + place * token_stride
    token = tl.load(token_at, mask=settled, other=0)
    position = before + 1 + place
    keeps = settled & (position >= 0) & (position < context)
    history_at = history + row * history_row_stride + position * history_stride
    tl.store(history_at, token.to(tl.int32), mask=keeps)
    tl.store(last + row, tl.sum(tl.where(place == count - 1, token, 0), 0))
    tl.store(computed + row, before + count)
