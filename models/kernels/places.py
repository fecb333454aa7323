"""Where tokens of given positions lie in the paged cache, by block tables, in one launch.

In torch it is four launches for a table, and up to twelve for the positions of a chain of drafts.

Shapes: N rows, n positions of each, R tables of B blocks.
"""

import triton
import triton.language as tl
from torch import Tensor

from ...sampling.kernels.checks import check_shapes


def slots_of(
    tables: Tensor, positions: Tensor, block_size: int, rows: Tensor | None = None
) -> Tensor:
    """Cache slots `[N, n]` of `positions[N, n]` in the lines `rows[N]` of `tables[R, B]`.

    None: line i is of row i. A negative position, or one behind the table, gets slot 0 of the
    scratch block. The tensors may lie in memory in any way.

    Raises:
        ValueError: shapes do not fit.
    """
    check_shapes((len(positions),), rows=rows)
    if rows is None:
        check_shapes((len(positions), tables.shape[-1]), tables=tables)
    slots = positions.new_empty(positions.shape)
    count = positions.shape[1]
    _launch(tables, rows, positions, block_size, count, None, None, slots, slots, slots, None)
    return slots


def ahead(
    tables: Tensor,
    first: Tensor,
    count: int,
    block_size: int,
    reach: int | None = None,
    limits: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """`count` positions `[N, n]` of each row from `first[N]` on; the same, masked, `[N, n]`.

    Those from `reach` on, and those behind the first `limits[N]`, are not meant and get -1 there;
    None: all are. Then the cache slots `[N, n]` of the masked ones in the blocks of `tables[N, B]`,
    and how many of each row lie before `reach`, `[N]`; None: all. The tensors may lie in memory in
    any way.

    Raises:
        ValueError: shapes do not fit.
    """
    rows = len(first)
    check_shapes((rows,), first=first, limits=limits)
    check_shapes((rows, tables.shape[-1]), tables=tables)
    positions, slots = first.new_empty(rows, count), first.new_empty(rows, count)
    masked, valid = positions, None
    if reach is not None:
        masked, valid = first.new_empty(rows, count), first.new_empty(rows)
    first = first[:, None].expand(rows, count)
    _launch(tables, None, first, block_size, count, reach, limits, slots, positions, masked, valid)
    return positions, masked, slots, valid


def _launch(
    tables: Tensor,
    rows: Tensor | None,
    first: Tensor,
    block_size: int,
    count: int,
    reach: int | None,
    limits: Tensor | None,
    slots: Tensor,
    positions: Tensor,
    masked: Tensor,
    valid: Tensor | None,
) -> None:
    if slots.numel() == 0:
        return
    _places[(len(first),)](
        tables,
        first if rows is None else rows,
        first,
        first if limits is None else limits,
        slots,
        positions,
        masked,
        first if valid is None else valid,
        tables.shape[1],
        0 if reach is None else reach,
        count,
        *tables.stride(),
        0 if rows is None else rows.stride(0),
        *first.stride(),
        0 if limits is None else limits.stride(0),
        BLOCK_SIZE=block_size,
        COUNT=triton.next_power_of_2(count),
        BY_ROW=rows is not None,
        TOLD=positions is not slots,
        REACHES=reach is not None,
        LIMITED=limits is not None,
        num_warps=1,
    )


@triton.jit(
    do_not_specialize=[
        "columns",
        "reach",
        "count",
        "table_row_stride",
        "table_stride",
        "rows_stride",
        "first_row_stride",
        "first_stride",
        "limits_stride",
    ],
    do_not_specialize_on_alignment=["rows", "first", "limits"],
)
def _places(
    tables,
    rows,
    first,
    limits,
    slots,
    positions,
    masked,
    valid,
    columns,
    reach,
    count,
    table_row_stride,
    table_stride,
    rows_stride,
    first_row_stride,
    first_stride,
    limits_stride,
    BLOCK_SIZE: tl.constexpr,
    COUNT: tl.constexpr,
    BY_ROW: tl.constexpr,
    TOLD: tl.constexpr,
    REACHES: tl.constexpr,
    LIMITED: tl.constexpr,
):
    """Program (row)."""
    row = tl.program_id(0).to(tl.int64)
    table = row
    if BY_ROW:
        table = tl.load(rows + row * rows_stride).to(tl.int64)
    j = tl.arange(0, COUNT)
    at = row * count + j
    from_first = first + row * first_row_stride + j * first_stride
    position = tl.load(from_first, mask=j < count, other=-1)
    if TOLD:
        position += j
        tl.store(positions + at, position, mask=j < count)
    if REACHES:
        alive = position < reach
        tl.store(valid + row, tl.sum(((j < count) & alive).to(tl.int64), 0))
        if LIMITED:
            alive = alive & (j < tl.load(limits + row * limits_stride))
        position = tl.where(alive, position, -1)
        tl.store(masked + at, position, mask=j < count)
    column = position // BLOCK_SIZE
    inside = (j < count) & (position >= 0) & (column < columns)
    entry = tables + table * table_row_stride + column * table_stride
    block = tl.load(entry, mask=inside, other=0)
    slot = block * BLOCK_SIZE + position % BLOCK_SIZE
    tl.store(slots + at, tl.where(inside, slot, 0), mask=j < count)
