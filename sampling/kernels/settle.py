"""Which drafts of a window are kept, and the token after them, in one launch.

In torch it is ten launches of a few hundred numbers each, whose time is that of launching.

Shapes: S rows, windows of W = k + 1 positions, P splits of the keys (`keys.py`).
"""

import triton
import triton.language as tl
from torch import Tensor

from ...backends.kernels import current
from .checks import check_shapes
from .keys import MOST_SPLITS, best_key, checked_keys, token_of


def keep_equal(
    keys: Tensor, drafts: Tensor, valid: Tensor, forced: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """`policies.acceptance.keep_equal` of the tokens that `keys[S · W, P]` stand for.

    `drafts[S, k]`, `valid[S]`. A row whose `forced[S]` is not negative gives that token alone,
    in place of its first. Returns tokens `[S, W]` and counts `[S]`, int64.
    """
    rows, drafted = drafts.shape
    check_shapes((rows,), valid=valid, forced=forced)
    keys = checked_keys(keys, rows * (drafted + 1))
    tokens = keys.new_empty(rows, drafted + 1)
    counts = keys.new_empty(rows)
    with current(keys.device):
        _keep_equal[(rows,)](
            keys,
            drafts,
            valid,
            valid if forced is None else forced,
            tokens,
            counts,
            keys.shape[1],
            drafted,
            *drafts.stride(),
            valid.stride(0),
            0 if forced is None else forced.stride(0),
            HAS_FORCED=forced is not None,
            MOST=MOST_SPLITS,
            num_warps=1,
        )
    return tokens, counts


@triton.jit(
    do_not_specialize=[
        "splits",
        "drafted",
        "draft_row_stride",
        "draft_stride",
        "valid_stride",
        "forced_stride",
    ],
    do_not_specialize_on_alignment=["drafts", "valid", "forced"],
)
def _keep_equal(
    keys,
    drafts,
    valid,
    forced,
    tokens,
    counts,
    splits,
    drafted,
    draft_row_stride,
    draft_stride,
    valid_stride,
    forced_stride,
    HAS_FORCED: tl.constexpr,
    MOST: tl.constexpr,
):
    """Program (row): a window is short, and each window position depends on those before it."""
    row = tl.program_id(0).to(tl.int64)
    usable = tl.load(valid + row * valid_stride).to(tl.int64)
    line = row * (drafted + 1)
    kept = tl.full([], 0, tl.int64)
    open_ = tl.full([], 1, tl.int32)
    for window_position in range(drafted + 1):
        token = token_of(best_key(keys, line + window_position, splits, MOST))
        tl.store(tokens + line + window_position, tl.where(open_ == 1, token, -1))
        if window_position < drafted:
            # A token is in the vocabulary, so a draft that is none equals no token.
            draft = tl.load(drafts + row * draft_row_stride + window_position * draft_stride)
            keeps = (open_ == 1) & (window_position < usable) & (draft == token)
            open_ = keeps.to(tl.int32)
            kept += open_
    count = kept + 1
    if HAS_FORCED:
        known = tl.load(forced + row * forced_stride)
        if known >= 0:
            tl.store(tokens + line, known)
            count = tl.full([], 1, tl.int64)
    tl.store(counts + row, count)
