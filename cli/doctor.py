"""`stepweave doctor`: what this machine and installation can do."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ..backends.backend import Backend
from ..backends.errors import NoDevice
from ..backends.kernels import KernelsUnavailable, chosen
from ..backends.registry import HOST, backend_named, known_backends

_PACKAGES = (
    *("stepweave", "torch", "transformers"),
    *("xgrammar", "llguidance", "networkx", "pydantic"),
)


def doctor() -> int:
    """Print a line for each finding; 1 if something that every pipeline needs is missing."""
    findings = [
        ("python", platform.python_version(), True),
        *(_package(name) for name in _PACKAGES),
        ("cores", str(len(os.sched_getaffinity(0)) if _has_affinity() else os.cpu_count()), True),
        *_devices(),
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


def _devices() -> list[tuple[str, str, bool]]:
    """The devices of each backend, and which kernels run on the first one and why not others."""
    try:
        version("torch")
    except PackageNotFoundError:
        return [("devices", "unknown without torch", True)]
    findings: list[tuple[str, str, bool]] = []
    first: Backend | None = None
    for name in known_backends():
        try:
            backend = backend_named(name)
        except NoDevice as error:  # a package that does not load
            findings.append((name, f"{error}", False))
            continue
        if not backend.on_host:
            there = backend.found()
            instead = "none; pipelines run on the CPU"
            findings.append((name, ", ".join(there) or instead, True))
            first = first or (backend if there else None)
    try:
        kernels = chosen(first or backend_named(HOST))
    except KernelsUnavailable as error:
        return [*findings, ("kernels", f"{error}", False)]
    return [*findings, *((f"kernels: {name}", said, True) for name, said in kernels.items())]


def _embedded(part: str) -> tuple[str, str, bool]:
    folder = Path(__file__).parents[1] / "models" / "embedded" / part
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        return f"embedded {part}", "missing: reinstall stepweave, or run training/train.py", False
    size = sum(path.stat().st_size for path in weights)
    return f"embedded {part}", f"{size / 1e6:.1f} MB", True
