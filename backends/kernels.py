"""Which kernels run where: one switch, for attention, the cache and sampling.

`reference` is plain torch and runs everywhere; `triton` runs on devices that Triton compiles for,
where it is installed. The environment variable `STEPWEAVE_KERNELS` asks for one of them
everywhere, to tell a wrong kernel from a wrong model; `auto`, the default, is the best that fits
the device. To answer, neither torch nor Triton is imported.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ..graph.errors import StepweaveError, did_you_mean
from .backend import Backend
from .registry import backend_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor

VARIABLE = "STEPWEAVE_KERNELS"

Kernels = Literal["reference", "triton"]

_DTYPES = ("torch.float16", "torch.bfloat16", "torch.float32")  # of what Triton kernels take


class KernelsUnavailable(StepweaveError):
    """The environment asks for kernels that are not available."""

    code = "SW-KERNELS"


def asked_for() -> Kernels | None:
    """What the environment asks for; None for the best that fits the device.

    Raises:
        KernelsUnavailable: it names none, or they need Triton, which is not installed.
    """
    asked = os.environ.get(VARIABLE, "") or "auto"
    if asked == "auto":
        return None
    if asked == "reference":
        return "reference"
    if asked != "triton":
        guess = did_you_mean(asked, ("auto", "reference", "triton"))
        raise KernelsUnavailable(
            f"{VARIABLE} is {asked!r}{guess}; unset it for the best that fits the device"
        )
    if _installed() is None:
        raise KernelsUnavailable(
            f"{VARIABLE} is 'triton', which is not installed: pip install triton"
        )
    return "triton"


def active(device: torch.device) -> bool:
    """Whether Triton kernels run on `device`. Raises `KernelsUnavailable` as `asked_for` does."""
    asked = asked_for()
    if asked is not None:
        return asked == "triton"
    return backend_of(device).compiles_triton and _installed() is not None


def takes(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether Triton kernels run on `device` for numbers of `dtype`: never for float64.

    Raises `KernelsUnavailable` as `asked_for` does.
    """
    return active(device) and str(dtype) in _DTYPES


def runs_on(tensor: Tensor) -> bool:
    """Whether a Triton kernel takes `tensor[...]`, which it does not if that is empty.

    Raises `KernelsUnavailable` as `asked_for` does.
    """
    return takes(tensor.device, tensor.dtype) and tensor.numel() > 0


def current(device: torch.device) -> AbstractContextManager[object]:
    """Make `device` the current one, on which Triton launches."""
    return backend_of(device).entered(device)


def processors(device: torch.device) -> int:
    """How many programs of a kernel to start, so that `device` has no idle processor."""
    return backend_of(device).processors(device)


def chosen(backend: Backend) -> Mapping[str, str]:
    """Each kernel of this installation and what becomes of it on a device of `backend`, for people.

    Imports torch only if that is not the host.
    """
    asked, installed, host = asked_for(), _installed(), backend.on_host
    by_force = f" ({VARIABLE} asks for {asked})" if asked is not None else ""
    none = "there is no device but the host"
    if installed is None:
        of_triton = "not used: Triton is not installed"
    elif asked == "reference":
        of_triton = f"not used{by_force}"
    elif asked is None and not backend.compiles_triton:
        why = none if host else f"it does not compile for {backend.name}"
        of_triton = f"not used: {why} (Triton {installed})"
    else:
        of_triton = f"used for attention, the cache and sampling{by_force} (Triton {installed})"
    if not _has_varlen():
        of_varlen = f"not used: torch {version('torch')} has no torch.nn.attention.varlen"
    elif asked is not None:
        of_varlen = f"not used{by_force}"
    elif host:
        of_varlen = f"not used: {none}"
    elif (reason := backend.why_no_varlen(backend.device(backend.name))) is not None:
        of_varlen = f"not used: {reason}"
    else:
        of_varlen = "used for prompts in float16 and bfloat16"
    by_triton = of_triton.startswith("used")
    return {
        "triton": of_triton,
        "varlen": of_varlen,
        "reference": "used for float64" if by_triton else f"used{by_force}",
    }


@cache
def _installed() -> str | None:
    if find_spec("triton") is None:
        return None
    try:
        return version("triton")
    except PackageNotFoundError:  # some builds of torch carry it under another name
        return "of unknown version"


def _has_varlen() -> bool:
    """Looked up as a file: to ask the import system would import torch."""
    torch = find_spec("torch")
    folders = torch.submodule_search_locations if torch else None
    return any(Path(each, "nn", "attention", "varlen.py").is_file() for each in folders or ())
