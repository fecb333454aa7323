"""What code of another package returned: of the shape that is used, or an error that says so."""

from __future__ import annotations

import torch
from torch import Tensor

from ...graph.errors import StepweaveError


class WrongResult(StepweaveError):
    """A function of a node, drafter or policy returned what cannot be used."""

    code = "SW-RESULT"


def check_scores(
    name: str, found: object, shape: tuple[int, ...], source: str | None = None
) -> None:
    """Raise `WrongResult` unless `found` is a tensor of scores of that shape. Asks no device.

    `name`: what the reader calls them. `source`: the value and its node. Without the logits of rows
    that sample, a run would never end.
    """
    if isinstance(found, Tensor) and found.shape == shape and found.is_floating_point():
        return
    its = f"its {name}" if source is None else f"its {name}, {source},"
    if found is None:
        raise WrongResult(
            f"rows of this step are to be sampled, but {its} are None: a node returns None only "
            "where the logits that it reads are None"
        )
    must = f"must be a tensor {list(shape)} of floating-point numbers"
    raise WrongResult(f"{its} {must}, not {_described(found)}")


def check_integers(what: str, found: object, shape: tuple[int, ...]) -> None:
    """Raise `WrongResult` unless `found` is a tensor of integers of that shape. Asks no device."""
    if isinstance(found, Tensor):
        integers = not (found.is_floating_point() or found.is_complex())
        if found.shape == shape and integers and found.dtype != torch.bool:
            return
    must = f"must be a tensor {list(shape)} of integers"
    raise WrongResult(f"{what} {must}, not {_described(found)}")


def _described(found: object) -> str:
    if isinstance(found, Tensor):
        return f"a tensor {list(found.shape)} of {str(found.dtype).removeprefix('torch.')}"
    return f"{found!r:.60}"
