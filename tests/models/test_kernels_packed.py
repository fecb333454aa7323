"""Prompts end to end in one sequence, with a stand-in for torch's kernel that the docs describe."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import pytest
import torch
from torch import Tensor

from stepweave.models.kernels import packed
from stepweave.models.kernels.reference import How
from tests.models.paged_oracle import Batch


def ragged(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
) -> Tensor:
    """FlashAttention over sequences: windows (left, right) are aligned with the last key, and what
    sees no key gets zeros.
    """
    assert cu_seq_q.dtype == cu_seq_k.dtype == torch.int32
    assert enable_gqa or query.shape[1] == key.shape[1]
    out = torch.full((*query.shape[:2], value.shape[2]), torch.nan, dtype=torch.float64)
    shared = query.shape[1] // key.shape[1]
    for r in range(len(cu_seq_q) - 1):
        q, k = slice(*cu_seq_q[r : r + 2].tolist()), slice(*cu_seq_k[r : r + 2].tolist())
        assert q.stop - q.start <= max_q
        assert k.stop - k.start <= max_k
        keys, values = (x[k].double().repeat_interleave(shared, 1) for x in (key, value))
        scores = torch.einsum("qhd,khd->hqk", query[q].double(), keys)
        scores *= query.shape[2] ** -0.5 if scale is None else scale
        i = torch.arange(q.stop - q.start)[:, None] + len(keys) - (q.stop - q.start)
        j = torch.arange(len(keys))[None]
        left, right = window_size
        seen = (j <= i + right) if right >= 0 else torch.ones_like(j <= i)
        if left >= 0:
            seen &= j >= i - left
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num()
        out[q] = torch.einsum("hqk,khd->qhd", weights, values)
    return out.to(query.dtype)


def ragged_of_older_torch(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    is_causal: bool = False,
    return_aux: Any = None,
) -> Tensor:
    """The signature it had at first: causal or not, as many heads of keys as of queries."""
    window = (-1, 0) if is_causal else (-1, -1)
    return ragged(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, window_size=window)


def attend(batch: Batch, how: How, kernel: Callable[..., Tensor]) -> Tensor:
    keys, values = batch.keys.nan_to_num(), batch.values.nan_to_num()
    query = batch.query.nan_to_num()
    lens = (batch.query_len,) * len(batch.lengths)
    rows = packed.sequences(
        batch.tables, batch.positions, query_lens=lens, block_size=batch.block_size
    )
    assert len(rows.slots) == len(batch.lengths) * rows.longest
    out = packed.attend(query, keys, values, rows, how, kernel)
    assert out.isfinite().all()
    return torch.where((batch.positions >= 0)[:, None, None], out, 0.0)


def how_of(window: int | None = None) -> How:
    return How(0.3, window, None, None)


BATCHES = {
    "whole prompts": Batch((20, 20), 20),
    "chunks with a context": Batch((37, 19, 50, 64), 18),
    "masked at the end": Batch((37, 19, 0), 18, masked={0: 5, 1: 17}),
    "blocks of one": Batch((30, 18), 17, block_size=1, columns=40),
}


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("window", [None, 1, 7])
def test_it_is_softmax_over_the_past(batch: Batch, window: int | None) -> None:
    out = attend(batch, how_of(window), ragged)
    torch.testing.assert_close(out.double(), batch.expected(0.3, window), rtol=1e-5, atol=3e-6)


def test_rows_of_any_lengths_are_one_batch() -> None:
    """Rows of three batches behind one another, in one cache: each gets what it gets alone."""
    parts = [
        Batch((37, 19), 18, columns=16, masked={1: 2}),
        Batch((12,), 12, columns=16, seed=1),
        Batch((64, 0, 33), 9, columns=16, masked={2: 4}, seed=2),
    ]
    first = [0, *accumulate(len(batch.keys) // batch.block_size for batch in parts)]
    tables = torch.cat(
        [
            torch.where(batch.tables < 0, -1, batch.tables + start)
            for batch, start in zip(parts, first, strict=False)
        ]
    )
    query, keys, values, positions = (
        torch.cat([getattr(batch, name).nan_to_num() for batch in parts])
        for name in ("query", "keys", "values", "positions")
    )
    lens = tuple(batch.query_len for batch in parts for _ in batch.lengths)
    rows = packed.sequences(tables, positions, query_lens=lens, block_size=4)
    assert rows.query_len == 18
    assert rows.queries.tolist() == [0, *accumulate(lens)]
    for how in (how_of(), how_of(7)):
        out = packed.attend(query, keys, values, rows, how, ragged)
        out = torch.where((positions >= 0)[:, None, None], out, 0.0)
        wanted = torch.cat([batch.expected(0.3, how.window) for batch in parts])
        torch.testing.assert_close(out.double(), wanted, rtol=1e-5, atol=3e-6)


@pytest.mark.parametrize("window", [None, 3])
def test_tokens_before_the_text_come_first_and_see_nothing(window: int | None) -> None:
    batch = Batch((5, 30), 8, columns=8)
    batch.query = torch.randn(16, 4, 16, generator=torch.Generator().manual_seed(4)) * 2
    batch.positions[:8] = torch.arange(-3, 5)
    out = attend(batch, how_of(window), ragged)
    torch.testing.assert_close(out.double(), batch.expected(0.3, window), rtol=1e-5, atol=3e-6)


def test_it_works_with_the_signature_of_an_older_torch() -> None:
    batch = BATCHES["chunks with a context"]
    out = attend(batch, how_of(), ragged_of_older_torch)
    torch.testing.assert_close(out.double(), batch.expected(0.3), rtol=1e-5, atol=3e-6)


def test_what_it_cannot_do_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def reason(
        query: Tensor | None = None, how: How | None = None, kernel: Any = ragged
    ) -> str | None:
        monkeypatch.setattr(packed, "_kernel", lambda: kernel)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        query = Device.of(4, 2, 64) if query is None else query
        return packed.why_not(query, Device.of(4, 2, 64), how or how_of())

    class Device(Tensor):
        """A tensor that says it is on a GPU."""

        device = torch.device("cuda:0")

        @classmethod
        def of(cls, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
            return torch.zeros(*shape, dtype=dtype).as_subclass(cls)

    capability = (9, 0)
    assert reason() is None
    assert reason(how=how_of(5)) is None
    assert "CPU" in str(reason(torch.zeros(4, 2, 64)))
    assert "float32" in str(reason(Device.of(4, 2, 64, dtype=torch.float32)))
    assert "width" in str(reason(Device.of(4, 2, 80)))
    assert "soft caps" in str(reason(how=How(0.3, None, 2.0, None)))
    assert "sinks" in str(reason(how=How(0.3, None, None, torch.zeros(2))))
    assert "no windows" in str(reason(how=how_of(5), kernel=ragged_of_older_torch))
    assert "no torch.nn.attention.varlen" in str(reason(kernel=None) or "")
    monkeypatch.setenv("STEPWEAVE_KERNELS", "reference")
    assert reason() == "STEPWEAVE_KERNELS asks for reference"
    monkeypatch.delenv("STEPWEAVE_KERNELS")
    capability = (7, 5)
    assert "capability" in str(reason())


def test_torch_has_the_parameters_that_are_asked_for() -> None:
    import inspect

    kernel = packed._kernel()
    assert kernel is not None
    known = list(inspect.signature(kernel).parameters)
    assert known[:7] == ["query", "key", "value", "cu_seq_q", "cu_seq_k", "max_q", "max_k"]
    assert {"window_size", "is_causal"} & set(known)


def test_keys_are_gathered_for_the_blocks_that_rows_have() -> None:
    """One row with a long text does not make the others gather as much."""
    batch = Batch((400, 20, 19), 18)
    have = [-(-length // batch.block_size) for length in batch.lengths]
    rows = packed.sequences(
        batch.tables, batch.positions, query_lens=(18,) * 3, block_size=4, blocks=have
    )
    assert len(rows.slots) == 4 * sum(have) + 3 * 18
    assert rows.longest == 400 + 18
    keys, values = batch.keys.nan_to_num(), batch.values.nan_to_num()
    out = packed.attend(batch.query.nan_to_num(), keys, values, rows, how_of(), ragged)
    torch.testing.assert_close(out.double(), batch.expected(0.3), rtol=1e-5, atol=3e-6)
