"""Rows of a batch whose tokens are draft trees: which keys each token sees.

The keys of a tree lie side by side, in the order of its places, while a token sees those of its
ancestors only. Two forms of that are here. As a mask it costs nothing to look up, but sums go over
keys in another order than they would if the tree were its one path. As *paths* each token is a row
of its own, whose keys are listed by position: so its bits are those of decoding without drafts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class TreeRows:
    """What a token sees besides the keys in front of its tree. Tensors are int64.

    A token sees every key before `starts`, which is the same for all tokens of a row that are not
    masked, and of the `width` keys from there on those whose bit is set, its own among them. It is
    at the position of as many keys as it sees, less one.
    """

    rows: int  # these first rows of the batch are trees; others see all up to their positions
    starts: Tensor  # [T]
    bits: Tensor  # [T]
    width: int  # below 63


def seen(starts: Tensor, bits: Tensor, keys: int, width: int) -> Tensor:
    """`[T, keys]` bool: which keys tokens of `starts[T]` and `bits[T]` see. Raises nothing."""
    behind = torch.arange(keys, device=starts.device) - starts[:, None]
    member = (bits[:, None] >> behind.clamp(0, width - 1)) & 1
    return (behind < 0) | ((behind < width) & (member == 1))


def members(bits: Tensor, width: int) -> Tensor:
    """`[T, width]`: the places that are set in `bits[T]`, in order, then those that are not.

    Raises nothing.
    """
    place = torch.arange(width, device=bits.device)
    return (((bits[..., None] >> place) & 1) ^ 1).argsort(dim=-1, stable=True)


def parents(bits: Tensor) -> Tensor:
    """`[R, n]`: of places `bits[R, n]`, each with its own bit, that of the parent; of the root 0.

    Raises nothing.
    """
    place = torch.arange(bits.shape[1], device=bits.device)
    earlier = place[:, None] > place
    return (((bits[..., None] >> place) & 1) * place * earlier).amax(-1)


def along_paths(lines: Tensor, starts: Tensor, bits: Tensor, width: int) -> Tensor:
    """`[T, h, C]`: what `lines[T, h, C]` says of each token's keys, by position on its path.

    `starts[T]`, `bits[T]`, `width` as in `TreeRows`. Raises nothing.
    """
    column = torch.arange(lines.shape[2], device=lines.device)
    behind = column - starts[:, None]
    order = members(bits, width)
    inside = starts[:, None] + order.gather(1, behind.clamp(0, width - 1))
    of_path = torch.where((behind >= 0) & (behind < width), inside, column)
    of_path = of_path.clamp(max=lines.shape[2] - 1)
    return lines.gather(2, of_path[:, None].expand_as(lines))
