"""`stepweave doctor`: what this machine and installation can do."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_PACKAGES = (
    *("stepweave", "torch", "transformers"),
    *("xgrammar", "llguidance", "networkx", "pydantic"),
)


_DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")  # of NVIDIA, of AMD, of Windows below Linux


def doctor() -> int:
    """Print a line for each finding; 1 if something that every pipeline needs is missing."""
    findings = [
        ("python", platform.python_version(), True),
        *(_package(name) for name in _PACKAGES),
        ("cores", str(len(os.sched_getaffinity(0)) if _has_affinity() else os.cpu_count()), True),
        *_cuda(),
        _embedded("target"),
        _embedded("draft"),
    ]
    width = max(len(name) for name, _, _ in findings)
    for name, said, well in findings:
        print(f"{'ok ' if well else '!! '} {name.ljust(width)}  {said}")
    return 0 if all(well for _, _, well in findings) else 1


def _has_affinity() -> bool:
    return hasattr(os, "sched_getaffinity")


def _package(name: str) -> tuple[str, str, bool]:
    try:
        return name, version(name), True
    except PackageNotFoundError:
        return name, f"not installed: pip install {name}", False


def _cuda() -> list[tuple[str, str, bool]]:
    """The GPU, and which attention runs on it and why not another.

    Where there is no driver there is no GPU, and no need to import torch, which takes seconds.
    """
    try:
        version("torch")
    except PackageNotFoundError:
        return [("cuda", "unknown without torch", True)]
    from ..models.kernels import available

    device, capability = "none; pipelines run on the CPU", None
    if sys.platform != "linux" or any(Path(each).exists() for each in _DRIVERS):
        import torch

        if torch.cuda.is_available():
            device = torch.cuda.get_device_name(0)
            capability = torch.cuda.get_device_capability()
    kernels = available(capability).items()
    return [("cuda", device, True), *((f"attention: {name}", said, True) for name, said in kernels)]


def _embedded(part: str) -> tuple[str, str, bool]:
    folder = Path(__file__).parents[1] / "models" / "embedded" / part
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        return f"embedded {part}", "missing: reinstall stepweave, or run training/train.py", False
    size = sum(path.stat().st_size for path in weights)
    return f"embedded {part}", f"{size / 1e6:.1f} MB", True
