"""`stepweave doctor`: what this machine and installation can do."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_PACKAGES = ("stepweave", "torch", "transformers", "xgrammar", "networkx", "pydantic")


def doctor() -> int:
    """Print a line for each finding; 1 if something that every pipeline needs is missing."""
    findings = [
        ("python", platform.python_version(), True),
        *(_package(name) for name in _PACKAGES),
        ("cores", str(len(os.sched_getaffinity(0)) if _has_affinity() else os.cpu_count()), True),
        _cuda(),
        *_kernels(),
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


def _cuda() -> tuple[str, str, bool]:
    try:
        import torch
    except ImportError:
        return "cuda", "unknown without torch", True
    if not torch.cuda.is_available():
        return "cuda", "none; pipelines run on the CPU", True
    return "cuda", torch.cuda.get_device_name(0), True


def _kernels() -> list[tuple[str, str, bool]]:
    """Which attention runs on a GPU, and why not another."""
    try:
        from ..models.kernels import available
    except ImportError:
        return []
    return [(f"attention: {name}", said, True) for name, said in available().items()]


def _embedded(part: str) -> tuple[str, str, bool]:
    folder = Path(__file__).parents[1] / "models" / "embedded" / part
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        return f"embedded {part}", "missing: reinstall stepweave, or run training/train.py", False
    size = sum(path.stat().st_size for path in weights)
    return f"embedded {part}", f"{size / 1e6:.1f} MB", True
