"""What connects the stages of a model: hidden states to the next, tokens from the last to all.

Each pair of neighbours has a communicator of its own, and so has what the last stage tells: a
library matches calls by their order on a communicator, and streams have no common order. No shape
travels, since every rank has scheduled the same step; the number of the step does, behind or before
what is sent, so that a message that was left out is noticed with the next.

A message fails on one rank only. So it is a failure of that rank's step as any other: the group
ends, and says which rank it was, unless it is known by then that another rank is gone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from ..models.stage import Stage
from .communicators import Communicators
from .errors import MessageFailed

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

STEPS = 251
"""Steps are counted modulo this number, which every dtype of hidden states can hold."""

NOTHING = -1
"""In the place of the step until the whole message has come."""


class Peers(Protocol):
    """What these connections need of a `Group`."""

    @property
    def rank(self) -> int:
        """That of this process."""
        ...

    @property
    def size(self) -> int:
        """How many ranks there are."""
        ...

    def check(self) -> None:
        """Raises `GroupEnded` where the group has ended."""
        ...

    def meeting(self, what: str) -> AbstractContextManager[None]:
        """In the block this rank does what another has to do with it."""
        ...


class StageLinks:
    """The connections of the stage that this rank is. Every rank of the group has to make its own.

    The number of a rank is that of its stage.
    """

    def __init__(self, group: Peers, communicators: Communicators) -> None:
        self._group = group
        self.stage = Stage(group.rank, group.size)
        self._pairs: list[ProcessGroup] = [
            communicators.new([index, index + 1]) for index in range(group.size - 1)
        ]
        self._all: ProcessGroup = communicators.new()

    def send(self, step: int, departing: Tensor) -> None:
        """Send `departing[T, F]` to the next stage. Raises `MessageFailed`."""
        here = self.stage.index
        said = departing.new_full((1,), step % STEPS)
        with self._naming(step, f"sending to rank {here + 1}"):
            flat = torch.cat([departing.reshape(-1), said])
            dist.send(flat, dst=here + 1, group=self._pairs[here])

    def receive(
        self, step: int, shape: tuple[int, int], dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        """What the stage before sends, `[T, F]` of that shape. Raises `MessageFailed`."""
        before = self.stage.index - 1
        found = torch.full((math.prod(shape) + 1,), NOTHING, dtype=dtype, device=device)
        with self._naming(step, f"receiving from rank {before}"):
            dist.recv(found, src=before, group=self._pairs[before])
        self._require_step(step, found, before)
        return found[:-1].view(shape)

    def tell(self, step: int, *said: Tensor) -> None:
        """From the last stage to all others: `said[...]`, of int64. Raises `MessageFailed`."""
        at = said[0].new_full((1,), step % STEPS)  # behind the rest, as of `send`
        with self._naming(step, "telling the other ranks"):
            flat = torch.cat([*(each.reshape(-1) for each in said), at])
            dist.broadcast(flat, src=self.stage.count - 1, group=self._all)

    def hear(self, step: int, shapes: Sequence[Sequence[int]], like: Tensor) -> tuple[Tensor, ...]:
        """What the last stage tells: of these shapes, `[...]`, where `like[...]` lies.

        Raises `MessageFailed`.
        """
        counts = [math.prod(shape) for shape in shapes]
        flat = torch.full((sum(counts) + 1,), NOTHING, dtype=torch.int64, device=like.device)
        last = self.stage.count - 1
        with self._naming(step, f"hearing from rank {last}"):
            dist.broadcast(flat, src=last, group=self._all)
        self._require_step(step, flat, last)
        parts = torch.split(flat[:-1], counts)
        return tuple(part.view(*shape) for part, shape in zip(parts, shapes, strict=True))

    def _require_step(self, step: int, message: Tensor, sender: int) -> None:
        """That `message[N]` ends with the number of this step. Raises `MessageFailed`."""
        found = int(message[-1])
        if found == step % STEPS:
            return
        here = f"rank {self.stage.index} is in step {step}, and rank {sender} sent"
        if found == NOTHING:
            raise MessageFailed(f"{here} less than {len(message)} numbers")
        # The nearest step of which only this is known.
        said = step + (found - step + STEPS // 2) % STEPS - STEPS // 2
        raise MessageFailed(f"{here} what is of step {said}: one of them left out a message")

    @contextmanager
    def _naming(self, step: int, doing: str) -> Iterator[None]:
        """What a library says of a message that fails says neither rank nor step."""
        self._group.check()
        try:
            with self._group.meeting(doing):
                yield
        except RuntimeError as error:
            self._group.check()
            raise MessageFailed(
                f"rank {self.stage.index}, {doing} in step {step}: {error}"
            ) from error
