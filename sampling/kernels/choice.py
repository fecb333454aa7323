"""Whether the sampling kernels run for a tensor. Triton is not imported to answer.

They are governed by the variable that governs the attention kernels: `STEPWEAVE_KERNELS`, one of
`auto`, `reference` and `triton`. Kernels and reference give the same bits, so it changes the speed
alone, and tells a wrong kernel from a wrong model.
"""

import os
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from ...graph.errors import StepweaveError, did_you_mean

VARIABLE = "STEPWEAVE_KERNELS"

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


class KernelsUnavailable(StepweaveError):
    """The environment asks for kernels that are not available."""

    code = "SW-KERNELS"


def runs_on(scores: Tensor) -> bool:
    """Whether the kernels take `scores`: logits or the like, on their device and of their type.

    Never float64, nor a tensor without elements.

    Raises:
        KernelsUnavailable: see `active`.
    """
    return active(scores.device) and scores.dtype in _DTYPES and scores.numel() > 0


def active(device: torch.device) -> bool:
    """Whether kernels run on `device`: by default on CUDA devices where Triton is installed.

    Raises:
        KernelsUnavailable: the environment names none, or they need Triton, which is missing.
    """
    asked = os.environ.get(VARIABLE, "") or "auto"
    if asked not in ("auto", "reference", "triton"):
        guess = did_you_mean(asked, ("auto", "reference", "triton"))
        raise KernelsUnavailable(
            f"{VARIABLE} is {asked!r}{guess}; unset it for the best that fits the device"
        )
    if asked == "triton" and not _installed():
        raise KernelsUnavailable(
            f"{VARIABLE} is 'triton', which is not installed: pip install triton"
        )
    return asked == "triton" or (asked == "auto" and device.type == "cuda" and _installed())


def current(device: torch.device) -> torch.cuda.device:
    """Make `device` the current one, on which Triton launches; -1 changes nothing."""
    return torch.cuda.device(device if device.type == "cuda" else -1)


def processors(device: torch.device) -> int:
    """Multiprocessors to occupy."""
    if device.type != "cuda":
        return 4  # Triton's interpreter, where more would only take longer
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count


@cache
def _installed() -> bool:
    return find_spec("triton") is not None
