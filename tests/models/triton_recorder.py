"""Compiles what a Triton kernel would launch, for a GPU that is not there."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from subprocess import run
from tempfile import NamedTemporaryFile
from typing import Any

import pytest

triton: Any = pytest.importorskip("triton", reason="Triton has builds for Linux only")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402
from triton.runtime.jit import mangle_type  # noqa: E402

OPTIONS = ("num_warps", "num_stages", "enable_fp_fusion", "maxnreg")
USAGE = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)")
CAPABILITIES = (80, 86, 89, 90)


class Recorder:
    """Stands in for a kernel. `aligned(name, type)`: which arguments are multiples of 16."""

    def __init__(
        self, kernel: Any, aligned: Callable[[str, str], bool], capability: int = 90
    ) -> None:
        self.kernel, self.aligned = kernel, aligned
        self.target = GPUTarget("cuda", capability, 32)
        self.compiled: list[Any] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        assert all(isinstance(size, int) and size > 0 for size in grid)
        return self._compile

    def _compile(self, *args: Any, **kwargs: Any) -> None:
        options = {name: kwargs.pop(name) for name in OPTIONS if name in kwargs}
        names = self.kernel.arg_names
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        assert set(given) == set(names)
        constant = {p.name for p in self.kernel.params if _is_compiled_in(p, given[p.name])}
        types = {n: "constexpr" if n in constant else mangle_type(given[n]) for n in given}
        source = ASTSource(
            self.kernel,
            {name: types[name] for name in names},
            {name: given[name] for name in constant},
            attrs={
                (i,): [["tt.divisibility", 16]]
                for i, name in enumerate(names)
                if self.aligned(name, types[name])
            },
        )
        compiled = triton.compile(source, target=self.target, options=options)
        assert "cubin" in compiled.asm
        self.compiled.append(compiled)


def _is_compiled_in(parameter: Any, value: object) -> bool:
    """Whether Triton makes kernels for each value: what is marked, and an integer that is 1."""
    one = isinstance(value, int) and value == 1 and not parameter.do_not_specialize
    return parameter.is_constexpr or one


def spilled(compiled: Any) -> int:
    """Bytes of a thread that found no place in its registers."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    if not tool.exists():
        pytest.skip(f"this Triton does not bring {tool.name}")
    with NamedTemporaryFile(suffix=".cubin") as binary:
        binary.write(compiled.asm["cubin"])
        binary.flush()
        said = run([tool, "-res-usage", binary.name], capture_output=True, text=True, check=True)
    usage = USAGE.search(said.stdout)
    assert usage is not None, said.stdout
    return int(usage[2]) + int(usage[3])
