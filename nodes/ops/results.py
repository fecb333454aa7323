"""What code of another package returned: of the shape that is used, or an error that says so."""

from __future__ import annotations

import torch
from torch import Tensor

from ...graph.errors import StepweaveError


class WrongResult(StepweaveError):
    """A function of a node, drafter or policy returned what cannot be used."""

    code = "SW-RESULT"


def check_integers(what: str, found: object, shape: tuple[int, ...]) -> None:
    """Raise `WrongResult` unless `found` is a tensor of integers of that shape. Asks no device."""
    if isinstance(found, Tensor):
        integers = not (found.is_floating_point() or found.is_complex())
        if found.shape == shape and integers and found.dtype != torch.bool:
            return
        given = f"a tensor {list(found.shape)} of {str(found.dtype).removeprefix('torch.')}"
    else:
        given = f"{found!r:.60}"
    raise WrongResult(f"{what} must be a tensor {list(shape)} of integers, not {given}")
