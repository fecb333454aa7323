"""How a cache keeps numbers: in the model's precision, or in 8 bits with a scale.

In 8 bits each token has a scale for each head, of its key and of its value: the largest number of
the head is the largest that 8 bits can say. So nothing is calibrated, and what is stored of a token
follows from that token alone: neither from its batch or chunk, nor from what stood there before.
"""

import torch
from torch import Tensor

from .cache_dtype import CacheDType

_IN_8_BITS = {"int8": torch.int8, "float8_e4m3": torch.float8_e4m3fn}
_MOST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
_LEAST = torch.finfo(torch.float32).tiny

SCALE = torch.float32
"""The precision of scales."""


def stored_as(chosen: CacheDType, computed: torch.dtype) -> torch.dtype:
    """The precision in which a cache of that format keeps what is computed in `computed`."""
    return _IN_8_BITS.get(chosen, computed)


def has_scales(stored: torch.dtype) -> bool:
    """Whether numbers kept in that precision have scales beside them."""
    return stored in _MOST


def narrowed(x: Tensor, stored: torch.dtype) -> tuple[Tensor, Tensor]:
    """`x[..., D]` in 8 bits, `[..., D]`, and the scales `[...]` that it is to be multiplied by.

    Zero takes the place of NaN and infinities.
    """
    most = _MOST[stored]
    clean = finite(x.to(SCALE))
    scales = clean.abs().amax(dim=-1) / most
    whole = clean / scales.clamp(min=_LEAST)[..., None]
    if not stored.is_floating_point:
        whole = whole.round()
    return whole.clamp(-most, most).to(stored), scales


def finite(x: Tensor) -> Tensor:
    """`x[...]` with zero in place of NaN and infinities, `[...]`."""
    return torch.nan_to_num(x, nan=0.0, posinf=0.0, neginf=0.0)


def widened(stored: Tensor, scales: Tensor | None, dtype: torch.dtype) -> Tensor:
    """`stored[..., D]` times `scales[...]` in `dtype`, `[..., D]`. Without scales, itself."""
    return stored if scales is None else stored.to(dtype).mul_(scales[..., None])
