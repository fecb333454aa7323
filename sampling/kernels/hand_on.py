"""What a step hands to the next, in one launch besides the copies of two small tables.

Shapes: S sampling rows with windows of W positions, R request slots, a context of C tokens.
"""

import triton
import triton.language as tl
from torch import Tensor

from ...backends.kernels import current
from .checks import check_shapes, check_written


def hand_on(
    tokens: Tensor,
    counts: Tensor,
    window_start: Tensor,
    request_slot: Tensor,
    history: Tensor,
    last: Tensor,
    computed: Tensor,
) -> tuple[Tensor, Tensor]:
    """`[R]`, `[R]`: `last[R]` and `computed[R]` after a step; `history` gets the tokens in place.

    `request_slot[S]` gets the first `counts[S]` of `tokens[S, W]`, at the positions after
    `window_start[S]`, in `history[R, C + 1]` int32. A position outside the context is not kept;
    the last column, which is there for those, is left alone.
    """
    check_shapes(
        (len(tokens),), counts=counts, window_start=window_start, request_slot=request_slot
    )
    check_shapes((len(history),), last=last, computed=computed)
    check_written(history=history)
    last, computed = last.clone(), computed.clone()
    with current(tokens.device):
        _hand_on[(len(tokens),)](
            tokens,
            counts,
            window_start,
            request_slot,
            history,
            last,
            computed,
            tokens.shape[1],
            history.shape[1] - 1,
            *tokens.stride(),
            counts.stride(0),
            window_start.stride(0),
            request_slot.stride(0),
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
        "window_start_stride",
        "request_slot_stride",
        "history_slot_stride",
        "history_stride",
    ],
    do_not_specialize_on_alignment=["window_start", "request_slot"],
)
def _hand_on(
    tokens,
    counts,
    window_start,
    request_slot,
    history,
    last,
    computed,
    width,
    context,
    token_row_stride,
    token_stride,
    count_stride,
    window_start_stride,
    request_slot_stride,
    history_slot_stride,
    history_stride,
    WIDTH: tl.constexpr,
):
    """Program (sampling row)."""
    sample_index = tl.program_id(0).to(tl.int64)
    slot = tl.load(request_slot + sample_index * request_slot_stride).to(tl.int64)
    count = tl.load(counts + sample_index * count_stride)
    before = tl.load(window_start + sample_index * window_start_stride)
    window_position = tl.arange(0, WIDTH)
    settled = (window_position < count) & (window_position < width)
    token_at = tokens + sample_index * token_row_stride + window_position * token_stride
    token = tl.load(token_at, mask=settled, other=0)
    position = before + 1 + window_position
    keeps = settled & (position >= 0) & (position < context)
    history_at = history + slot * history_slot_stride + position * history_stride
    tl.store(history_at, token.to(tl.int32), mask=keeps)
    tl.store(last + slot, tl.sum(tl.where(window_position == count - 1, token, 0), 0))
    tl.store(computed + slot, before + count)
