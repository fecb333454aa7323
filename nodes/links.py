"""What nodes between stages need of whatever connects the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from ..models.stage import Stage


class Links(Protocol):
    """The connections of one stage. Each call comes back when what it was called for is done.

    Messages between two stages, and those of the last stage to all, are each in the order of the
    calls, which is that of the steps. Each says its step, so that none is taken for another.
    """

    @property
    def stage(self) -> Stage:
        """Which stage it is that they connect."""
        ...

    def send(self, step: int, departing: Tensor) -> None:
        """Send `departing[T, F]` to the next stage. Raises what ends the group."""
        ...

    def receive(
        self, step: int, shape: tuple[int, int], dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        """What the stage before sends, `[T, F]` of that shape. Raises what ends the group."""
        ...

    def tell(self, step: int, *said: Tensor) -> None:
        """From the last stage to all others: `said[...]`, of int64. Raises what ends the group."""
        ...

    def hear(self, step: int, shapes: Sequence[Sequence[int]], like: Tensor) -> tuple[Tensor, ...]:
        """What the last stage tells: of these shapes, `[...]`, where `like[...]` lies.

        Raises what ends the group.
        """
        ...
