"""What stands between the products of a layer compiles for GPUs, without registers to spare."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

triton: Any = pytest.importorskip("triton", reason="Triton has builds for Linux only")

from stepweave.models.kernels import add_norm, gate, places, rotate, spread  # noqa: E402
from stepweave.models.kernels.forms import Angles, Norm  # noqa: E402
from tests.models.test_kernels_compile import HALF  # noqa: E402
from tests.models.triton_recorder import CAPABILITIES, Recorder, spilled  # noqa: E402

DTYPES = (*HALF, torch.float32)
WIDTHS = (896, 4096, 5120, 16384)
HEADS = (64, 80, 96, 128, 192, 256)


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Compile anew each time."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def aligned(name: str, kind: str) -> bool:
    return kind.startswith("*") or name.endswith(
        ("row_stride", "head_stride", "token_stride", "width")
    )


def norms(width: int, dtype: torch.dtype) -> tuple[Norm, Norm]:
    """Of Llama's form, and of Gemma's."""
    weight = torch.zeros(width, dtype=dtype)
    return Norm(weight, 1e-6), Norm(weight, 1e-6, offset=True, rounds=False)


def additions(width: int, dtype: torch.dtype) -> None:
    x, table = torch.zeros(3, width, dtype=dtype), torch.zeros(9, width, dtype=dtype)
    wide, ids = torch.zeros(3, 2 * width, dtype=dtype), torch.tensor([1, 2, 3])
    llama, gemma = norms(width, dtype)
    add_norm.add_norm(x, None, llama)
    add_norm.add_norm(x, x.clone(), llama)
    add_norm.add_norm(x, x.clone(), gemma, inner=gemma)
    add_norm.add_norm(table, None, llama, index=ids, live=ids, out=wide[:, width:])


def rotations(width: int, dtype: torch.dtype) -> None:
    query, key = torch.zeros(3, 32, width, dtype=dtype), torch.zeros(3, 8, width, dtype=dtype)
    cache = torch.zeros(64, 8, width, dtype=dtype)
    slots, table = torch.tensor([1, 2, 3]), torch.zeros(99, 2, width, dtype=dtype)
    for angles, of_heads in (
        (Angles(table[:3, 0], table[:3, 1]), None),
        (Angles(table[:, 0], table[:, 1], slots), norms(width, dtype)[:1] * 2),
        (Angles(table[:3, 0, : width // 2], table[:3, 1, : width // 2], halved=True), None),
        (
            Angles(table[:3, 0, : width // 2], table[:3, 1, : width // 2]),
            norms(width, dtype)[1:] * 2,
        ),
    ):
        where: Any = (cache, cache.clone(), slots)
        rotate.rotate(query, key, key.clone(), angles, *where, norms=of_heads)


def gates(width: int, dtype: torch.dtype) -> None:
    both = torch.zeros(3, 2 * width, dtype=dtype)
    for activation in ("silu", "gelu", "gelu_tanh"):
        gate.gated(both[:, :width], both[:, width:], activation)


def others(dtype: torch.dtype) -> None:
    tables, first = torch.zeros(4, 9, dtype=torch.int64), torch.tensor([1, 2, 3, 4])
    places.slots_of(tables, first[:, None], 16, first)
    places.ahead(tables, first, 5, 16)
    places.ahead(tables, first, 5, 16, 100, first)
    spread.spread(torch.zeros(2, 32, dtype=dtype), torch.zeros(5000, dtype=torch.int64))


def compiled(
    patched: pytest.MonkeyPatch, capability: int, launches: Callable[[], object]
) -> list[Any]:
    """Every kernel that is launched, compiled for the capability."""
    kernels = [
        (add_norm, "_add_norm"),
        (rotate, "_rotate"),
        (gate, "_gated"),
        (places, "_places"),
        (spread, "_spread"),
    ]
    recorders = []
    for module, name in kernels:
        recorders.append(Recorder(getattr(module, name), aligned, capability))
        patched.setattr(module, name, recorders[-1])
    launches()
    found = [each for recorder in recorders for each in recorder.compiled]
    assert found
    for each in found:
        assert spilled(each) == 0, each.name
    return found


def test_they_compile_without_spills(monkeypatch: pytest.MonkeyPatch) -> None:
    def launches() -> None:
        additions(5120, torch.bfloat16)
        rotations(128, torch.bfloat16)
        others(torch.bfloat16)
        gates(5120, torch.float16)

    found = compiled(monkeypatch, 80, launches)
    loads = [each.asm["ptx"] for each in found if each.name in ("_add_norm", "_gated")]
    assert len(loads) == 7
    apart = [at for at, each in enumerate(loads) if "ld.global.v4.b32" not in each]
    assert apart == [], "sixteen bytes at a time"


@pytest.mark.nightly
@pytest.mark.timeout(0)
@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_they_compile_for_every_width(
    monkeypatch: pytest.MonkeyPatch, capability: int, dtype: torch.dtype
) -> None:
    def launches() -> None:
        for width in WIDTHS:
            additions(width, dtype)
            gates(width, dtype)
        for width in HEADS:
            rotations(width, dtype)
        others(dtype)

    compiled(monkeypatch, capability, launches)
