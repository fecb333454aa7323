"""The launches of the kernels compile for GPUs, which takes none: Triton brings its own tools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton has builds for Linux only")

from stepweave.models.kernels import operators, split_kv, write_cache
from tests.models.paged_oracle import Batch
from tests.models.triton_recorder import Recorder

SHARED = 99 * 1024
"""Bytes of shared memory that a program may have on every NVIDIA GPU since Ampere."""


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Compile anew each time."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def aligned(name: str, kind: str) -> bool:
    return kind.startswith("*") or name.endswith(("slot_stride", "head_stride", "token_stride"))


@pytest.mark.parametrize(
    ("capability", "dtype", "dim", "query_len", "how"),
    [
        (80, torch.float16, 64, 1, {}),
        (90, torch.bfloat16, 128, 4, {}),
        (90, torch.bfloat16, 128, 40, {"window": 128, "softcap": 50.0}),
        (90, torch.bfloat16, 256, 1, {"sinks": torch.zeros(8)}),
        (89, torch.float32, 96, 2, {"window": 1}),
    ],
)
def test_attention_compiles(
    monkeypatch: pytest.MonkeyPatch,
    capability: int,
    dtype: torch.dtype,
    dim: int,
    query_len: int,
    how: dict[str, Any],
) -> None:
    batch = Batch((50,), query_len, 8, 2, dim, dim, 16, dtype=dtype)
    attend = Recorder(split_kv._attend_split, aligned, capability)
    merge = Recorder(split_kv._merge_splits, aligned, capability)
    monkeypatch.setattr(split_kv, "_attend_split", attend)
    monkeypatch.setattr(split_kv, "_merge_splits", merge)
    long = query_len > operators.LONG
    call: Any = split_kv.attend
    for rows in (1, 100):
        launch = split_kv.launch_for(rows, 2, dim * dtype.itemsize, 132, long=long)
        call(*batch.arguments(), **batch.sizes(), scaling=1.0, **how, launch=launch)
    for compiled in (*attend.compiled, *merge.compiled):
        assert compiled.metadata.shared <= SHARED
    assert ".b16" in attend.compiled[0].asm["ptx"] or dtype == torch.float32
    assert len(attend.compiled) == 2
    assert len(merge.compiled) == (0 if long else 1), "what one split has is not merged"


def test_writing_the_cache_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(write_cache._write, aligned, 90)
    monkeypatch.setattr(write_cache, "_write", recorder)
    store, new = torch.zeros(16, 2, 80, dtype=torch.bfloat16), torch.zeros(3, 2, 80)
    write_cache.write(store, store.clone(), torch.tensor([1, 2, 3]), new, new)
    assert "ld.global.v4.b32" in recorder.compiled[0].asm["ptx"]  # four numbers at a time


def test_rows_and_heads_get_as_many_splits_as_occupy_the_device() -> None:
    def splits(rows: int, kv_heads: int, *, long: bool = False) -> int:
        return split_kv.launch_for(rows, kv_heads, 256, 132, long=long).splits

    assert [splits(1, heads) for heads in (1, 8, 32)] == [16, 16, 8]
    assert [splits(rows, 8) for rows in (1, 2, 4, 8, 16, 32, 128)] == [16, 16, 8, 4, 2, 1, 1]
    for rows in range(1, 40):
        for heads in (1, 2, 8):
            assert rows * heads * splits(rows, heads) >= 132 or splits(rows, heads) == 16
    assert splits(1, 8, long=True) == 1


def test_the_tile_is_what_fits_the_shared_memory() -> None:
    assert [
        split_kv.launch_for(1, 8, size, 132, long=False).tile for size in (64, 256, 512, 4096)
    ] == [
        64,
        64,
        32,
        16,
    ]
