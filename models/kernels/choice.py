"""Which implementation of the attention kernels runs where, and why not another.

`reference` is plain torch and runs everywhere; `triton` runs on CUDA devices where Triton is
installed (torch's CUDA wheels bring it). The environment variable `STEPWEAVE_KERNELS` forces one
of them, to tell a wrong kernel from a wrong model. Triton is not imported to answer.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ...graph.errors import did_you_mean
from ..errors import ModelError

if TYPE_CHECKING:
    import torch

Implementation = Literal["reference", "triton"]

VARIABLE = "STEPWEAVE_KERNELS"

_DTYPES = ("torch.float16", "torch.bfloat16", "torch.float32")


def implementation(device: torch.device, dtype: torch.dtype) -> Implementation:
    """The one that runs on `device` for queries of `dtype`.

    Raises:
        ModelError: the environment names none, or one that is not installed.
    """
    asked = forced()
    if asked is not None:
        return asked
    fits = device.type == "cuda" and str(dtype) in _DTYPES
    return "triton" if fits and _installed() is not None else "reference"


def forced() -> Implementation | None:
    """What the environment asks for, or None."""
    asked = os.environ.get(VARIABLE, "")
    if asked in ("", "auto"):
        return None
    if asked == "reference":
        return "reference"
    if asked == "triton":
        if _installed() is None:
            raise ModelError(f"{VARIABLE} is 'triton', which is not installed: pip install triton")
        return "triton"
    guess = did_you_mean(asked, ("auto", "reference", "triton"))
    raise ModelError(f"{VARIABLE} is {asked!r}{guess}; unset it for the best that fits the device")


def available(capability: tuple[int, int] | None) -> Mapping[str, str]:
    """Each kernel of this installation and what becomes of it on this machine, for people.

    `capability` is that of its CUDA device, None without one. Imports no torch.
    """
    asked = forced()
    by_force = f" ({VARIABLE} asks for {asked})" if asked is not None else ""
    installed, cuda = _installed(), capability is not None
    if installed is None:
        of_triton = "not used: Triton is not installed"
    elif asked == "reference":
        of_triton = f"not used{by_force}"
    elif not cuda and asked != "triton":
        of_triton = f"not used: no CUDA device (Triton {installed})"
    else:
        of_triton = f"used for decoding, windows and the cache{by_force} (Triton {installed})"
    if not _has_varlen():
        of_varlen = f"not used: torch {version('torch')} has no torch.nn.attention.varlen"
    elif asked is not None:
        of_varlen = f"not used{by_force}"
    elif capability is None:
        of_varlen = "not used: no CUDA device"
    elif capability < (8, 0):
        of_varlen = "not used: needs a device of compute capability 8.0"
    else:
        of_varlen = "used for prompts in float16 and bfloat16"
    everywhere = asked != "triton" and (installed is None or not cuda or asked == "reference")
    return {
        "triton": of_triton,
        "varlen": of_varlen,
        "reference": f"used{by_force}" if everywhere else "used for float64",
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
