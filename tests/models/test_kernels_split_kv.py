"""The split-KV kernel in Triton's interpreter against the textbook."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.models.interpreter import Interpreter
from tests.models.paged_oracle import Batch, randomized
from tests.shares import one_in

KERNEL = "stepweave.models.kernels.split_kv:attend"
WITHIN = "tests.models.paged_oracle:attend_within"


def attend(
    interpreted: Interpreter, batch: Batch, how: dict[str, Any], splits: int = 2, tile: int = 16
) -> Tensor:
    from stepweave.models.kernels.split_kv import Launch

    launch = Launch(splits, tile)
    out: Tensor = interpreted(KERNEL, *batch.arguments(), **batch.sizes(), **how, launch=launch)
    assert out.dtype == batch.query.dtype
    return out


PLAIN: dict[str, Any] = {"scaling": 0.3}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("seed", range(12))
def test_it_is_softmax_over_the_past(interpreted: Interpreter, seed: int) -> None:
    batch, how, launch = randomized(seed)
    out = attend(interpreted, batch, how, **launch)
    torch.testing.assert_close(out.double(), batch.expected(**how), rtol=1e-5, atol=3e-6)


WIDTHS = [(torch.float32, dim, 3e-6) for dim in (64, 80, 96, 128, 256)]
WIDTHS += [(torch.float16, dim, 3e-3) for dim in (64, 256)]
WIDTHS += [(torch.bfloat16, dim, 2e-2) for dim in (80, 128)]


@pytest.mark.parametrize(("dtype", "dim", "error"), WIDTHS)
def test_every_width_and_type(
    interpreted: Interpreter, dtype: torch.dtype, dim: int, error: float
) -> None:
    batch = Batch((21, 16), 2, heads=2, kv_heads=1, dim=dim, value_dim=dim, dtype=dtype)
    how: dict[str, Any] = {"scaling": 0.5 * dim**-0.5}
    out = attend(interpreted, batch, how)
    torch.testing.assert_close(out.double(), batch.expected(**how), rtol=error, atol=error)


@pytest.mark.parametrize("splits", [1, 2])
def test_a_row_of_padding_gets_zeros_and_reads_nothing(
    interpreted: Interpreter, splits: int
) -> None:
    batch = Batch((0, 5, 0), 2)
    sinks = torch.randn(batch.heads, generator=torch.Generator().manual_seed(0))
    for how in (PLAIN, {**PLAIN, "sinks": sinks}, {**PLAIN, "window": 2}):
        out = attend(interpreted, batch, how, splits)
        assert torch.equal(out[[0, 1, 4, 5]], torch.zeros(4, batch.heads, batch.value_dim))
        assert out.isfinite().all()


def test_a_block_before_every_window_is_never_read(interpreted: Interpreter) -> None:
    batch = Batch((11, 7), 2)
    how = {**PLAIN, "window": 3}
    wanted = attend(interpreted, batch, how)
    given_back = batch.tables[0, 0] * 4
    batch.keys[given_back : given_back + 4] = torch.nan
    batch.values[given_back : given_back + 4] = torch.nan
    assert torch.equal(attend(interpreted, batch, how), wanted)
    batch.tables[0, 0] = -1
    assert torch.equal(attend(interpreted, batch, how), wanted)


@pytest.mark.parametrize("nowhere", [-1, -(1 << 20), 1 << 20])
def test_keys_of_a_block_that_does_not_exist_count_as_masked(
    interpreted: Interpreter, nowhere: int
) -> None:
    batch = Batch((12,), 2)
    batch.tables[0, 1] = nowhere
    out = attend(interpreted, batch, PLAIN)
    k, v = (x[[0, 1, 2, 3, 8, 9, 10, 11]].double() for x in batch.rows[0])
    for head in range(batch.heads):
        scores = k[:, head // 2] @ batch.query[1, head].double() * PLAIN["scaling"]
        expected = scores.softmax(0) @ v[:, head // 2]
        torch.testing.assert_close(out[1, head].double(), expected, rtol=1e-5, atol=3e-6)


def test_a_tile_may_hold_nothing_for_one_token_of_a_window(interpreted: Interpreter) -> None:
    batch = Batch((18,), 4)  # positions 14 to 17: the tile ends before 16
    how = {**PLAIN, "window": 2}
    out = attend(interpreted, batch, how, splits=1)
    torch.testing.assert_close(out.double(), batch.expected(**how), rtol=1e-5, atol=3e-6)


def test_a_token_of_a_window_does_not_see_the_drafts_after_it(interpreted: Interpreter) -> None:
    batch = Batch((9,), 4)
    before = attend(interpreted, batch, PLAIN)
    last = batch.tables[0, 8 // 4] * 4 + 8 % 4
    batch.keys[last], batch.values[last] = 50.0, -50.0
    after = attend(interpreted, batch, PLAIN)
    assert torch.equal(before[:3], after[:3])
    assert not torch.equal(before[3], after[3])


@pytest.mark.parametrize(
    ("splits", "window"), [pytest.param(1, None, marks=pytest.mark.nightly), (4, None), (3, 40)]
)
def test_bits_depend_on_neither_company_nor_drafts_nor_table_width(
    interpreted: Interpreter, splits: int, window: int | None
) -> None:
    how = {**PLAIN, "window": window}
    batch = Batch((37, 3, 56, 0), 4, heads=2, kv_heads=1, columns=16)
    every = attend(interpreted, batch, how, splits)
    again = attend(interpreted, batch, how, splits)
    assert torch.equal(every, again)
    query, tables, positions = batch.query, batch.tables, batch.positions
    for row, token in ((0, 0), (2, 3), (1, 1)):
        t = 4 * row + token
        columns = int(positions[t]) // batch.block_size + 1
        batch.query, batch.positions, batch.query_len = query[t : t + 1], positions[t : t + 1], 1
        batch.tables = tables[row : row + 1, :columns]
        assert torch.equal(attend(interpreted, batch, how, splits)[0], every[t])
        batch.query, batch.positions, batch.query_len = query, positions, 4
        batch.tables = tables


def test_other_splits_differ_by_rounding_only(interpreted: Interpreter) -> None:
    batch = Batch((70, 33), 3, heads=2, kv_heads=1)
    one = attend(interpreted, batch, PLAIN, splits=1)
    for splits in (2, 7):
        other = attend(interpreted, batch, PLAIN, splits)
        torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-6)


def test_one_split_writes_what_merging_would(interpreted: Interpreter) -> None:
    """More splits than tiles: all of a row is in one of them, and the others are empty."""
    batch = Batch((11, 0, 16), 3, heads=2, kv_heads=1)
    sinks = torch.tensor([0.5, 2.0])
    for how in (PLAIN, {**PLAIN, "sinks": sinks}, {**PLAIN, "window": 2, "softcap": 2.0}):
        alone = attend(interpreted, batch, how, splits=1)
        assert torch.equal(attend(interpreted, batch, how, splits=4), alone)
        torch.testing.assert_close(alone.double(), batch.expected(**how), rtol=1e-5, atol=3e-6)


def test_more_splits_than_are_merged_at_once_are_refused(interpreted: Interpreter) -> None:
    with pytest.raises(RuntimeError, match="32 splits"):
        attend(interpreted, Batch((5,), 2), PLAIN, splits=32)


def test_long_rows_take_several_products(interpreted: Interpreter) -> None:
    batch = Batch((45,), 40, heads=6, kv_heads=2)  # 120 packed rows
    out = attend(interpreted, batch, PLAIN, splits=1)
    torch.testing.assert_close(out.double(), batch.expected(**PLAIN), rtol=1e-5, atol=3e-6)


def test_views_of_larger_tensors_are_read_in_place(interpreted: Interpreter) -> None:
    batch = Batch((9, 20), 2)
    wanted = attend(interpreted, batch, PLAIN)
    wide = torch.randn(1, batch.heads, len(batch.query), batch.dim)
    wide.copy_(batch.query.transpose(0, 1))
    batch.query = wide[0].transpose(0, 1)  # the order in which models hand it over
    batch.tables = torch.nn.functional.pad(batch.tables, (0, 3), value=1)[:, :-3]
    assert torch.equal(attend(interpreted, batch, PLAIN), wanted)


def test_arguments_that_do_not_fit_are_refused(interpreted: Interpreter) -> None:
    batch = Batch((5, 6), 2)
    batch.query_len = 3
    with pytest.raises(RuntimeError, match=r"query \(4, 4, 16\) is not 2 rows of 3 tokens"):
        attend(interpreted, batch, PLAIN)


@pytest.mark.parametrize(("seed", "dtype"), one_in(2, range(4), [torch.float32, torch.float16]))
def test_keys_and_values_in_8_bits_are_read_with_their_scales(
    interpreted: Interpreter, seed: int, dtype: torch.dtype
) -> None:
    batch, how, launch = randomized(seed)
    batch.query = batch.query.to(dtype)
    scales = batch.narrow()
    out = attend(interpreted, batch, {**how, "scales": scales}, **launch)
    error = 1e-5 if dtype == torch.float32 else 4e-3
    torch.testing.assert_close(out.double(), batch.expected(**how), rtol=error, atol=error)


@pytest.mark.parametrize("splits", [1, 2])
def test_values_that_are_part_of_their_keys_are_read_with_them(
    interpreted: Interpreter, splits: int
) -> None:
    """Latents: 40 numbers of a key, of which a value has 24."""
    batch = Batch((21, 0, 16), 2, heads=6, kv_heads=1, dim=40, value_dim=24)
    batch.rows = [(k, k[..., :24]) for k, _ in batch.rows]
    how = {**PLAIN, **batch.sizes(), "splits": splits}
    rest = batch.tables, batch.positions
    out = interpreted(WITHIN, batch.query, batch.keys, 24, *rest, **how)
    torch.testing.assert_close(out.double(), batch.expected(**PLAIN), rtol=1e-5, atol=3e-6)
