"""Masks on logits against the definition, bit by bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from stepweave.structured.bitmask import ALL_ALLOWED, apply_bitmask, row_allowing, words


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(0, 4),
    vocab=st.integers(1, 200),
    seed=st.integers(0, 2**32 - 1),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
)
def test_a_token_keeps_its_logit_exactly_if_its_bit_is_set(
    rows: int, vocab: int, seed: int, dtype: torch.dtype
) -> None:
    rng = np.random.default_rng(seed)
    packed = rng.integers(-(2**31), 2**31, (rows, words(vocab))).astype(np.int32)
    logits = torch.from_numpy(rng.normal(size=(rows, vocab))).to(dtype)
    before = logits.clone()

    masked = apply_bitmask(logits, torch.from_numpy(packed))

    for row in range(rows):
        for token in range(vocab):
            if packed[row, token // 32] >> (token % 32) & 1:
                assert masked[row, token] == before[row, token]
            else:
                assert masked[row, token] == float("-inf")
    assert torch.equal(logits, before), "the logits that came in are not changed"
    assert masked.dtype == dtype


def test_mask_columns_of_a_wider_buffer_are_read_right() -> None:
    wide = torch.zeros(2, 3, 4, dtype=torch.int32)
    wide[:, 1, :2] = torch.tensor([[5, 0], [0, -(2**31)]], dtype=torch.int32)
    masked = apply_bitmask(torch.zeros(2, 64), wide[:, 1, :2])
    assert [row.isfinite().nonzero().flatten().tolist() for row in masked] == [[0, 2], [63]]


def test_a_row_of_ones_changes_nothing() -> None:
    logits = torch.randn(3, 77)
    full = torch.full((3, words(77)), ALL_ALLOWED, dtype=torch.int32)
    assert torch.equal(apply_bitmask(logits, full), logits)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((2, 1), torch.int32), ((2, 3), torch.int32), ((1, 2), torch.int32), ((2, 2), torch.int64)],
)
def test_a_mask_that_does_not_fit_is_refused(shape: tuple[int, int], dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match="bitmask"):
        apply_bitmask(torch.zeros(2, 50), torch.zeros(shape, dtype=dtype))


def test_as_many_lines_are_looked_up_as_there_are_lines_of_logits() -> None:
    with pytest.raises(ValueError, match=r"lines \(1,\) are not those of 2 lines of logits"):
        apply_bitmask(torch.zeros(2, 50), torch.zeros(1, 2, dtype=torch.int32), torch.tensor([0]))


def test_no_operation_makes_the_host_wait() -> None:
    seen: list[str] = []

    class Record(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(
            self, func: Any, types: object, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(func.name())
            return func(*args, **(kwargs or {}))

    with Record():  # type: ignore[no-untyped-call]
        apply_bitmask(torch.zeros(2, 50), torch.zeros(2, 2, dtype=torch.int32))
        bits, whose = torch.zeros(1, 2, dtype=torch.int32), torch.tensor([-1, 0])
        apply_bitmask(torch.zeros(2, 50), bits, whose)
    assert "aten::minimum" in seen
    waiting = {"aten::_local_scalar_dense", "aten::nonzero", "aten::index.Tensor", "aten::_to_copy"}
    assert not waiting & set(seen)


def test_infinite_and_broken_logits_keep_their_meaning() -> None:
    inf, nan = float("inf"), float("nan")
    logits = torch.tensor([[inf, -inf, nan, inf, -inf, nan]])
    masked = apply_bitmask(logits, torch.from_numpy(row_allowing([0, 1, 2], 6).copy())[None])[0]
    assert masked[:2].tolist() == [inf, -inf]
    assert masked[3:5].tolist() == [-inf, -inf]
    assert masked[[2, 5]].isnan().all()


def test_row_allowing_sets_those_bits_only() -> None:
    row = row_allowing([0, 31, 32, 49], 50)
    assert row.dtype == np.int32
    kept = apply_bitmask(torch.zeros(1, 50), torch.from_numpy(row.copy())[None])[0]
    assert kept.isfinite().nonzero().flatten().tolist() == [0, 31, 32, 49]
    for outside in (-1, 50):
        with pytest.raises(ValueError, match="outside the vocabulary"):
            row_allowing([outside], 50)
