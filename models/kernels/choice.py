"""Which implementation of the attention kernels runs where, and why not another.

`reference` is plain torch and runs everywhere; `triton` runs on CUDA devices where Triton is
installed (torch's CUDA wheels bring it). The environment variable `STEPWEAVE_KERNELS` forces one
of them, to tell a wrong kernel from a wrong model. Triton is not imported to answer.
"""

import os
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Literal

import torch

from ...graph.errors import did_you_mean
from ..errors import ModelError

Implementation = Literal["reference", "triton"]

VARIABLE = "STEPWEAVE_KERNELS"

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def implementation(device: torch.device, dtype: torch.dtype) -> Implementation:
    """The one that runs on `device` for queries of `dtype`.

    Raises:
        ModelError: the environment names none, or one that is not installed.
    """
    asked = forced()
    if asked is not None:
        return asked
    fits = device.type == "cuda" and dtype in _DTYPES
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


def available() -> Mapping[str, str]:
    """Each kernel of this installation and what becomes of it on this machine, for people."""
    asked = forced()
    by_force = f" ({VARIABLE} asks for {asked})" if asked is not None else ""
    installed, cuda = _installed(), torch.cuda.is_available()
    if installed is None:
        of_triton = "not used: Triton is not installed"
    elif asked == "reference":
        of_triton = f"not used{by_force}"
    elif not cuda and asked != "triton":
        of_triton = f"not used: no CUDA device (Triton {installed})"
    else:
        of_triton = f"used for decoding, windows and the cache{by_force} (Triton {installed})"
    varlen = find_spec("torch.nn.attention.varlen") is not None
    if not varlen:
        of_varlen = f"not used: torch {torch.__version__} has no torch.nn.attention.varlen"
    elif asked is not None:
        of_varlen = f"not used{by_force}"
    elif not cuda:
        of_varlen = "not used: no CUDA device"
    elif torch.cuda.get_device_capability() < (8, 0):
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
