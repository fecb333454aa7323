"""The launches of the sampling kernels compile for GPUs, to code that keeps the bits of the noise.

That takes no GPU: Triton brings its own tools.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

triton: Any = pytest.importorskip("triton", reason="Triton has builds for Linux only")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402
from triton.runtime.jit import mangle_type  # noqa: E402

from stepweave.policies.kernels import (  # noqa: E402
    choose,
    hand_on,
    keys,
    mask,
    scale,
    settle,
    uniform,
    verify,
)

OPTIONS = ("num_warps", "num_stages", "enable_fp_fusion")
KERNELS = [
    (choose, "_best"),
    (choose, "_draw"),
    (keys, "_tokens"),
    (settle, "_keep_equal"),
    (uniform, "_uniform"),
    (mask, "_apply"),
    (scale, "_scale"),
    (hand_on, "_hand_on"),
]
S, W, V = 2, 3, 128256


class Recorder:
    """Stands in for a kernel and compiles what it would launch."""

    def __init__(self, kernel: Any) -> None:
        self.kernel, self.ptx = kernel, list[str]()

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        assert all(isinstance(size, int) and size > 0 for size in grid)
        return self._compile

    def _compile(self, *args: Any, **kwargs: Any) -> None:
        options = {name: kwargs.pop(name) for name in OPTIONS if name in kwargs}
        given = {**dict(zip(self.kernel.arg_names, args, strict=False)), **kwargs}
        assert set(given) == set(self.kernel.arg_names)
        constant = {p.name for p in self.kernel.params if p.is_constexpr}
        types = {n: "constexpr" if n in constant else mangle_type(given[n]) for n in given}
        aligned = {
            (i,): [["tt.divisibility", 16]]
            for i, name in enumerate(self.kernel.arg_names)
            if name in ("logits", "scores", "line_stride", "vocab")
        }
        source = ASTSource(
            self.kernel,
            {name: types[name] for name in self.kernel.arg_names},
            {name: given[name] for name in constant},
            attrs=aligned,
        )
        compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
        assert "cubin" in compiled.asm
        self.ptx.append(compiled.asm["ptx"])


@pytest.fixture
def recorders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Recorder]:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))  # compile anew each time
    made = {name: Recorder(getattr(module, name)) for module, name in KERNELS}
    for module, name in KERNELS:
        monkeypatch.setattr(module, name, made[name])
    return made


def test_every_kernel_compiles_and_rounds_each_operation_by_itself(
    recorders: dict[str, Recorder],
) -> None:
    logits, bits = torch.zeros(S, W, V), torch.zeros(S, W, V // 32, dtype=torch.int32)
    flat, masks = logits.view(S * W, V), bits.view(S * W, -1)
    rows, lines = torch.zeros(S, dtype=torch.int64), torch.zeros(S * W, dtype=torch.int64)
    drafts, temperature = torch.zeros(S, W - 1, dtype=torch.int64), torch.ones(S).double()
    verify.coupled(
        logits, bits, drafts, rows, rows, rows, temperature, min_p=temperature, forced=rows
    )
    verify.coupled(logits.bfloat16(), None, drafts, rows, rows, rows, temperature)
    choose.draw(flat, lines, lines, lines == 0, lines)
    mask.apply_bitmask(flat, masks)
    scale.scaled(flat, torch.ones(S * W).double(), masks)
    uniform.uniform(lines, lines, 1)
    table = torch.zeros(9, dtype=torch.int64)
    hand_on.hand_on(drafts, rows, rows, rows, torch.zeros(9, 8, dtype=torch.int32), table, table)
    assert {name: len(recorder.ptx) for name, recorder in recorders.items()} == {
        "_best": 3,
        "_draw": 3,
        "_tokens": 1,
        "_keep_equal": 2,
        "_uniform": 1,
        "_apply": 1,
        "_scale": 1,
        "_hand_on": 1,
    }
    for name in ("_draw", "_scale"):
        for ptx in recorders[name].ptx:
            assert not re.search(r"\bfma|\.ftz|\.approx|div\.full", ptx), name
            assert "div.rn.f32" in ptx
    assert "ld.global.v4.b32" in recorders["_best"].ptx[0]  # four tokens at a time
    assert "ld.global.v4.b32" in recorders["_draw"].ptx[0]
