"""Tensors that every rank takes from rank 0, on the stream that computes them.

Ranks that compute the same can still differ in the last bit: in a matrix product, or in a kernel
that draws. What is decided by such numbers is broadcast, a few kilobytes a step. Each use has a
communicator of its own, since a library matches calls by their order on a communicator. That those
of one device follow one another is the plan's: the nodes declare that they meet (`MEETINGS`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from .group import Group


class Agreement:
    """One place at which ranks agree. `made` counts how often they have."""

    def __init__(self, group: Group, communicator: ProcessGroup) -> None:
        self._group, self._communicator = group, communicator
        self.made = 0

    def __call__(self, *own: Tensor) -> tuple[Tensor, ...]:
        """What rank 0 has in place of the integers `own[...]`: a tensor `[...]` of each shape.

        Every rank has to call it, in the same order as its other agreements on this place.
        """
        flat = torch.cat([each.reshape(-1) for each in own])
        with self._group.meeting("agreeing with the other ranks"):
            dist.broadcast(flat, src=0, group=self._communicator)
        self.made += 1
        agreed, at = [], 0
        for each in own:
            agreed.append(flat[at : at + each.numel()].view(each.shape))
            at += each.numel()
        return tuple(agreed)
