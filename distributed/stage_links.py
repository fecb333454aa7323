"""What connects the stages of a model: hidden states to the next, tokens from the last to all.

Each pair of neighbours has a communicator of its own, and so has what the last stage tells: a
library matches calls by their order on a communicator, and streams have no common order. No shape
travels, since every rank has scheduled the same step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from ..models.stage import Stage
from .group import Group

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class StageLinks:
    """The connections of the stage that this rank is. Every rank of the group has to make its own.

    The number of a rank is that of its stage.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self.stage = Stage(group.rank, group.size)
        self._pairs: list[ProcessGroup] = [
            dist.new_group([index, index + 1]) for index in range(group.size - 1)
        ]
        self._all: ProcessGroup = dist.new_group()

    def send(self, departing: Tensor) -> None:
        """Send `departing[T, F]` to the next stage. Raises `GroupEnded`."""
        here = self.stage.index
        with self._ending_the_group():
            dist.send(departing.contiguous(), dst=here + 1, group=self._pairs[here])

    def receive(self, shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> Tensor:
        """What the stage before sends, `[T, F]` of that shape. Raises `GroupEnded`."""
        before = self.stage.index - 1
        found = torch.empty(shape, dtype=dtype, device=device)
        with self._ending_the_group():
            dist.recv(found, src=before, group=self._pairs[before])
        return found

    def tell(self, *said: Tensor) -> None:
        """From the last stage to all others: `said[...]`, of int64. Raises `GroupEnded`."""
        flat = torch.cat([each.reshape(-1) for each in said])
        with self._ending_the_group():
            dist.broadcast(flat, src=self.stage.count - 1, group=self._all)

    def hear(self, shapes: Sequence[Sequence[int]], like: Tensor) -> tuple[Tensor, ...]:
        """What the last stage tells: of these shapes, `[...]`, where `like[...]` lies.

        Raises `GroupEnded`.
        """
        counts = [math.prod(shape) for shape in shapes]
        flat = torch.empty(sum(counts), dtype=torch.int64, device=like.device)
        with self._ending_the_group():
            dist.broadcast(flat, src=self.stage.count - 1, group=self._all)
        parts = torch.split(flat, counts)
        return tuple(part.view(*shape) for part, shape in zip(parts, shapes, strict=True))

    @contextmanager
    def _ending_the_group(self) -> Iterator[None]:
        """What fails in a message fails on one side only, and the other would wait."""
        self._group.check()
        try:
            yield
        except RuntimeError as error:
            raise self._group.end(f"rank {self._group.rank}: {error}") from error
