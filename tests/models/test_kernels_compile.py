"""The launches of the kernels compile for GPUs, which takes none: Triton brings its own tools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton has builds for Linux only")

from stepweave.models.kernels import operators, split_kv, write_cache
from tests.models.paged_oracle import Batch
from tests.models.triton_recorder import CAPABILITIES, Recorder, spilled

SHARED = {80: 163 * 1024, 86: 99 * 1024, 89: 99 * 1024, 90: 227 * 1024}
"""Bytes of shared memory that a program may have on GPUs of each capability."""

SPILLS = 16
"""Bytes of a thread that may find no place where rows are draft trees in float32, and where latents
are read as they were computed by rows that are none. In all other rows none may."""
HALF = (torch.float16, torch.bfloat16)


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Compile anew each time."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def aligned(name: str, kind: str) -> bool:
    return kind.startswith("*") or name.endswith(("slot_stride", "head_stride", "token_stride"))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("capability", "dtype", "dim", "query_len", "how"),
    [
        (80, torch.float16, 64, 1, {}),
        (80, torch.bfloat16, 128, 40, {"window": 128, "softcap": 50.0}),
        (89, torch.bfloat16, 128, 1, {"sinks": torch.zeros(8)}),
        (80, torch.bfloat16, 128, 8, {"kept": torch.int8}),
        (80, torch.bfloat16, 512, 8, {"latent": 576}),
        (89, torch.float32, 128, 40, {"kept": torch.int8}),
        (80, torch.float16, 96, 8, {"tree": True, "kept": torch.int8}),
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
    check_attention(monkeypatch, capability, dtype, dim, query_len, how)


@pytest.mark.parametrize(
    ("dtype", "dim", "query_len", "how"),
    [
        pytest.param(torch.float32, 256, 40, {"window": 1}, marks=pytest.mark.nightly),
        pytest.param(torch.bfloat16, 128, 17, {"tree": True}, marks=pytest.mark.nightly),
        (torch.bfloat16, 64, 40, {"tree": True, "kept": torch.int8}),
    ],
    ids=["the widest", "a tree", "a tree of narrow heads in 8 bits"],
)
def test_attention_compiles_where_least_fits(
    monkeypatch: pytest.MonkeyPatch,
    dtype: torch.dtype,
    dim: int,
    query_len: int,
    how: dict[str, Any],
) -> None:
    check_attention(monkeypatch, 89, dtype, dim, query_len, how)


@pytest.mark.nightly
@pytest.mark.timeout(0)
@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("dtype", [*HALF, torch.float32], ids=str)
@pytest.mark.parametrize("dim", [64, 80, 96, 128, 192, 256])
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"window": 128, "softcap": 50.0},
        {"sinks": torch.zeros(8)},
        {"kept": torch.int8},
        {"kept": torch.int8, "window": 128, "softcap": 50.0},
        {"tree": True},
        {"tree": True, "kept": torch.int8},
        {"tree": True, "kept": torch.int8, "window": 128},
    ],
    ids=[
        *("plain", "window and cap", "sinks", "8 bits", "8 bits, window and cap"),
        *("tree", "tree, 8 bits", "tree, 8 bits, window"),
    ],
)
def test_attention_compiles_for_every_head_dtype_and_window(
    monkeypatch: pytest.MonkeyPatch,
    capability: int,
    dtype: torch.dtype,
    dim: int,
    how: dict[str, Any],
) -> None:
    for query_len in (1, 8, 40):  # products of 16, 32 and 64 rows
        with monkeypatch.context() as patched:
            check_attention(patched, capability, dtype, dim, query_len, how)


@pytest.mark.nightly
@pytest.mark.timeout(0)
@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("dtype", [*HALF, torch.float32], ids=str)
@pytest.mark.parametrize(("dim", "latent"), [(512, 576), (256, 288), (128, 192)])
@pytest.mark.parametrize(
    "how", [{}, {"kept": torch.int8}, {"tree": True}], ids=["plain", "8 bits", "tree"]
)
def test_attention_to_latents_compiles(
    monkeypatch: pytest.MonkeyPatch,
    capability: int,
    dtype: torch.dtype,
    dim: int,
    latent: int,
    how: dict[str, Any],
) -> None:
    for query_len in (1, 8, 40):
        with monkeypatch.context() as patched:
            check_attention(patched, capability, dtype, dim, query_len, {**how, "latent": latent})


def check_attention(
    monkeypatch: pytest.MonkeyPatch,
    capability: int,
    dtype: torch.dtype,
    dim: int,
    query_len: int,
    how: dict[str, Any],
) -> None:
    """It fits the GPU, nothing is spilled from registers, and half precision is multiplied so."""
    how = dict(how)
    latent = how.pop("latent", 0)  # numbers of a key of which the first `dim` are the value
    kv_heads = 1 if latent else 2
    batch = Batch((50,), query_len, 8, kv_heads, latent or dim, dim, 16, dtype=dtype)
    if (kept := how.pop("kept", None)) is not None:
        batch.keys, batch.values = (torch.zeros_like(batch.keys, dtype=kept) for _ in range(2))
        how["scales"] = tuple(torch.zeros(batch.keys.shape[:2]) for _ in range(2))
    if tree := how.pop("tree", False):
        tokens = torch.zeros_like(batch.positions)
        how |= {"starts": tokens, "bits": tokens.clone(), "width": query_len}
    if latent:
        batch.values = batch.keys[..., :dim]
    attend = Recorder(split_kv._attend_split, aligned, capability)
    merge = Recorder(split_kv._merge_splits, aligned, capability)
    monkeypatch.setattr(split_kv, "_attend_split", attend)
    monkeypatch.setattr(split_kv, "_merge_splits", merge)
    long = query_len > operators.LONG and not tree
    call: Any = split_kv.attend
    for rows in (1, 200):
        launch = split_kv.launch_for(
            rows, kv_heads, dim, dtype, 132, long=long, scaled="scales" in how, tree=tree
        )
        call(*batch.arguments(), **batch.sizes(), scaling=1.0, **how, launch=launch)
    few = dtype == torch.float32 if tree else latent and "scales" not in how
    for compiled in (*attend.compiled, *merge.compiled):
        assert compiled.metadata.shared <= SHARED[capability]
        assert spilled(compiled) <= (SPILLS if few else 0)
    assert ".b16" in attend.compiled[0].asm["ptx"] or dtype == torch.float32
    assert len(attend.compiled) == 2
    assert len(merge.compiled) == (0 if long else 1), "what one split has is not merged"


def test_writing_the_cache_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(write_cache._write, aligned, 90)
    monkeypatch.setattr(write_cache, "_write", recorder)
    store, new = torch.zeros(16, 2, 80, dtype=torch.bfloat16), torch.zeros(3, 2, 80)
    write_cache.write(store, store.clone(), torch.tensor([1, 2, 3]), new, new)
    assert "ld.global.v4.b32" in recorder.compiled[0].asm["ptx"]  # four numbers at a time
    kept, scales = torch.zeros(16, 2, 80, dtype=torch.int8), torch.zeros(16, 2)
    write_cache.write(kept, kept.clone(), torch.tensor([1]), new[:1], new[:1], (scales, scales))
    assert spilled(recorder.compiled[1]) == 0


def test_rows_and_heads_get_as_many_splits_as_occupy_the_device() -> None:
    def splits(rows: int, kv_heads: int, *, long: bool = False) -> int:
        return split_kv.launch_for(rows, kv_heads, 128, torch.bfloat16, 132, long=long).splits

    assert [splits(1, heads) for heads in (1, 8, 32)] == [16, 16, 8]
    assert [splits(rows, 8) for rows in (1, 2, 4, 8, 16, 32, 128)] == [16, 16, 8, 4, 2, 1, 1]
    for rows in range(1, 40):
        for heads in (1, 2, 8):
            assert rows * heads * splits(rows, heads) >= 132 or splits(rows, heads) == 16
    assert splits(1, 8, long=True) == 1


def test_the_tile_is_what_fits_the_shared_memory() -> None:
    assert [
        split_kv.launch_for(1, 8, width, torch.bfloat16, 132, long=False).tile
        for width in (32, 128, 256, 2048)
    ] == [
        64,
        64,
        32,
        16,
    ]
