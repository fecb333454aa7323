"""The launches of the sampling kernels compile for GPUs, to code that keeps the bits of the noise.

That takes no GPU: Triton brings its own tools.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="Triton has builds for Linux only")

from stepweave.sampling.kernels import (
    choose,
    cut,
    hand_on,
    keys,
    mask,
    scale,
    settle,
    uniform,
    verify,
)
from stepweave.sampling.stand_ins import StandIns
from tests.models.triton_recorder import CAPABILITIES, Recorder, spilled

KERNELS = [
    (choose, "_best"),
    (choose, "_draw"),
    (keys, "_tokens"),
    (settle, "_keep_equal"),
    (uniform, "_uniform"),
    (mask, "_apply"),
    (scale, "_scale"),
    (hand_on, "_hand_on"),
    (cut, "_cut"),
]
SPILLS = {"_draw": 8}
"""Bytes of a thread that may find no place in its registers; of all others none."""
S, W, V = 2, 3, 128256


def aligned(name: str, kind: str) -> bool:
    return name in ("logits", "scores", "stand_ins", "line_stride", "stand_in_stride", "vocab")


@pytest.fixture
def recorders(
    capability: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> dict[str, Recorder]:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))  # compile anew each time
    made = {name: Recorder(getattr(module, name), aligned, capability) for module, name in KERNELS}
    for module, name in KERNELS:
        monkeypatch.setattr(module, name, made[name])
    return made


@pytest.mark.parametrize(
    "capability",
    [pytest.param(each, marks=() if each == 90 else pytest.mark.nightly) for each in CAPABILITIES],
)
def test_every_kernel_compiles_and_rounds_each_operation_by_itself(
    recorders: dict[str, Recorder],
) -> None:
    logits, bits = torch.zeros(S, W, V), torch.zeros(S * W, V // 32, dtype=torch.int32)
    flat = logits.view(S * W, V)
    rows, lines = torch.zeros(S, dtype=torch.int64), torch.zeros(S * W, dtype=torch.int64)
    drafts, temperature = torch.zeros(S, W - 1, dtype=torch.int64), torch.ones(S).double()
    verify.coupled(
        logits, bits, drafts, rows, rows, rows, temperature, min_p=temperature, forced=rows
    )
    verify.coupled(logits.bfloat16(), None, drafts, rows, rows, rows, temperature)
    few = StandIns(logits[:1], rows[:1], lines.view(S, W))
    verify.coupled(logits.bfloat16(), None, drafts, rows, rows, rows, temperature, stand_ins=few)
    choose.draw(flat, lines, lines, lines == 0, lines)
    mask.apply_bitmask(flat, bits)
    mask.apply_bitmask(flat, bits, lines)
    scale.scaled(flat, torch.ones(S * W).double(), bits)
    scale.scaled(flat.bfloat16(), torch.ones(S * W).double(), stand_ins=few)
    cut.cut(flat.clone(), lines, torch.ones(S * W).double(), torch.ones(S * W))
    uniform.uniform(lines, lines, 1)
    table = torch.zeros(9, dtype=torch.int64)
    hand_on.hand_on(drafts, rows, rows, rows, torch.zeros(9, 8, dtype=torch.int32), table, table)
    assert {name: len(recorder.compiled) for name, recorder in recorders.items()} == {
        "_best": 5,
        "_draw": 4,
        "_tokens": 1,
        "_keep_equal": 3,
        "_uniform": 1,
        "_apply": 2,
        "_scale": 2,
        "_hand_on": 1,
        "_cut": 1,
    }
    for name, recorder in recorders.items():
        assert max(map(spilled, recorder.compiled)) <= SPILLS.get(name, 0), name
    for name in ("_draw", "_scale"):
        for ptx in (each.asm["ptx"] for each in recorders[name].compiled):
            assert not re.search(r"\bfma|\.ftz|\.approx|div\.full", ptx), name
            assert "div.rn.f32" in ptx
    [cuts] = recorders["_cut"].compiled
    # What is rounded down is a half more than a number: nothing so small that it could be flushed.
    rounds = cuts.asm["ptx"].replace("cvt.rmi.ftz.f32.f32", "")
    assert not re.search(r"\bfma|\.ftz|\.approx", rounds)
    assert "ld.global.v4.b32" in cuts.asm["ptx"]
    assert "ld.global.v4.b32" in recorders["_best"].compiled[0].asm["ptx"]  # four tokens at a time
    assert "ld.global.v4.b32" in recorders["_draw"].compiled[0].asm["ptx"]
    # What stands in for lines is read so too: twice as many bytes as logits in half precision.
    for name in ("_best", "_draw"):
        plain, few = (
            each.asm["ptx"].count("ld.global.v4.b32") for each in recorders[name].compiled[1:3]
        )
        assert few == 3 * plain > 0, name
